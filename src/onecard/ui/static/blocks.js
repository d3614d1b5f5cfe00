// A report's blocks, as the commands say them, laid out for the page.
import { Chart } from "./chart.js";
import { el, marked, number, svg } from "./dom.js";

export function stackedBar(block) {
  const limit = block.limit.raw, total = block.parts.reduce((sum, part) => sum + part.raw, 0);
  const most = Math.max(limit, total) || 1;
  let x = 0;
  const bar = svg("svg", { class: "bar", viewBox: "0 0 1000 40", preserveAspectRatio: "none", role: "img" },
    svg("title", {}, `${block.title}: ${block.parts.map((p) => `${p.label} ${p.value}`).join(", ")}; ${block.limit.label} ${block.limit.value}`),
    svg("rect", { width: limit / most * 1000, height: 40, fill: "var(--well)" }));
  block.parts.forEach((part, i) => {
    const wide = part.raw / most * 1000;
    bar.append(svg("rect", { x, width: Math.max(wide, 1), height: 40, fill: `var(--c${i % 8})`, "data-bytes": part.raw }, svg("title", {}, `${part.label}: ${part.value}`)));
    x += wide;
  });
  bar.append(svg("rect", { x: Math.min(limit / most * 1000, 997) - 1, width: 3, height: 40, fill: "var(--ink)" }));
  const legend = el("ul", { class: "legend" }, ...block.parts.map((part, i) => {
    const dot = el("span", { class: "dot" });
    dot.style.background = `var(--c${i % 8})`;
    return el("li", {}, dot, el("span", { text: part.label }), el("b", { text: part.value }));
  }), el("li", { class: "soft" }, el("span", { text: block.limit.label }), el("b", { text: block.limit.value })));
  return el("div", {}, bar, legend);
}

const MAKERS = {
  figures: (block) => el("div", { class: "scroll" }, el("table", { class: "figures" }, el("tbody", {}, ...block.rows.flatMap((row) => [
    el("tr", {}, el("td", { text: row.label }), el("td", { class: `value tone-${row.tone ?? "none"}`, text: row.value }), el("td", { class: "note", text: row.beside })),
    ...(row.formula ? [el("tr", {}, el("td", { colspan: 3, class: "formula", text: row.formula }))] : []),
  ])))),
  table: (block) => el("div", { class: "scroll", tabindex: "0" }, el("table", {},
    el("thead", {}, el("tr", {}, ...block.columns.map((c) => el("th", { class: c.align === "right" ? "right" : null, scope: "col", text: c.title })))),
    el("tbody", {}, ...block.rows.map((row, i) => el("tr", { class: block.marked.includes(i) ? "marked" : null },
      ...row.map((cell, j) => el("td", { class: block.columns[j].align === "right" ? "right" : block.columns[j].breaks ? "breaks" : null, text: cell }))))))),
  stacked: stackedBar,
  notes: (block) => el("div", { class: `notice ${block.tone ?? ""}` }, el("ul", {}, ...block.items.map((item) => el("li", {}, ...marked(item))))),
  paragraph: (block) => el("p", {}, ...marked(block.text)),
  lines: (block) => {
    const place = el("div", {}, el("h3", { text: block.title }));
    const chart = new Chart(place, { height: 240, logX: block.log_x, xLabel: block.x_label, yLabel: block.y_label, title: block.title, levels: block.levels, tools: ["csv", "png"], name: "curve", yText: (v) => number(v, 4) });
    chart.set(block.series.map((s) => ({ ...s, color: undefined })));
    return place;
  },
};

export const blockNode = (block) => MAKERS[block.kind](block);

export function documentNode(doc, { heading = true } = {}) {
  const sections = doc.sections.map((section) => el("section", { class: "card" }, el("h2", { text: section.title }),
    el("div", { class: "blocks" }, ...section.blocks.map(blockNode))));
  return el("div", { class: "stack" },
    heading ? el("div", {}, el("h2", { text: doc.title }), el("p", { class: "soft", text: doc.subtitle })) : null,
    doc.answer ? el("p", { class: "notice" }, ...marked(doc.answer)) : null,
    doc.summary.length ? el("p", { class: "notice" }, ...marked(doc.summary.join(" "))) : null,
    el("div", { class: "columns" }, ...sections),
    doc.footer ? el("p", { class: "soft small", text: doc.footer }) : null);
}
