// Runs: the list and one run, live; several compared; other trainers' logs dropped on the page.
import { documentNode } from "./blocks.js";
import { Chart } from "./chart.js";
import { ask, boot, el, lang, live, marked, number, short, toast, w } from "./dom.js";

const HOUR = 3600;
const ticked = new Set();

export function showRuns(main, query) {
  if (query.get("id")) return new RunPage(main, query.get("id"), query.get("x")).start();
  return new RunList(main, query.getAll("compare")).start();
}

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const unit = (value, name) => new Intl.NumberFormat(lang, { style: "unit", unit: name, unitDisplay: "narrow", maximumFractionDigits: 0 }).format(value);
  if (seconds < 90) return unit(seconds, "second");
  if (seconds < 90 * 60) return unit(seconds / 60, "minute");
  if (seconds < 48 * HOUR) return `${unit(Math.floor(seconds / HOUR), "hour")} ${unit(Math.floor(seconds % HOUR / 60), "minute")}`;
  return `${unit(Math.floor(seconds / 24 / HOUR), "day")} ${unit(Math.floor(seconds % (24 * HOUR) / HOUR), "hour")}`;
}

const range = (left) => {
  if (!left || left[1] < 1) return "–";
  const ends = left.map(duration);
  return ends[0] === ends[1] ? ends[0] : ends.join(" – ");
};
const money = (row) => (row.cost === null || row.cost === undefined ? "–" : new Intl.NumberFormat(lang, { style: "currency", currency: row.currency }).format(row.cost));
const text = (value, digits) => (value === null || value === undefined ? "–" : number(value, digits));
const badge = (state) => el("span", { class: `badge ${state}`, text: w(state) });
const share = (row) => (row.max_steps ? Math.min(1, (row.step ?? 0) / row.max_steps) : 0);

function progress(row) {
  const inner = el("span", { class: "progress" }, el("span"));
  const done = inner.firstChild;
  done.style.cssText = `display:block;height:100%;width:${100 * share(row)}%;background:var(--accent)`;
  return inner;
}

const troubleNotice = () => el("p", { class: "notice bad", role: "alert", hidden: true });
const say = (notice, words) => { notice.hidden = !words; notice.replaceChildren(...marked(words)); };

class RunList {
  constructor(main, compared) {
    this.trouble = troubleNotice();
    this.rows = new Map();
    this.title = el("h1", { text: w("runs") });
    this.body = el("tbody");
    this.button = el("button", { type: "button", class: "first", text: w("compare"), disabled: true, onclick: () => this.compare([...ticked]) });
    this.compared = el("div", { id: "compared" });
    this.empty = el("p", { class: "soft", hidden: true }, ...marked(w("no_runs")));
    const heads = ["", w("run"), w("state"), w("step"), w("loss"), w("left"), w("hours").replace(/^./, (letter) => letter.toLocaleUpperCase(lang)), w("watts"), w("money")];
    main.append(el("div", { class: "stack" },
      el("div", { class: "row between" }, this.title, el("div", { class: "row" }, el("span", { class: "soft small", text: w("compare_hint") }), this.button)), this.trouble,
      el("section", { class: "card scroll", tabindex: "0", "aria-label": w("runs") }, el("table", { id: "runs" }, el("thead", {}, el("tr", {}, ...heads.map((h, i) => el("th", { scope: "col", class: i > 2 ? "right" : null, text: h }, ...(i ? [] : [el("span", { class: "hidden", text: w("compare") })]))))), this.body), this.empty),
      dropZone((ids) => { if (ids.length === 1) this.open(ids[0]); }), this.compared));
    if (compared.length > 1) this.compare(compared);
  }

  start() {
    return live("/api/runs/live", (message) => this.show(message), (words) => say(this.trouble, words));
  }

  open(id) { history.pushState(null, "", `/runs?id=${encodeURIComponent(id)}`); dispatchEvent(new PopStateEvent("popstate")); }

