// Keeps a page with <main data-live> up to date: fetches it again and swaps the content in only when it has changed.
"use strict";
const PERIOD_MS = 4000;
const main = document.querySelector("main[data-live]");

async function refresh() {
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  if (!fresh || fresh.innerHTML === main.innerHTML) return;
  const open = [...main.querySelectorAll("details")].map((item) => item.open);
  const busy = main.contains(document.activeElement) || !getSelection().isCollapsed;
  if (busy) return; // never take a focused link or a selection away from its reader
  main.replaceChildren(...fresh.childNodes);
  main.querySelectorAll("details").forEach((item, index) => { item.open = Boolean(open[index]); });
}

if (main) {
  setInterval(() => {
    if (document.visibilityState === "visible") refresh().catch(() => undefined); // the next turn tries again
  }, PERIOD_MS);
}
