// Plan: a form whose state is the page's address, and the planner's answer to it.
import { documentNode, stackedBar } from "./blocks.js";
import { Chart } from "./chart.js";
import { combo } from "./combo.js";
import { Refused, ask, boot, copy, el, marked, number, short, w } from "./dom.js";
import { Questions } from "./questions.js";

const START = { gpu: boot.first_card, preset: "gpt2", data: "fineweb-edu-10B" };
const CURVE_HOURS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];
const REST = 150; // milliseconds without a change, before the searches are asked for

export function showPlan(main, query) {
  const state = Object.fromEntries([...query].filter(([, value]) => value));
  if (![...query.keys()].length) Object.assign(state, START);
  const page = new PlanPage(main, state);
  page.ask();
  return () => page.leave();
}

class PlanPage {
  constructor(main, state) {
    this.state = state;
    this.fields = {};
    this.questions = new Questions({
      ask: (query, signal) => ask(`/api/plan?${query}`, { signal }),
      answered: (...all) => this.show(...all),
      refused: (error) => this.refuse(error),
    });
    this.form = el("form", { class: "card", "aria-label": w("plan_title"), onsubmit: (e) => e.preventDefault() });
    this.makeForm();
    this.error = el("div", { class: "notice bad", role: "alert", hidden: true });
    this.answers = el("dl", { class: "answers", id: "answers" });
    this.memory = el("div");
    this.notes = el("div", { class: "stack" });
    this.advice = el("section", { class: "card", id: "advice" }, el("h2", { text: w("recommended") }), el("p", { class: "soft", text: w("loading") }));
    this.curvePlace = el("section", { class: "card" }, el("h2", { text: w("curve") }));
    this.curve = new Chart(this.curvePlace, { height: 250, logX: true, tools: ["csv", "png"], name: "loss-hours", xLabel: w("hours"), yLabel: w("expected"), title: w("curve"), yText: (v) => number(v, 4) });
    this.curvePlace.append(el("p", { class: "soft small" }, ...marked(w("curve_about"))));
    this.command = el("code", { id: "command" });
    this.all = el("details", { class: "all" }, el("summary", { text: w("all_figures") }));
    this.all.addEventListener("toggle", () => this.drawAll());
    this.subtitle = el("p", { class: "soft", id: "subtitle" });
    const results = el("div", { class: "stack results", "aria-live": "off" },
      el("div", { class: "row between" }, el("div", {}, el("h1", { text: w("plan_title") }), this.subtitle), this.makeTools()),
      this.error, this.answers,
      el("section", { class: "card" }, el("h2", { text: w("memory") }), el("div", { class: "blocks" }, this.memory)),
      this.notes,
      el("div", { class: "two" }, this.curvePlace, this.advice),
      el("div", { class: "command" }, this.command), this.all);
    this.results = results;
    main.append(el("div", { class: "plan" }, this.form, results));
  }

  makeTools() {
    this.download = el("a", { class: "button", download: "run.toml", text: w("download_config") });
    return el("div", { class: "tools" },
      el("button", { type: "button", id: "copy-command", text: w("copy_command"), onclick: () => copy(this.command.textContent) }),
      el("button", { type: "button", text: w("copy_link"), onclick: () => copy(location.href) }), this.download);
  }