  show({ folder, runs }) {
    this.title.textContent = w("runs_title", { folder });
    this.empty.hidden = runs.length > 0;
    for (const id of ticked) if (!runs.some((row) => row.id === id)) ticked.delete(id); // its folder is gone
    // rows stay where they are, so that a click or the keyboard's place is not lost when figures come
    const rows = runs.map((row) => this.row(row));
    if (rows.length !== this.body.children.length || rows.some((node, i) => this.body.children[i] !== node)) this.body.replaceChildren(...rows);
    this.button.disabled = ticked.size < 2;
  }

  row(row) {
    const known = this.rows.get(row.id) ?? this.newRow(row), shown = JSON.stringify(row);
    this.rows.set(row.id, known);
    if (known.shown === shown) return known.node;
    known.shown = shown;
    while (known.node.children.length > 2) known.node.lastChild.remove();
    known.node.append(el("td", {}, row.state === "log" ? el("span", { class: "badge", text: row.format }) : badge(row.state)),
      el("td", { class: "right" }, row.step === undefined ? "–" : `${text(row.step, 9)}${row.max_steps ? ` / ${text(row.max_steps, 9)}` : ""}`, progress(row)),
      ...[["loss", text(row.val_loss ?? row.loss, 5)], ["left", row.state === "running" ? range(row.left) : "–"], ["hours", text(row.hours)], ["watts", text(row.watts)], ["money", money(row)]]
        .map(([key, value]) => el("td", { class: "right", "data-label": w(key), text: value })));
    return known.node;
  }

  newRow(row) {
    const tick = el("input", { type: "checkbox", checked: ticked.has(row.id), "aria-label": w("tick", { name: row.name }), onchange: () => {
      if (tick.checked) ticked.add(row.id); else ticked.delete(row.id);
      this.button.disabled = ticked.size < 2;
    } });
    const link = el("a", { href: `/runs?id=${encodeURIComponent(row.id)}`, "data-inside": true, text: row.name });
    const remove = row.state === "log" ? el("button", { type: "button", class: "link", text: w("remove"), onclick: () => { ticked.delete(row.id); fetch(`/api/logs?name=${encodeURIComponent(row.id)}`, { method: "DELETE" }); } }) : null;
    return { node: el("tr", { "data-run": row.id }, el("td", {}, tick), el("td", {}, link, " ", remove)), shown: "" };
  }

  async compare(names) {
    this.compared.replaceChildren(el("p", { class: "soft", text: w("loading") }));
    const query = names.map((name) => `run=${encodeURIComponent(name)}`).join("&");
    history.replaceState(null, "", `/runs?${names.map((name) => `compare=${encodeURIComponent(name)}`).join("&")}`);
    try {
      this.compared.replaceChildren(documentNode(await ask(`/api/compare?${query}`)));
    } catch (error) { this.compared.replaceChildren(el("p", { class: "notice bad" }, ...marked(error.message))); }
  }
}

function dropZone(done) {
  const file = el("input", { type: "file", class: "hidden", "aria-label": w("choose_file"), multiple: true, onchange: () => send(file.files) });
  const zone = el("label", { class: "drop" }, w("drop"), file);
  const send = async (files) => {
    for (const each of files) {
      try { done((await ask(`/api/logs?name=${encodeURIComponent(each.name)}`, { method: "POST", body: each })).ids); } catch (error) { toast(error.message); }
    }
  };
  for (const kind of ["dragover", "dragleave", "drop"]) {
    zone.addEventListener(kind, (event) => { event.preventDefault(); zone.classList.toggle("over", kind === "dragover"); if (kind === "drop") send(event.dataTransfer.files); });
  }
  return zone;
}

