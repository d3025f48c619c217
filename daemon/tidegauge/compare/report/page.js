"use strict";
(() => {
  const layers = JSON.parse(document.getElementById("layers").textContent);
  const detail = document.getElementById("detail");
  const groups = [...document.querySelectorAll("g.layer")];
  const show = (index, focus) => {
    groups.forEach((group) => {
      const on = Number(group.dataset.index) === index;
      group.classList.toggle("on", on);
      group.setAttribute("tabindex", on ? "0" : "-1");
      if (on && focus) { group.focus(); group.scrollIntoView({ block: "nearest", inline: "nearest" }); }
    });
    const layer = layers[index];
    if (!layer || !detail) return;
    detail.replaceChildren();
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
    group.addEventListener("click", () => show(index, true));
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
  document.querySelectorAll("[data-show]").forEach((button) =>
    button.addEventListener("click", () => show(Number(button.dataset.show), true)));
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