  makeForm() {
    const gpus = [{ value: "here", name: w("here"), about: "" }, ...boot.cards.map((c) => ({ value: c.name, name: c.name, about: `${c.about} · ${c.gib} GB` }))];
    const field = (label, node, key) => {
      const name = el("span", { class: "name" }, el("span", { text: label }));
      const made = el("div", { class: "field" }, name, node);
      if (key) this.fields[key] = { ...this.fields[key], name, label };
      return made;
    };
    const search = (label, key, items, free, placeholder) => {
      const made = combo({ label, items, value: this.state[key] ?? "", free, placeholder, changed: (value) => this.change(key, value) });
      this.fields[key] = { set: (value) => made.set(value) };
      return field(label, made.node);
    };
    const presets = [{ value: "", name: w("own_model") }, ...boot.presets.map((p) => ({ value: p.name, name: p.name }))];
    const data = [{ value: "", name: w("data_default") }, ...boot.datasets.map((d) => ({ value: d.name, name: d.name, about: d.tokens ? short(d.tokens) : "" }))];
    this.form.append(
      el("fieldset", {}, search(w("card"), "gpu", gpus, true, w("card_search")), search(w("preset"), "preset", presets, false), search(w("data"), "data", data, true, w("data_hint"))),
      el("fieldset", {}, el("legend", { text: w("model") }),
        field(w("layers"), this.slider("n_layer", w("layers"), 1, 64, 1), "n_layer"),
        field(w("width"), this.slider("n_embd", w("width"), 64, 3072, 64), "n_embd"),
        field(w("heads"), this.slider("n_head", w("heads"), 1, 48, 1), "n_head"),
        field(w("context"), this.slider("block_size", w("context"), 128, 4096, 128), "block_size")),
      this.lengthField(),
      el("fieldset", {}, el("legend", { text: w("batch") }),
        field(w("micro_batch"), this.slider("batch_size", w("micro_batch"), 1, 128, 1), "batch_size"),
        field(w("accumulation"), this.slider("gradient_accumulation_steps", w("accumulation"), 1, 256, 1), "gradient_accumulation_steps"),
        el("div", { class: "pair" }, field(w("precision"), this.choice("dtype", w("precision")), "dtype"), field(w("recipe"), this.choice("recipe", w("recipe")), "recipe"))),
      el("fieldset", {}, el("legend", { text: w("savers") }),
        this.tick("chunked_loss", w("chunked_loss")),
        field(w("recompute"), this.choice("recompute", w("recompute")), "recompute")),
      el("details", {}, el("summary", { text: w("more") }), el("fieldset", {},
        this.tick("compile", w("compile")),
        el("div", { class: "pair" }, field(w("optimizer"), this.choice("optimizer", w("optimizer")), "optimizer"), field(w("attention"), this.choice("attention", w("attention")), "attention")),
        el("div", { class: "pair" }, field(w("learning_rate"), this.text("learning_rate", w("learning_rate")), "learning_rate"), field(w("number_of_cards"), this.text("gpus", w("number_of_cards"), "1"))),
        field(w("price"), this.text("price", w("price"), w("price_hint"))))),
      el("button", { type: "button", text: w("reset"), onclick: () => this.take(Object.fromEntries(["gpu", "preset", "data", "price"].filter((k) => this.state[k]).map((k) => [k, this.state[k]]))) }));
  }

  slider(key, label, low, high, step) {
    const range = el("input", { type: "range", min: low, max: high, step, "aria-label": label, oninput: () => { box.value = range.value; this.change(key, range.value); } });
    const box = el("input", { type: "number", min: 1, step: "any", "aria-label": label, id: key, oninput: () => { if (box.value) this.change(key, box.value); } });
    this.fields[key] = { set: (value) => { if (document.activeElement !== box) box.value = value; if (document.activeElement !== range) range.value = value; } };
    return el("div", { class: "slider" }, range, box);
  }

  choice(key, label) {
    const node = el("select", { "aria-label": label, id: key, onchange: () => this.change(key, node.value) }, ...boot.choices[key].map((value) => el("option", { value, text: value })));
    this.fields[key] = { set: (value) => { node.value = value; } };
    return node;
  }

  tick(key, label) {
    const node = el("input", { type: "checkbox", id: key, onchange: () => this.change(key, node.checked ? "True" : "False") });
    const name = el("span", { text: label });
    this.fields[key] = { set: (value) => { node.checked = value; }, name };
    return el("label", { class: "check" }, node, name);
  }

  text(key, label, placeholder = "") {
    const node = el("input", { type: "text", id: key, "aria-label": label, placeholder, oninput: () => this.change(key, node.value.trim()) });
    this.fields[key] = { set: (value) => { if (document.activeElement !== node) node.value = value ?? ""; } };
    return node;
  }

  lengthField() {
    this.length = ["hours", "tokens", "max_iters"].find((key) => this.state[key]) ?? "";
    const value = el("input", { type: "text", id: "length", "aria-label": w("length"), oninput: () => { if (this.length) this.change(this.length, value.value.trim()); } });
    const segment = (key, text) => el("label", {}, el("input", { type: "radio", name: "length", value: key, checked: key === this.length, onchange: () => this.chooseLength(key, value) }), text);
    this.fields.length = { show: (plan) => {
      value.hidden = !this.length;
      if (document.activeElement !== value && this.length) value.value = this.state[this.length] ?? "";
      this.shownLength = { hours: String(+(plan.time.total_seconds.mid / 3600).toPrecision(3)), tokens: String(plan.tokens.total), max_iters: String(plan.config.max_iters) };
    } };
    value.hidden = !this.length;
    return el("fieldset", {}, el("legend", { text: w("length") }),
      el("div", { class: "segments" }, segment("", w("as_preset")), segment("hours", w("hours")), segment("tokens", w("tokens")), segment("max_iters", w("steps"))), value);
  }

