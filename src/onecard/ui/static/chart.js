// Line charts as live SVG: bands, log scales, smoothing, zoom by dragging, values under the pointer, CSV and PNG.
import { color, el, number, save, short, svg, w } from "./dom.js";

const LEFT = 52, RIGHT = 14, TOP = 10, BOTTOM = 40;

export function ticks(low, high, about) {
  if (!(high > low)) return [low];
  const rough = (high - low) / about, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * size).find((s) => s >= rough * 0.999);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k <= Math.floor(high / step + 1e-9); k++) out.push(+(k * step).toPrecision(12));
  return out;
}

function logTicks(low, high) {
  for (const parts of [[1], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 7]]) {
    const out = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
      for (const p of parts) { const v = p * 10 ** e; if (v >= low * 0.999 && v <= high * 1.001) out.push(v); }
    }
    if (out.length > 2) return out;
  }
  return ticks(low, high, 4);
}

function smoothed(points, weight) {
  if (!weight) return points;
  let kept = null, mass = 0;
  return points.map(([x, y, ...rest]) => {
    if (!Number.isFinite(y)) return [x, y, ...rest];
    kept = (kept ?? 0) * weight + y * (1 - weight);
    mass = mass * weight + (1 - weight);
    return [x, kept / mass, ...rest];
  });
}

