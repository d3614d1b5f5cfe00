// The frame: which of the three pages is shown, language, theme.
import { w } from "./dom.js";
import { showPlan } from "./plan.js";
import { showRuns } from "./runs.js";
import { showTalk } from "./talk.js";

const PAGES = { plan: showPlan, runs: showRuns, talk: showTalk };
const main = document.getElementById("content");
let leave = () => {};

export function go(address) {
  history.pushState(null, "", address);
  show();
}

function show() {
  const tab = location.pathname.slice(1) || "plan";
  for (const link of document.querySelectorAll("nav [data-tab]")) {
    if (link.dataset.tab === tab) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${w(tab)} · onecard`;
  leave();
  main.replaceChildren();
  leave = PAGES[tab]?.(main, new URLSearchParams(location.search)) ?? (() => {});
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-tab], a[data-inside]");
  if (!link || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  if (link.dataset.tab) remembered[location.pathname] = location.search;
  go(link.dataset.tab ? link.pathname + (remembered[link.pathname] ?? "") : link.href);
  main.focus({ preventScroll: true });
});
const remembered = {};
addEventListener("popstate", show);

const theme = document.getElementById("theme");
theme.value = document.documentElement.dataset.theme ?? "";
theme.addEventListener("change", () => {
  if (theme.value) document.documentElement.dataset.theme = theme.value;
  else delete document.documentElement.dataset.theme;
  try { localStorage.setItem("theme", theme.value); } catch { /* kept for this visit only */ }
  show();
});
document.getElementById("language").addEventListener("change", (event) => {
  document.cookie = `lang=${event.target.value}; Path=/; Max-Age=31536000; SameSite=Strict`;
  location.reload();
});
show();