  chooseLength(key, value) {
    for (const each of ["hours", "tokens", "max_iters", "lr_decay_iters", "warmup_iters"]) delete this.state[each];
    this.length = key;
    value.hidden = !key;
    if (key) { this.state[key] = this.shownLength?.[key] ?? ""; value.value = this.state[key]; value.focus(); }
    this.ask();
  }

  change(key, value) {
    if (key === "preset") { this.take({ gpu: this.state.gpu, data: this.state.data, price: this.state.price, preset: value }); return; }
    if (value === "" || (this.base && String(this.base[key]) === value)) delete this.state[key];
    else this.state[key] = value;
    if (key === "n_embd") this.keepHeads(+value);
    this.ask();
  }

  // A width that its heads do not divide cannot be meant: they follow, 64 wide where that is possible.
  keepHeads(width) {
    const heads = +(this.state.n_head ?? this.base?.n_head ?? 12);
    if (!(width > 0) || width % heads === 0) return;
    let best = 1;
    for (let h = 1; h <= Math.min(width, 256); h++) if (width % h === 0 && Math.abs(width / h - 64) < Math.abs(width / best - 64)) best = h;
    this.state.n_head = String(best);
  }

  take(state) {
    this.state = Object.fromEntries(Object.entries(state).filter(([, value]) => value !== undefined && value !== null && value !== ""));
    if (!this.state.preset) this.state.preset = "";
    this.length = ["hours", "tokens", "max_iters"].find((key) => this.state[key]) ?? "";
    for (const radio of this.form.querySelectorAll("[name=length]")) radio.checked = radio.value === this.length;
    for (const key of ["gpu", "data", "preset", "price"]) this.fields[key].set(this.state[key] ?? "");
    this.ask();
  }

  ask() {
    const query = new URLSearchParams(Object.entries(this.state)).toString();
    history.replaceState(null, "", `/plan?${query}`);
    this.advising?.abort();
    clearTimeout(this.later);
    this.results.classList.add("stale");
    this.questions.put(query);
  }

  refuse(error) {
    this.error.hidden = false;
    this.error.replaceChildren(...marked(error instanceof Refused ? error.message : String(error)));
    this.results.classList.remove("stale");
  }

  show(answer, query, newest) {
    const { plan, view } = answer;
    this.error.hidden = true;
    this.subtitle.textContent = view.subtitle;
    const raw = [plan.memory.fits, plan.time.total_seconds.mid, plan.loss?.expected.mid, plan.energy.cost.mid];
    if (!plan.loss) raw.splice(2, 1);
    this.answers.replaceChildren(...view.headline.map((f, i) => el("div", { class: "answer card" }, el("dt", { text: f.label }),
      el("dd", { class: `value tone-${f.tone ?? "none"}`, text: f.value, "data-raw": raw[i] }), el("dd", { class: "beside", text: f.beside }))));
    this.memory.replaceChildren(stackedBar(view.memory));
    this.notes.replaceChildren(...[[view.changes, "fair", "to_fit"], [view.warnings, "", "warnings"]].filter(([items]) => items.length)
      .map(([items, tone, title]) => el("div", { class: `notice ${tone}` }, el("b", { text: w(title) }), el("ul", {}, ...items.map((text) => el("li", {}, ...marked(text)))))));
    this.results.dataset.query = query;
    if (newest) this.settle(answer, query);
  }

  // The answer to what the form says now: its fields, the command, the rest.
  settle(answer, query) {
    const { plan } = answer;
    this.base = answer.base;
    this.answer = answer;
    this.results.classList.remove("stale");
    this.command.textContent = answer.command;
    this.download.href = `/api/config?${query}`;
    for (const [key, value] of Object.entries(answer.config)) {
      this.fields[key]?.set?.(value);
      const name = this.fields[key]?.name;
      if (name) {
        const changed = key in this.state;
        name.classList.toggle("changed", changed);
        name.title = changed ? w("changed") : "";
      }
    }
    this.fields.length.show(plan);
    this.drawAll();
    this.later = setTimeout(() => this.askAdvice(query, plan), REST);
  }