class RunPage {
  constructor(main, id, axis) {
    this.id = id;
    this.axis = ["tokens", "hours", "flops", "step"].includes(axis) ? axis : "tokens";
    this.points = null;
    this.evals = [];
    this.trouble = troubleNotice();
    this.title = el("h1", { text: id });
    this.state = el("span");
    this.facts = el("dl", { class: "answers", id: "facts" });
    this.reading = el("p", { class: "notice", hidden: true });
    this.lossPlace = el("section", { class: "card", id: "loss" }, el("div", { class: "row between" }, el("h2", { text: w("loss_chart") }), this.axisSwitch()));
    this.loss = new Chart(this.lossPlace, { height: 340, robust: true, skipStart: 0.05, tools: ["log", "smooth", "csv", "png"], name: `${id.replaceAll("/", "-")}-loss`, yLabel: w("loss"), title: w("loss_chart"), zoomed: (range) => this.zoom(range) });
    const small = (title, key, yText) => {
      const place = el("section", { class: "card" }, el("h2", { text: title }));
      const chart = new Chart(place, { height: 170, tools: ["csv", "png"], name: `${id.replaceAll("/", "-")}-${key}`, yText, title, yLabel: title, fromZero: true });
      return { place, chart, key };
    };
    this.small = [small(w("step_time"), "step_seconds", (v) => `${number(v, 3)} ${w("seconds")}`), small(w("gpu_memory"), "memory_bytes", (v) => `${number(v, 3)} GiB`), small(w("power"), "watts", (v) => `${number(v, 3)} W`), small(w("data_wait"), "data_wait", (v) => new Intl.NumberFormat(lang, { style: "percent", maximumSignificantDigits: 2 }).format(v))];
    this.findings = el("ul", { id: "findings" });
    this.events = el("ul", { class: "events", tabindex: "0", "aria-label": w("events") });
    this.samples = el("ul", { class: "events", tabindex: "0", "aria-label": w("samples") });
    this.evalTable = el("tbody");
    this.tools = el("div", { class: "tools" }, el("a", { class: "button", href: "/runs", "data-inside": true, text: `← ${w("all_runs")}` }), el("a", { class: "button", href: `/talk?model=${encodeURIComponent(id)}`, "data-inside": true, text: w("talk_to_it"), hidden: id.startsWith("log:") }));
    if (boot.control) {
      this.tools.append(
        el("button", { type: "button", id: "stop-run", text: w("stop_run"), onclick: () => { if (confirm(w("stop_sure"))) this.control("stop"); } }),
        el("button", { type: "button", id: "resume-run", text: w("resume_run"), onclick: () => this.control("resume") }));
    }
    const card = (title, ...inside) => el("section", { class: "card" }, el("h2", { text: title }), ...inside);
    main.append(el("div", { class: "stack" }, el("div", { class: "row between" }, el("div", { class: "row" }, this.title, this.state), this.tools), this.trouble, this.reading, this.facts, this.lossPlace,
      card(w("findings"), this.findings), el("div", { class: "grid2" }, ...this.small.map((s) => s.place)),
      el("div", { class: "grid2" }, card(w("evaluations"), el("div", { class: "scroll events", tabindex: "0", "aria-label": w("evaluations") }, el("table", {}, el("thead", {}, el("tr", {}, ...[w("step"), w("val_loss"), w("perplexity"), w("bits_per_byte")].map((h) => el("th", { class: "right", scope: "col", text: h })))), this.evalTable))), card(w("events"), this.events)),
      card(w("samples"), this.samples)));
  }

  start() {
    const end = live(`/api/run/live?id=${encodeURIComponent(this.id)}`, (message) => this.show(message), (words) => say(this.trouble, words));
    return () => { end(); this.loss.gone(); this.small.forEach((s) => s.chart.gone()); };
  }

  axisSwitch() {
    const choice = el("select", { "aria-label": w("against"), onchange: () => {
      this.axis = choice.value;
      history.replaceState(null, "", `/runs?id=${encodeURIComponent(this.id)}&x=${this.axis}`);
      this.loss.range = null;
      this.detail = null;
      this.draw();
    } }, ...["tokens", "hours", "flops", "step"].map((key) => el("option", { value: key, text: w(`axis_${key}`) })));
    choice.value = this.axis;
    return el("label", { class: "tools" }, w("against"), choice);
  }

