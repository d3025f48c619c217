"use strict";
(() => {
  const layers = JSON.parse(document.getElementById("layers").textContent);
  const detail = document.getElementById("detail");
  const groups = [...document.querySelectorAll("g.layer")];
  const nodes = [...document.querySelectorAll("g.node")];
  const close = () => detail.classList.remove("pinned");
  // What was asked for by a click must be seen, wherever on the page the click was; what is only passed over, not.
  const pin = (index, focus) => {
    show(index, focus);
    detail?.classList.add("pinned");
  };
  const show = (index, focus) => {
    groups.forEach((group) => {
      const on = Number(group.dataset.index) === index;
      group.classList.toggle("on", on);
      group.setAttribute("tabindex", on ? "0" : "-1");
      if (on && focus) { group.focus(); group.scrollIntoView({ block: "nearest", inline: "nearest" }); }
    });
    nodes.forEach((node) => node.classList.toggle("on", Number(node.dataset.index) === index));
    const layer = layers[index];
    if (!layer || !detail) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "close";
    button.textContent = "Close";
    button.addEventListener("click", close);
    detail.replaceChildren(button);
    const title = document.createElement("h3");
    title.textContent = layer.title;
    detail.append(title);
    const reason = document.createElement("p");
    reason.textContent = layer.reason;
    detail.append(reason);
    const list = document.createElement("ul");
    list.className = "facts";
    for (const [name, value] of layer.facts) {
      const item = document.createElement("li");
      const label = document.createElement("span");
      label.textContent = name;
      const bold = document.createElement("b");
      bold.textContent = value;
      item.append(label, bold);
      list.append(item);
    }
    detail.append(list);
  };
  groups.forEach((group, position) => {
    const index = Number(group.dataset.index);
    group.addEventListener("click", () => pin(index, true));
    group.addEventListener("focus", () => show(index, false));
    group.addEventListener("mouseenter", () => show(index, false));
    group.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, Home: -position, End: groups.length - 1 - position }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      const next = groups[position + step];
      if (next) show(Number(next.dataset.index), true);
    });
  });
  const drawing = document.getElementById("network");
  if (drawing) {
    const whole = { x: 0, y: 0, w: Number(drawing.dataset.width), h: Number(drawing.dataset.height) };
    let view = { ...whole };
    const apply = () => drawing.setAttribute("viewBox", `${view.x} ${view.y} ${view.w} ${view.h}`);
    const zoom = (factor, x, y) => {
      const f = Math.min(Math.max(view.w * factor, 150), whole.w * 4) / view.w;
      view = { x: x - (x - view.x) * f, y: y - (y - view.y) * f, w: view.w * f, h: view.h * f };
      apply();
    };
    const at = (event) => {
      const box = drawing.getBoundingClientRect();
      const scale = Math.max(view.w / box.width, view.h / box.height);
      return {
        scale,
        x: view.x + view.w / 2 + (event.clientX - box.left - box.width / 2) * scale,
        y: view.y + view.h / 2 + (event.clientY - box.top - box.height / 2) * scale,
      };
    };
    const centre = (node) => {
      const box = node.querySelector("rect"), frame = drawing.getBoundingClientRect();
      const x = Number(box.getAttribute("x")) + 88, y = Number(box.getAttribute("y")) + 17;
      const w = Math.min(Math.max(frame.width, 300), 900), h = (w * frame.height) / Math.max(frame.width, 1);
      view = { x: x - w / 2, y: y - h / 2, w, h };
      apply();
    };
    drawing.addEventListener("wheel", (event) => {
      event.preventDefault();
      const point = at(event);
      zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, point.x, point.y);
    }, { passive: false });
    let from = null, moved = false;
    drawing.addEventListener("pointerdown", (event) => { from = event; moved = false; });
    drawing.addEventListener("pointermove", (event) => {
      if (!from) return;
      const { scale } = at(event);
      const dx = (event.clientX - from.clientX) * scale, dy = (event.clientY - from.clientY) * scale;
      if (!moved && Math.hypot(event.clientX - from.clientX, event.clientY - from.clientY) < 4) return;
      if (!moved) drawing.setPointerCapture(event.pointerId);
      moved = true;
      drawing.classList.add("moving");
      view.x -= dx; view.y -= dy; from = event;
      apply();
    });
    const end = () => { from = null; drawing.classList.remove("moving"); };
    drawing.addEventListener("pointerup", end);
    drawing.addEventListener("pointercancel", end);
    nodes.forEach((node) => node.addEventListener("click", () => { if (!moved) pin(Number(node.dataset.index), false); }));
    document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
      const x = view.x + view.w / 2, y = view.y + view.h / 2;
      if (button.dataset.zoom === "fit") { view = { ...whole }; apply(); } else zoom(button.dataset.zoom === "in" ? 1 / 1.4 : 1.4, x, y);
    }));
    const start = nodes.find((node) => node.dataset.index === document.body.dataset.first) ?? nodes[0];
    const frame = drawing.getBoundingClientRect();
    // Where the whole would be too small to read, the first culprit and what stands around it are shown first.
    if (start && (whole.w > frame.width * 1.3 || whole.h > frame.height * 1.3)) centre(start);
    drawing.addEventListener("tidegauge-centre", (event) => { const node = nodes.find((n) => Number(n.dataset.index) === event.detail); if (node) centre(node); });
  }
  const filter = document.getElementById("filter"), only = document.getElementById("only");
  if (filter && only) {
    const rows = [...document.querySelectorAll("tr[data-verdict]")], shown = document.getElementById("shown");
    const update = () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      rows.forEach((row) => {
        const text = row.textContent.toLowerCase();
        const fits = (!only.value || row.dataset.verdict === only.value) && words.every((word) => text.includes(word));
        row.hidden = !fits;
        count += fits;
      });
      shown.textContent = `${count} of ${rows.length} layers`;
    };
    filter.addEventListener("input", update);
    only.addEventListener("change", update);
    update();
    rows.forEach((row) => row.addEventListener("click", () => {
      pin(Number(row.dataset.row), false);
      drawing?.dispatchEvent(new CustomEvent("tidegauge-centre", { detail: Number(row.dataset.row) }));
    }));
  }
  document.querySelectorAll("[data-show]").forEach((button) =>
    button.addEventListener("click", () => show(Number(button.dataset.show), true)));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && detail) close(); });
  document.querySelectorAll("[data-copy]").forEach((button) =>
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copy).textContent;
      const before = button.textContent;
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        const range = document.createRange();
        range.selectNodeContents(document.getElementById(button.dataset.copy));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        button.textContent = "Selected: press Ctrl+C";
      }
      setTimeout(() => { button.textContent = before; }, 2500);
    }));
  document.querySelectorAll("table.sortable").forEach((table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.key ?? row.cells[column].textContent;
      const body = table.tBodies[0];
      [...body.rows].sort((a, b) => {
        const x = key(a), y = key(b);
        if (x === "" || y === "") return (x === "") - (y === "");
        const order = Number.isNaN(Number(x)) || Number.isNaN(Number(y)) ? x.localeCompare(y) : Number(x) - Number(y);
        return down ? -order : order;
      }).forEach((row) => body.append(row));
    }));
  });
  if (groups.length) show(Number(document.body.dataset.first), false);
})();
