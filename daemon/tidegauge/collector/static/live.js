// Keeps <main data-live="PATH"> up to date. The server tells by an event when the page says something else; then the
// page is fetched once, and of its parts (data-part) those that differ are put in. Focus and open details stay.
"use strict";
{
  const main = document.querySelector("main[data-live]");
  const mark = document.querySelector("[data-live-mark]");
  const parts = (root) => new Map([...root.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
  const sent = new Map(); // each part as the server sent it: what is shown has local times in it

  const say = (text, tone) => {
    if (!mark) return;
    mark.hidden = false;
    mark.textContent = text;
    mark.className = `live ${tone}`;
  };

  const address = (element) => {
    if (!element || element === document.body) return "";
    if (element.id) return `#${CSS.escape(element.id)}`;
    const href = element.getAttribute("href");
    return href ? `a[href="${CSS.escape(href)}"]` : "";
  };

  const put = (part, fresh) => {
    const selection = getSelection();
    if (!selection.isCollapsed && part.contains(selection.anchorNode)) return false; // somebody copies from it
    const focused = part.contains(document.activeElement) ? address(document.activeElement) : "";
    const open = [...part.querySelectorAll("details")].map((item) => item.open);
    const written = [...part.querySelectorAll("input[id], select[id]")].map((field) => [field.id, field.value]);
    part.replaceChildren(...fresh.childNodes);
    part.querySelectorAll("details").forEach((item, index) => { item.open = Boolean(open[index]); });
    for (const [id, value] of written) {
      const field = document.getElementById(id);
      if (field && value) field.value = value;
    }
    if (focused) part.querySelector(focused)?.focus({ preventScroll: true });
    window.tide.times(part);
    return true;
  };

  const refresh = async () => {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!answer.ok || answer.redirected) throw new Error(`${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    if (!page) throw new Error("no page");
    const [old, now] = [parts(main), parts(page)];
    if ([...now.keys()].join() !== [...old.keys()].join()) { // a part has come or gone
      if (main.querySelector("form :focus, .plot")) return false;
      main.replaceChildren(...page.childNodes);
      remember();
      window.tide.times(main);
    } else {
      for (const [name, fresh] of now) {
        const html = fresh.innerHTML;
        if (html !== sent.get(name) && put(old.get(name), fresh)) sent.set(name, html);
      }
    }
    main.dataset.version = page.dataset.version;
    main.dispatchEvent(new CustomEvent("refreshed", { detail: page }));
    return true;
  };

  const remember = () => {
    sent.clear();
    for (const [name, part] of parts(main)) sent.set(name, part.innerHTML);
  };

  let source = null;
  let running = false;
  let wanted = "";

  const update = async () => {
    if (running) return;
    running = true;
    try {
      while (wanted !== main.dataset.version) {
        const before = main.dataset.version;
        if (!(await refresh()) || before === main.dataset.version) break;
      }
      say("live", "good");
    } catch {
      say("not live", "warn"); // the next event tries again
    } finally {
      running = false;
    }
  };

  const listen = () => {
    if (source || document.visibilityState !== "visible") return;
    source = new EventSource(main.dataset.live);
    source.addEventListener("version", (event) => {
      wanted = event.data;
      say("live", "good");
      if (wanted !== main.dataset.version) update();
    });
    source.addEventListener("error", () => {
      say("not live", "warn");
      if (source && source.readyState === EventSource.CLOSED) { // refused, not lost: the browser won't try again
        source = null;
        setTimeout(listen, 30000);
      }
    });
  };

  const hush = () => {
    if (source) source.close();
    source = null;
  };

  if (main) {
    remember(); // this script comes before the one that makes times local
    listen();
    // A browser has six connections to a host: pages that nobody looks at take none.
    document.addEventListener("visibilitychange", () => (document.visibilityState === "visible" ? listen() : hush()));
    addEventListener("pagehide", hush);
    addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
  }
}
