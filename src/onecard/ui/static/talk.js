// Talk: a prompt or a chat, with one model or two side by side on the same words, streamed as it is written.
import { ask, el, marked, number, w } from "./dom.js";

export function showTalk(main, query) {
  const page = new TalkPage(main, query);
  page.start();
  return () => page.stop();
}

class TalkPage {
  constructor(main, query) {
    this.query = query;
    this.turns = [];
    const choice = (name, label) => el("label", { class: "field" }, el("span", { class: "name", text: label }), this[name]);
    this.one = el("select", { id: "model-one", onchange: () => this.remember() });
    this.two = el("select", { id: "model-two", onchange: () => this.remember() });
    const box = (name, id, value) => (this[name] = el("input", { type: "text", inputmode: "decimal", id, value }));
    this.chat = query.get("chat") === "1";
    const mode = (on, label) => el("label", {}, el("input", { type: "radio", name: "mode", checked: this.chat === on, onchange: () => { this.chat = on; this.turns = []; this.remember(); this.layout(); } }), label);
    this.prompt = el("textarea", { id: "prompt", "aria-label": w("prompt"), placeholder: w("prompt_hint"), rows: 4, onkeydown: (e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey || this.chat && !e.shiftKey)) { e.preventDefault(); this.generate(); } } });
    this.button = el("button", { type: "submit", class: "first", id: "generate", text: w("generate") });
    this.halt = el("button", { type: "button", id: "stop", text: w("stop"), disabled: true, onclick: () => this.stop() });
    this.answers = el("div", { class: "grid2", id: "texts" });
    this.empty = el("p", { class: "notice", text: w("no_models"), hidden: true });
    this.error = el("p", { class: "notice bad", role: "alert", hidden: true });
    main.append(el("div", { class: "stack" }, el("h1", { text: w("talk_title") }), this.empty, this.error,
      el("form", { class: "card stack", onsubmit: (e) => { e.preventDefault(); this.generate(); } },
        el("div", { class: "grid2" }, choice("one", w("model_one")), choice("two", w("model_two"))),
        el("div", { class: "segments" }, mode(false, w("prompt")), mode(true, w("chat"))), this.prompt,
        el("div", { class: "settings" }, ...[["temperature", "temperature", "0.8"], ["topK", "top_k", ""], ["tokens", "max_tokens", "200"], ["seed", "seed", "1337"]].map(([name, key, value]) => { box(name, key, value); return el("label", { class: "field" }, el("span", { class: "name", text: w(key) }), this[name]); })),
        el("div", { class: "row" }, this.button, this.halt, el("button", { type: "button", text: w("clear"), onclick: () => { this.turns = []; this.prompt.value = ""; this.layout(); } }))), this.answers));
  }

  async start() {
    try {
      const { data } = await ask("/v1/models");
      const options = () => data.map((model) => el("option", { value: model.id, text: model.id }));
      this.one.append(...options());
      this.two.append(el("option", { value: "", text: w("no_second") }), ...options());
      this.empty.hidden = data.length > 0;
      this.button.disabled = !data.length;
      const known = new Set(data.map((model) => model.id));
      if (known.has(this.query.get("model"))) this.one.value = this.query.get("model");
      if (known.has(this.query.get("with"))) this.two.value = this.query.get("with");
    } catch (error) { this.fail(error); }
    this.layout();
  }

  remember() {
    const query = new URLSearchParams({ model: this.one.value });
    if (this.two.value) query.set("with", this.two.value);
    if (this.chat) query.set("chat", "1");
    history.replaceState(null, "", `/talk?${query}`);
    this.layout();
  }

  fail(error) { this.error.hidden = false; this.error.replaceChildren(...marked(error.message)); }

  layout() {
    this.places = [this.one.value, this.two.value].filter(Boolean).map((model, i) => {
      const says = el("div", { class: "says", id: `text-${i}`, "aria-live": "polite" }), rate = el("span", { class: "soft small" });
      if (this.chat) for (const turn of this.turns[i] ?? []) says.append(el("div", { class: `turn ${turn.role}`, text: turn.content }));
      const card = el("section", { class: "card" }, el("div", { class: "row between" }, el("h2", { text: model }), rate), says);
      return { model, says, rate, card, number: i };
    });
    this.answers.replaceChildren(...this.places.map((place) => place.card));
  }

  async generate() {
    this.stop();
    this.error.hidden = true;
    const words = this.prompt.value;
    if (this.chat && !words.trim()) return;
    const control = (this.control = new AbortController());
    if (this.chat) {
      for (const { number: i } of this.places) (this.turns[i] ??= []).push({ role: "user", content: words });
      this.prompt.value = "";
    }
    this.layout();
    this.button.disabled = true;
    this.halt.disabled = false;
    await Promise.all(this.places.map((place) => this.stream(place, words, control)));
    if (this.control === control) { this.button.disabled = false; this.halt.disabled = true; }
  }

  async stream(place, words, control) {
    const asked = { model: place.model, stream: true, max_tokens: +this.tokens.value || 200, temperature: this.temperature.value === "" ? 0.8 : +this.temperature.value, seed: (Math.round(+this.seed.value) || 0) + this.answered(place) };
    if (this.topK.value) asked.top_k = +this.topK.value;
    if (this.chat) asked.messages = this.turns[place.number]; else asked.prompt = words;
    const answer = el("span"), bubble = this.chat ? el("div", { class: "turn assistant" }, answer) : answer;
    place.says.append(...(this.chat ? [bubble] : [el("span", { class: "asked", text: words }), answer]));
    place.says.classList.add("busy");
    place.rate.textContent = w("waiting");
    let began = 0, pieces = 0;
    try {
      const reply = await fetch(this.chat ? "/v1/chat/completions" : "/v1/completions", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(asked), signal: control.signal });
      if (!reply.ok) throw new Error((await reply.json()).error.message);
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        const lines = (rest + value).split("\n\n");
        rest = lines.pop();
        for (const line of lines) {
          if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
          const message = JSON.parse(line.slice(6));
          if (message.error) throw new Error(message.error.message);
          const [{ text, delta }] = message.choices, piece = text ?? delta?.content ?? "";
          if (!piece) continue;
          began ||= performance.now();
          pieces += 1;
          answer.append(piece);
          const seconds = (performance.now() - began) / 1000;
          if (seconds > 0.3) place.rate.textContent = w("rate", { value: number(pieces / seconds, 2) });
        }
      }
      if (this.chat) this.turns[place.number].push({ role: "assistant", content: answer.textContent.trim() });
    } catch (error) { if (error.name !== "AbortError") this.fail(error); }
    place.says.classList.remove("busy");
    if (place.rate.textContent === w("waiting")) place.rate.textContent = "";
  }

  // Each answer of a chat draws numbers of its own, as in `onecard chat`; the same question need not get the same answer.
  answered(place) { return this.chat ? this.turns[place.number].filter((turn) => turn.role === "assistant").length : 0; }

  stop() {
    this.control?.abort();
    this.button.disabled = !this.one.options.length;
    this.halt.disabled = true;
  }
}
