// A search field with a list: type to narrow, arrows to move, Enter to take, Escape to leave.
import { el } from "./dom.js";

let count = 0;

export function combo({ label, items, value, free = false, placeholder = "", changed }) {
  const id = `combo${++count}`;
  const list = el("ul", { role: "listbox", tabindex: "-1", id: `${id}-list`, "aria-label": label, hidden: true });
  const input = el("input", {
    type: "text", role: "combobox", id, "aria-label": label, "aria-expanded": "false", "aria-controls": `${id}-list`,
    "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false", placeholder,
  });
  let shown = [], at = -1, taken = value;
  const nameOf = (key) => items.find((item) => item.value === key)?.name ?? key ?? "";

  const close = () => { list.hidden = true; input.setAttribute("aria-expanded", "false"); input.removeAttribute("aria-activedescendant"); };
  const mark = (next) => {
    at = next;
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === at)));
    const active = list.children[at];
    if (active) { input.setAttribute("aria-activedescendant", active.id); active.scrollIntoView({ block: "nearest" }); }
  };
  const open = (all) => {
    const wanted = all ? [] : input.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = items.filter((item) => wanted.every((word) => `${item.name} ${item.about ?? ""}`.toLowerCase().includes(word)));
    list.replaceChildren(...shown.map((item, i) => el("li", {
      role: "option", id: `${id}-${i}`, "aria-selected": "false",
      onmousedown: (event) => { event.preventDefault(); take(item.value); },
    }, el("span", { text: item.name }), el("small", { text: item.about ?? "" }))));
    list.hidden = !shown.length;
    input.setAttribute("aria-expanded", String(shown.length > 0));
    mark(all ? shown.findIndex((item) => item.value === taken) : shown.length ? 0 : -1);
  };
  const take = (key) => { taken = key; input.value = nameOf(key); close(); changed(key); };

  input.addEventListener("focus", () => { input.select(); open(true); });
  input.addEventListener("click", () => { if (list.hidden) open(true); });
  input.addEventListener("input", () => open(false));
  input.addEventListener("blur", () => {
    close();
    if (free && input.value !== nameOf(taken)) take(input.value.trim());
    else input.value = nameOf(taken);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) open(true);
      else mark((at + (event.key === "ArrowDown" ? 1 : -1) + shown.length) % shown.length);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (!list.hidden && shown[at]) take(shown[at].value);
      else if (free) take(input.value.trim());
    } else if (event.key === "Escape" && !list.hidden) { event.preventDefault(); input.value = nameOf(taken); close(); }
  });
  input.value = nameOf(value);
  return {
    node: el("div", { class: "combo" }, input, list),
    set(key) { taken = key; if (document.activeElement !== input) input.value = nameOf(key); },
  };
}
