// Questions that follow one another as a slider moves. One is out at a time, or two where answers are slow; when its answer has come, the
// newest question follows, and those in between are never sent. An answer that comes after a newer one is dropped.
const SLOW = 80; // milliseconds

export class Questions {
  // ask(question, signal): a promise of its answer; answered(answer, question, newest); refused(error), of the newest question
  constructor(handlers) {
    Object.assign(this, handlers);
    this.out = [];
    this.count = this.shown = 0;
  }

  put(question) {
    this.newest = question;
    if (!this.out.length) this.send();
    else this.slow ??= setTimeout(() => this.send(), SLOW);
  }

  async send() {
    clearTimeout(this.slow);
    this.slow = null;
    const question = (this.sent = this.newest), number = (this.count += 1), turn = new AbortController();
    if (this.out.length > 1) this.out[0].abort();
    this.out.push(turn);
    let answer = null, error = null;
    try { answer = await this.ask(question, turn.signal); } catch (problem) { error = problem; }
    this.out.splice(this.out.indexOf(turn), 1);
    if (this.closed) return;
    if (!this.out.length && this.sent !== this.newest) this.send();
    const newest = number === this.count && question === this.newest;
    if (number < this.shown || !(answer || newest)) return;
    this.shown = number;
    if (answer) this.answered(answer, question, newest);
    else this.refused(error);
  }

  close() {
    this.closed = true;
    clearTimeout(this.slow);
    this.out.forEach((turn) => turn.abort());
  }
}
