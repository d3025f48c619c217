// Times in the viewer's own zone, with UTC on hover; ages that grow. The page says UTC where scripts are off.
"use strict";
const tide = (window.tide = window.tide || {});

tide.local = (seconds) => new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
tide.utc = (seconds) => new Date(seconds * 1000).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");

{
  // What the viewer's clock is ahead of the collector's: ages are by the collector's.
  const main = document.querySelector("main[data-now]");
  const ahead = main ? Date.now() / 1000 - Number(main.dataset.now) : 0;

  const age = (seconds) => {
    const past = Math.max(0, Date.now() / 1000 - ahead - seconds);
    for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
      if (past >= length) return `${Math.floor(past / length)} ${unit} ago`;
    }
    return `${Math.floor(past)} s ago`;
  };

  const set = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };

  tide.times = (root) => {
    for (const element of root.querySelectorAll("time[datetime]")) {
      const seconds = Date.parse(element.dateTime) / 1000;
      if (!Number.isFinite(seconds)) continue;
      if (element.dataset.ago !== undefined) {
        set(element, age(Number(element.dataset.ago)));
        element.title = `${tide.local(seconds)} (${tide.utc(seconds)})`;
      } else {
        set(element, tide.local(seconds));
        element.title = tide.utc(seconds);
      }
    }
  };
  tide.times(document);
  setInterval(() => tide.times(document), 5000);
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const said = document.querySelector("[data-zone]");
  if (said && zone) said.textContent = zone === "UTC" ? "Times are UTC; point at one for its seconds." : `Times are ${zone}; point at one for UTC.`;
}