  async control(action) {
    const button = this.tools.querySelector(`#${action}-run`);
    button.disabled = true;
    try { await ask(`/api/run/${action}?id=${encodeURIComponent(this.id)}`, { method: "POST" }); } catch (error) { toast(error.message, 10_000); }
    button.disabled = false;
  }

  show(message) {
    if (message.plan !== undefined) this.plan = message.plan;
    if (message.flops_per_token) this.flops = message.flops_per_token;
    if (message.points) {
      if (message.from === 0 || !this.points) this.points = message.points;
      else for (const [name, values] of Object.entries(message.points)) { this.points[name].length = message.from; this.points[name].push(...values); }
    }
    if (message.evals) { this.evals = message.evals; this.lists(message); }
    this.reading.hidden = message.read > 0.999;
    this.reading.textContent = w("reading", { share: `${Math.round(100 * message.read)} %` });
    if (message.row) this.head(message.row);
    if (message.findings) this.findings.replaceChildren(...message.findings.map((f) => el("li", { "data-rule": f.rule }, ...marked(this.withoutName(f.text)))));
    if (message.points || message.evals) this.draw();
  }

  // Every finding begins with the run's name, which is the page's title already.
  withoutName(text) {
    const name = `${this.title.textContent.split("/").at(-1)}: `;
    return text.startsWith(name) ? text.slice(name.length) : text;
  }

  head(row) {
    this.title.textContent = row.name;
    this.state.replaceChildren(row.state === "log" ? el("span", { class: "badge", text: row.format ?? w("log") }) : badge(row.state));
    const running = row.state === "running";
    if (boot.control) { this.tools.querySelector("#stop-run").hidden = !running; this.tools.querySelector("#resume-run").hidden = running || row.state === "finished" || row.state === "log"; }
    const fact = (label, value, beside, key) => el("div", { class: "answer card" }, el("dt", { text: label }), el("dd", { class: "value", text: value, "data-key": key }), el("dd", { class: "beside" }, beside));
    this.facts.replaceChildren(
      fact(w("step"), text(row.step, 9), row.max_steps ? el("span", {}, `/ ${text(row.max_steps, 9)}`, progress(row)) : "", "step"),
      fact(w("loss"), text(row.val_loss ?? row.loss, 5), w(row.val_loss === undefined ? "train_loss" : "val_loss"), "loss"),
      fact(w("left"), running ? range(row.left) : "–", `${duration((row.hours ?? NaN) * HOUR)}${row.tokens_per_second ? ` · ${short(Math.round(row.tokens_per_second))} ${w("tokens")}/s` : ""}`, "left"),
      fact(w("money"), money(row), row.watts ? `${text(row.watts)} W` : "", "money"));
  }

  lists({ evals, events, samples }) {
    const none = () => el("li", { class: "soft", text: w("no_events") });
    const own = (e) => e.text.replace(`step ${e.step}: `, ""); // the step stands before it
    const item = (e) => el("li", {}, el("b", { text: text(e.step, 9) }), el("span", { class: "text", text: own(e) }));
    this.events.replaceChildren(...(events.length ? [...events].reverse().map(item) : [none()]));
    this.samples.replaceChildren(...(samples.length ? [...samples].reverse().map(item) : [none()]));
    this.evalTable.replaceChildren(...[...evals].reverse().slice(0, 200).map((e) => el("tr", {}, ...[[e.step, 9], [e.val_loss, 5], [e.perplexity, 4], [e.bits_per_byte, 4]].map(([v, d]) => el("td", { class: "right", text: text(v, d) })))));
  }

