// Small helpers: elements, words, numbers. Text goes in as text, never as markup.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
export const boot = read("boot");
export const words = read("words");
export const lang = document.documentElement.lang;

export function w(key, values = {}) {
  return (words[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "text") node.textContent = value;
    else if (key === "value" || key === "checked") node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// `Commands` in a sentence are set as code.
export function marked(text) {
  return text.split(/`([^`]+)`/).map((part, i) => (i % 2 ? el("code", { text: part }) : part));
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

export function color(number) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--c${number % 8}`).trim();
}

export function toast(text, milliseconds = 2500) {
  const place = document.getElementById("toast");
  place.textContent = text;
  place.classList.add("shown");
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => place.classList.remove("shown"), milliseconds);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // a page that is not served over https from another machine has no clipboard
    const field = el("textarea", { value: text, class: "hidden" });
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  toast(w("copied"));
}

export function save(name, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 5000);
}

export class Refused extends Error {}
const sentence = (error) => [error.message, error.hint].filter(Boolean).join(" · ");

export async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(w("offline"));
  }
  const body = await answer.json();
  if (body.error) {
    throw new Refused(sentence(body.error));
  }
  return body;
}

// What the server sends as it happens. `trouble` gets a sentence while nothing can come, and "" when it does again. Returns what ends it.
export function live(path, show, trouble) {
  let source, later, lost = null;
  const report = (words) => { clearTimeout(lost); lost = null; trouble(words); };
  const open = () => {
    source = new EventSource(path);
    source.onopen = () => report("");
    source.onmessage = (event) => show(JSON.parse(event.data));
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) refused();
      else lost ??= setTimeout(() => trouble(w("offline")), 2000); // the browser tries again by itself
    };
  };
  const refused = async () => {
    const turn = new AbortController();
    try {
      const answer = await fetch(path, { signal: turn.signal });
      report(answer.ok ? "" : sentence((await answer.json()).error));
    } catch { report(w("offline")); }
    turn.abort();
    later = setTimeout(open, 5000);
  };
  open();
  return () => { clearTimeout(later); clearTimeout(lost); source.onerror = null; source.close(); };
}

const locale = lang === "hi" ? "hi-IN-u-nu-latn" : lang;
const cached = new Map();
export function number(value, digits = 3) {
  if (!cached.has(digits)) cached.set(digits, new Intl.NumberFormat(locale, { maximumSignificantDigits: digits }));
  return Number.isFinite(value) ? cached.get(digits).format(value) : "–";
}

export function short(value) {
  const size = Math.abs(value);
  for (const [limit, letter] of [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "B"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= limit) return `${number(value / (letter === "k" ? 1e3 : limit), 4)} ${letter}`;
  }
  return number(value, 5);
}