  drawAll() {
    if (!this.all.open || !this.answer || this.drawn === this.answer) return;
    this.drawn = this.answer;
    this.all.querySelector(".stack")?.remove();
    this.all.append(documentNode(this.answer.document, { heading: false }));
  }

  async askAdvice(query, plan) {
    const turn = (this.advising = new AbortController());
    const hours = plan.time.total_seconds.mid / 3600;
    try {
      const best = await ask(`/api/recommend?${query}&for_hours=${hours}`, { signal: turn.signal });
      if (turn.signal.aborted) return;
      this.showAdvice(best, plan);
      this.advice.dataset.query = query;
      await this.askCurve(query, plan, hours, turn);
    } catch (error) {
      if (error.name === "AbortError" || turn.signal.aborted) return;
      this.advice.replaceChildren(el("h2", { text: w("recommended") }), el("p", { class: "soft" }, ...marked(error.message)));
    }
  }

  showAdvice(best, plan) {
    const p = best.plan, c = p.config;
    const gain = plan.loss && p.loss ? plan.loss.expected.mid - p.loss.expected.mid : null;
    const facts = [[w("parameters"), short(p.params.total)], [`${w("layers")} · ${w("heads")} · ${w("width")}`, `${c.n_layer} · ${c.n_head} · ${c.n_embd}`],
      [w("batch"), `${c.batch_size} × ${c.block_size} × ${c.gradient_accumulation_steps}`], ...best.view.headline.map((f) => [f.label, f.value])];
    const same = c.n_layer === plan.config.n_layer && c.n_embd === plan.config.n_embd && c.batch_size === plan.config.batch_size && Math.abs(gain ?? 1) < 5e-4;
    this.advice.replaceChildren(el("h2", { text: w("recommended") }),
      el("dl", { class: "facts" }, ...facts.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })])),
      gain === null || same ? null : el("p", { class: gain > 0 ? "tone-good" : "soft", text: w(gain > 0 ? "better_by" : "worse_by", { value: number(Math.abs(gain), 2) }) }),
      el("div", { class: "row" }, same ? el("p", { class: "soft", text: w("same") }) : el("button", { type: "button", class: "first", id: "take", text: w("take"), onclick: () => this.take({ gpu: this.state.gpu, price: this.state.price, gpus: this.state.gpus, preset: "", ...best.take }) })));
    this.advice.querySelector("dl").dataset.loss = p.loss?.expected.mid ?? "";
  }

  async askCurve(query, plan, hours, turn) {
    const key = [this.state.gpu, this.state.data, plan.config.recipe, this.state.price].join("|");
    if (this.curveKey !== key) { this.curveKey = key; this.points = new Map(); }
    const wanted = CURVE_HOURS.map((h) => [Math.abs(Math.log(h / hours)), h]).sort((a, b) => a[0] - b[0]).map(([, h]) => h);
    this.drawCurve(plan, hours);
    for (const at of wanted) {
      if (this.points.has(at)) continue;
      const point = await ask(`/api/curve?${query}&at=${at}`, { signal: turn.signal }).catch((error) => { if (error.name === "AbortError") throw error; return null; });
      if (point?.loss) this.points.set(at, point);
      this.drawCurve(plan, hours);
    }
  }

  drawCurve(plan, hours) {
    const points = [...this.points.values()].sort((a, b) => a.hours - b.hours);
    const series = [{ label: w("curve_best"), dots: true, points: points.map((p) => [p.hours, p.loss.mid, null, null, `${short(p.params)} ${w("parameters")}`]), band: points.map((p) => [p.hours, p.loss.low, p.loss.high]), color: 0 }];
    if (plan.loss) series.push({ label: w("curve_this"), dots: "only", radius: 6, color: 2, points: [[hours, plan.loss.expected.mid, null, null, `${short(plan.params.total)} ${w("parameters")}`]] });
    this.curve.set(series);
  }

  leave() {
    this.questions.close();
    this.advising?.abort();
    clearTimeout(this.later);
    this.curve.gone();
  }
}