  xOf(points, i) {
    const flops = this.plan?.flops_per_token ?? this.flops;
    const tokens = points.tokens?.[i] ?? (this.plan ? points.step[i] * this.plan.tokens_per_step : null);
    return { step: points.step[i], tokens, hours: points.seconds?.[i] / HOUR, flops: flops && tokens ? tokens * flops : null }[this.axis] ?? NaN;
  }

  // Where a step is on the axis, by the points there are; a plan's own pace beyond them.
  stepToX(step) {
    const p = this.points;
    if (this.axis === "step") return step;
    const perStep = this.plan?.tokens_per_step ?? (p.tokens?.at(-1) / p.step.at(-1));
    if (this.axis === "tokens") return step * perStep;
    if (this.axis === "flops") return step * perStep * (this.plan?.flops_per_token ?? this.flops);
    const i = p.step.findIndex((s) => s >= step);
    if (i < 0) return p.seconds.at(-1) / HOUR * step / p.step.at(-1);
    return p.seconds[i] / HOUR;
  }

  draw() {
    const p = this.detail ?? this.points;
    if (!p?.step.length) return;
    const xs = p.step.map((_, i) => this.xOf(p, i));
    const series = [];
    if (this.plan) {
      // on hours the band is the plan's own: its step time, not the run's
      const at = (step) => (this.axis === "hours" ? step * this.plan.step_seconds / HOUR : this.stepToX(step));
      const band = this.plan.band.map(([step, low, high]) => [at(step), low, high]);
      const seen = this.points.step.at(-1);
      const until = this.plan.band.filter(([step]) => step <= seen * 1.3 || step <= 2).length + 1;
      series.push({ label: w("expected_band"), color: 4, band: band.slice(0, until), points: band.slice(0, until).map(([x, low, high]) => [x, (low + high) / 2, null, null, `${number(low, 3)} – ${number(high, 3)}`]), dashed: true, thin: true, smooth: false, bandOpacity: 0.3, bandEdge: true, key: "plan" });
    }
    const wide = p.low && p.low.some((low, i) => low !== p.high[i]);
    series.push({ label: w("train_loss"), color: 0, points: xs.map((x, i) => [x, p.loss[i] ?? NaN]), band: wide ? xs.map((x, i) => [x, p.low[i], p.high[i]]).filter((b) => b[1] !== null) : [], bandInScale: false, key: "train" });
    const evals = this.evals.filter((e) => e.val_loss !== null && e.val_loss !== undefined);
    if (evals.length) series.push({ label: w("val_loss"), color: 2, dots: evals.length < 80, points: evals.map((e) => [this.stepToX(e.step), e.val_loss]), smooth: false, key: "val" });
    this.loss.set(series, { xLabel: w(`axis_${this.axis}`) });
    for (const { place, chart, key } of this.small) {
      const values = (p[key] ?? []).map((v) => (key === "memory_bytes" && v !== null ? v / 2 ** 30 : v));
      place.hidden = !values.some((v) => v !== null);
      if (!place.hidden) chart.set([{ label: place.firstChild.textContent, points: xs.map((x, i) => [x, values[i] ?? NaN]) }], { xLabel: w(`axis_${this.axis}`), robust: true });
    }
  }

  async zoom(range) {
    this.detail = null;
    if (!range || this.id.startsWith("log:") || !this.points) return;
    const xs = this.points.step.map((_, i) => this.xOf(this.points, i));
    const first = xs.findLastIndex((x) => x <= range[0]), last = xs.findIndex((x) => x >= range[1]);
    const from = this.points.step[Math.max(0, first)], to = this.points.step[last < 0 ? xs.length - 1 : last];
    try {
      const detail = await ask(`/api/run/zoom?id=${encodeURIComponent(this.id)}&from=${Math.floor(from)}&to=${Math.ceil(to)}`);
      if (this.loss.range === range && detail.step.length) { this.detail = detail; this.draw(); }
    } catch (error) { toast(error.message); }
  }
}