export class Chart {
  // options: height, xLabel, yLabel, xText, yText, logX, logY, smooth, tools, name, zoomed(range), levels, robust, skipStart
  constructor(place, options = {}) {
    this.options = { height: 280, xText: short, yText: (v) => number(v, 5), tools: [], name: "chart", ...options };
    this.series = [];
    this.range = null;
    this.smooth = 0;
    this.svg = svg("svg", { role: "img", tabindex: "0" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.keys = el("ul", { class: "keys" });
    this.box = el("div", { class: "chart" }, this.svg, this.tip);
    this.bar = this.makeTools();
    place.append(...(this.bar ? [this.bar] : []), this.box, this.keys);
    this.resize = new ResizeObserver(() => this.draw());
    this.resize.observe(this.box);
    this.listen();
  }

  makeTools() {
    const wanted = new Set(this.options.tools);
    if (!wanted.size) return null;
    const parts = [];
    const tick = (key, label) => el("label", {}, el("input", {
      type: "checkbox", checked: this.options[key] ?? false, onchange: (e) => { this.options[key] = e.target.checked; this.draw(); },
    }), label);
    if (wanted.has("log")) parts.push(tick("logX", w("log_x")), tick("logY", w("log_y")));
    if (wanted.has("smooth")) {
      parts.push(el("label", {}, w("smoothing"), el("input", {
        type: "range", min: 0, max: 100, value: 0, "aria-label": w("smoothing"),
        oninput: (e) => { this.smooth = e.target.value === "0" ? 0 : 1 - 10 ** (-0.3 - 2.2 * e.target.value / 100); this.draw(); },
      })));
    }
    this.back = el("button", { type: "button", hidden: true, text: w("zoom_out"), onclick: () => this.zoom(null) });
    parts.push(this.back);
    if (wanted.has("csv")) parts.push(el("button", { type: "button", text: "CSV", title: w("download_csv"), onclick: () => this.csv() }));
    if (wanted.has("png")) parts.push(el("button", { type: "button", text: "PNG", title: w("download_png"), onclick: () => this.png() }));
    return el("div", { class: "tools" }, ...parts);
  }

  set(series, options = {}) {
    Object.assign(this.options, options);
    this.series = series;
    this.draw();
  }

  zoom(range) {
    this.range = range;
    if (this.back) this.back.hidden = !range;
    this.options.zoomed?.(range);
    this.draw();
  }

  listen() {
    let from = null;
    const place = (event) => { const box = this.svg.getBoundingClientRect(); return event.clientX - box.left; };
    this.svg.addEventListener("pointermove", (event) => { this.hover(place(event)); if (from !== null) this.drag(from, place(event)); });
    this.svg.addEventListener("pointerleave", () => { this.tip.hidden = true; this.cursor?.remove(); });
    this.svg.addEventListener("pointerdown", (event) => { if (event.pointerType === "mouse") { from = place(event); this.svg.setPointerCapture(event.pointerId); } });
    this.svg.addEventListener("pointerup", (event) => {
      const to = place(event), start = from;
      from = null;
      this.marked?.remove();
      if (start !== null && this.scale && Math.abs(to - start) > 8) this.zoom([start, to].sort((a, b) => a - b).map((x) => this.scale.value(x)));
    });
    this.svg.addEventListener("dblclick", () => this.zoom(null));
    this.svg.addEventListener("keydown", (event) => {
      if (!this.scale) return;
      const { edges, ends, place, value } = this.scale, middle = place(this.at ?? value((edges[0] + edges[1]) / 2));
      if (event.key === "+" || event.key === "-") {
        const factor = event.key === "+" ? 0.5 : 2, next = edges.map((edge) => value(middle + (edge - middle) * factor));
        const whole = place(ends[1]) - place(ends[0]) <= (edges[1] - edges[0]) * factor + 1;
        this.zoom(whole && factor > 1 ? null : [Math.max(next[0], ends[0]), Math.min(next[1], ends[1])]);
      } else if (event.key === "Escape") this.zoom(null);
      else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        event.preventDefault();
        this.hover(middle + (event.key === "ArrowRight" ? 8 : -8));
      }
    });
  }

  drag(from, to) {
    this.marked?.remove();
    this.marked = svg("rect", { x: Math.min(from, to), y: TOP, width: Math.abs(to - from), height: this.options.height - TOP - BOTTOM, fill: color(0), opacity: 0.15 });
    this.svg.append(this.marked);
  }

  draw() {
    const { height, logX, logY, xText, yText, xLabel = "", yLabel = "", levels = [] } = this.options;
    const wide = this.box.clientWidth;
    if (wide <= LEFT + RIGHT) return; // not laid out yet
    this.svg.setAttribute("viewBox", `0 0 ${wide} ${height}`);
    this.svg.setAttribute("height", height);
    const drawn = this.series.map((s) => ({ ...s, points: this.inside(s.smooth === false ? s.points : smoothed(s.points, this.smooth), logX, logY), band: this.inside(s.band ?? [], logX, false) }));
    const xs = drawn.flatMap((s) => [...s.points, ...s.band].map((p) => p[0]));
    const all = this.series.flatMap((s) => s.points.map((p) => p[0])).filter((x) => Number.isFinite(x) && (!logX || x > 0));
    let [x0, x1] = this.range ?? [min(xs), max(xs)];
    if (logX && x0 <= 0) x0 = min(all); // zoomed in before the scale was changed
    // a run's first steps are so high that the rest would look flat: the scale is of what follows them
    const few = xs.length < 50;
    const from = few || this.range || logX || logY ? -Infinity : x0 + (this.options.skipStart ?? -1) * (x1 - x0);
    const late = (points) => points.filter((p) => p[0] >= from);
    const ys = [...drawn.flatMap((s) => [...late(s.points).map((p) => p[1]), ...(s.bandInScale === false ? [] : late(s.band).flatMap((p) => [p[1], p[2]]))]), ...levels.map((l) => l.y)]
      .filter((y) => Number.isFinite(y) && (!logY || y > 0));
    this.svg.replaceChildren(svg("title", {}, this.options.title ?? yLabel));
    this.keys.replaceChildren();
    if (!xs.length || !ys.length) { this.scale = null; return; }
    const [y0, y1] = this.limits(drawn, ys, logY);
    const tx = logX ? Math.log : (v) => v, ty = logY ? Math.log : (v) => v;
    const spanX = tx(x1) - tx(x0) || 1, spanY = ty(y1) - ty(y0) || 1;
    const heights = logY ? logTicks(y0, y1) : ticks(y0, y1, 5);
    const names = heights.map((y) => svg("text", { "text-anchor": "end" }, yText(y)));
    this.svg.append(...names);
    const left = Math.min(Math.max(LEFT, 12 + max(names.map((name) => name.getComputedTextLength()))), wide / 2);
    const px = (x) => left + (tx(x) - tx(x0)) / spanX * (wide - left - RIGHT);
    const py = (y) => height - BOTTOM - (ty(y) - ty(y0)) / spanY * (height - BOTTOM - TOP);
    this.scale = { edges: [left, wide - RIGHT], ends: [min(all), max(all)], place: px, placeY: py, value: (p) => {
      const t = tx(x0) + (p - left) / (wide - left - RIGHT) * spanX; return logX ? Math.exp(t) : t; } };
    this.drawn = drawn;
    const line = getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
    for (const [i, y] of heights.entries()) {
      names[i].setAttribute("x", left - 7);
      names[i].setAttribute("y", py(y) + 4);
      this.svg.append(svg("path", { d: `M${left} ${py(y)}H${wide - RIGHT}`, stroke: line }));
    }
    let free = -1e9;
    for (const x of logX ? logTicks(x0, x1) : ticks(x0, x1, Math.max(2, wide / 110))) {
      if (x < x0 || x > x1 || px(x) - free < 46) continue;
      free = px(x);
      this.svg.append(svg("text", { x: px(x), y: height - BOTTOM + 17, "text-anchor": px(x) > wide - 40 ? "end" : "middle" }, xText(x)));
    }
    this.svg.append(svg("text", { x: wide - RIGHT, y: height - 3, "text-anchor": "end" }, xLabel));
    const clip = svg("clipPath", { id: `clip${this.id ??= Math.random().toString(36).slice(2)}` }, svg("rect", { x: left, y: 0, width: wide - left - RIGHT + 2, height: height - BOTTOM + 2 }));
    const plot = svg("g", { "clip-path": `url(#clip${this.id})` });
    this.svg.append(clip, plot);
    drawn.forEach((s, i) => this.curve(plot, s, i, px, py, logY));
    for (const level of levels) plot.append(svg("path", { d: `M${left} ${py(level.y)}H${wide}`, stroke: color(6), "stroke-dasharray": "5 4" }), svg("text", { x: wide - RIGHT, y: py(level.y) - 5, "text-anchor": "end" }, level.label));
    if (drawn.length > 1 || drawn.some((s) => s.band.length)) {
      this.keys.append(...drawn.map((s, i) => { const dot = el("span", { class: "dot" }); dot.style.background = color(s.color ?? i); return el("li", {}, dot, s.label); }));
    }
  }

  inside(points, logX, logY) {
    const kept = points.filter(([x, y]) => Number.isFinite(x) && (!logX || x > 0) && (!logY || !(y <= 0)));
    if (!this.range) return kept;
    const [a, b] = this.range;
    const first = kept.findIndex((p) => p[0] >= a), last = kept.findLastIndex((p) => p[0] <= b);
    return first < 0 || last < 0 ? [] : kept.slice(Math.max(0, first - 1), last + 2);
  }

  limits(drawn, ys, logY) {
    let low = min(ys), high = max(ys);
    // a single spike must not flatten the rest: the scale is of 98 % of the points
    if (!logY && this.options.robust && ys.length > 50) high = [...ys].sort((a, b) => a - b)[Math.floor(ys.length * 0.98)];
    if (low === high) { low -= Math.abs(low) * 0.05 || 1; high += Math.abs(high) * 0.05 || 1; }
    if (logY) return [low, high];
    const room = (high - low) * 0.05;
    return [this.options.fromZero ? 0 : low >= 0 ? Math.max(0, low - room) : low - room, high + room];
  }

  curve(plot, s, i, px, py, logY) {
    const shade = color(s.color ?? i);
    const band = s.band.filter((p) => !logY || p[1] > 0);
    if (band.length > 1) {
      const edge = [...band.map(([x, , high]) => `${px(x).toFixed(1)} ${py(high).toFixed(1)}`), ...[...band].reverse().map(([x, low]) => `${px(x).toFixed(1)} ${py(low).toFixed(1)}`)];
      plot.append(svg("path", { d: `M${edge.join("L")}Z`, fill: shade, "fill-opacity": s.bandOpacity ?? 0.16, stroke: s.bandEdge ? shade : "none", "stroke-opacity": 0.6, "data-band": s.key ?? i }));
    }
    if (s.dots) {
      for (const [x, y] of s.points) if (Number.isFinite(y)) plot.append(svg("circle", { cx: px(x), cy: py(y), r: s.radius ?? 4, fill: shade, stroke: getComputedStyle(document.documentElement).getPropertyValue("--card"), "stroke-width": 1.5 }));
      if (s.dots === "only") return;
    }
    let pen = "M", path = "";
    for (const [x, y] of s.points) {
      if (!Number.isFinite(y)) { pen = "M"; continue; }
      path += `${pen}${px(x).toFixed(1)} ${py(y).toFixed(1)}`;
      pen = "L";
    }
    if (path) plot.append(svg("path", { d: path, fill: "none", stroke: shade, "stroke-width": s.thin ? 1.2 : 2, "stroke-linejoin": "round", "stroke-dasharray": s.dashed ? "6 4" : null, "data-series": s.key ?? i }));
  }

  hover(place) {
    if (!this.scale) return;
    const [from, to] = this.scale.edges, wide = this.box.clientWidth, x = this.scale.value(Math.min(Math.max(place, from), to));
    this.at = x;
    const rows = [];
    let near = null;
    for (const [i, s] of this.drawn.entries()) {
      const point = nearest(s.points, x);
      if (!point || s.quiet || (this.range && (point[0] < this.range[0] || point[0] > this.range[1]))) continue;
      near ??= point[0];
      rows.push([s.label, this.options.yText(point[1]), color(s.color ?? i), point[4]]);
    }
    this.cursor?.remove();
    if (near === null) { this.tip.hidden = true; return; }
    const at = this.scale.place(near);
    this.cursor = svg("path", { d: `M${at} ${TOP}V${this.options.height - BOTTOM}`, stroke: color(6), "stroke-dasharray": "2 3" });
    this.svg.append(this.cursor);
    this.tip.replaceChildren(el("div", { class: "soft", text: `${this.options.xText(near)} ${this.options.xLabel ?? ""}` }), ...rows.map(([label, value, shade, note]) => {
      const dot = el("span", { class: "dot" });
      dot.style.background = shade;
      return el("div", { class: "row" }, dot, el("span", { text: `${label} ` }), el("b", { text: value }), note ? el("span", { class: "soft", text: note }) : null);
    }));
    this.tip.hidden = false;
    const left = at + 14 + this.tip.offsetWidth > wide ? at - 14 - this.tip.offsetWidth : at + 14;
    this.tip.style.transform = `translate(${Math.max(0, left)}px, ${TOP}px)`;
  }

  csv() {
    const lines = [["series", this.options.xLabel || "x", this.options.yLabel || "y"].map(quoted).join(",")];
    for (const s of this.series) for (const [x, y] of s.points) lines.push([quoted(s.label), x, y ?? ""].join(","));
    save(`${this.options.name}.csv`, lines.join("\n") + "\n", "text/csv");
  }

  async png() {
    const wide = this.box.clientWidth, { height } = this.options, scale = 2;
    const copy = this.svg.cloneNode(true), style = getComputedStyle(document.documentElement);
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("width", wide * scale);
    copy.setAttribute("height", height * scale);
    for (const text of copy.querySelectorAll("text")) {
      text.setAttribute("fill", style.getPropertyValue("--soft").trim());
      text.setAttribute("font-family", "sans-serif");
      text.setAttribute("font-size", "12");
    }
    copy.prepend(svg("rect", { width: wide, height, fill: style.getPropertyValue("--card").trim() }));
    const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = el("canvas", { width: wide * scale, height: height * scale });
    canvas.getContext("2d").drawImage(image, 0, 0);
    URL.revokeObjectURL(url);
    canvas.toBlob((blob) => save(`${this.options.name}.png`, blob));
  }

  gone() { this.resize.disconnect(); }
}

// A spreadsheet runs a cell that begins with = + - or @: such names get an apostrophe.
const quoted = (text) => `"${String(text).replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
const min = (values) => values.reduce((a, b) => (b < a ? b : a), Infinity);
const max = (values) => values.reduce((a, b) => (b > a ? b : a), -Infinity);

function nearest(points, x) {
  let low = 0, high = points.length - 1;
  if (high < 0) return null;
  while (low < high) { const middle = (low + high) >> 1; if (points[middle][0] < x) low = middle + 1; else high = middle; }
  const before = points[low - 1];
  return before && Math.abs(before[0] - x) < Math.abs(points[low][0] - x) ? before : points[low];
}
