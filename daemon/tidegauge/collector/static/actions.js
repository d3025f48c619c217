// Forms that ask the API for something, and say what became of it. Without scripts they do nothing; the CLI does it all.
"use strict";
{
  const base = document.body.dataset.base;
  const token = document.querySelector("meta[name=csrf-token]").content;

  const send = async (path, body) => {
    const answer = await fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json", "x-csrf-token": token, accept: "application/json" },
      body: JSON.stringify(body),
    });
    const said = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(said.detail || `The collector answers ${answer.status}.`);
    return said;
  };

  const link = (status, text, href) => {
    const anchor = document.createElement("a");
    anchor.href = href;
    anchor.textContent = text;
    status.append(" ", anchor);
  };

  // Follow something until it has ended; `show` puts its state into words.
  const follow = (path, name, over, show) => {
    const source = new EventSource(path);
    source.addEventListener(name, (event) => {
      const row = JSON.parse(event.data);
      show(row);
      if (over.includes(row.state)) source.close();
    });
  };

  const kinds = {
    rejudge: async (form, status) => {
      const body = {};
      for (const field of form.querySelectorAll("input[type=number]")) {
        if (field.value !== "") body[field.name] = Number(field.value);
      }
      if (!Object.keys(body).length) throw new Error("Give at least one of the two.");
      const run = await send(form.dataset.action, body);
      follow(`${base}/api/v1/runs/${run.run}/events`, "run", ["done", "failed"], (row) => {
        status.textContent = { queued: "Waits for its turn.", running: "Being judged again." }[row.state] || row.sentence || row.reason;
        if (row.state === "done") link(status, "Open the report", `${base}/reports/runs/${row.run}/report.html`);
      });
      return "Asked.";
    },
    pin: async (form) => {
      const bundle = await send(form.dataset.action, { pinned: form.dataset.pinned !== "true" });
      form.dataset.pinned = String(bundle.pinned);
      form.querySelector("button").textContent = bundle.pinned ? "Unpin" : "Pin";
      return bundle.pinned ? "Pinned: it is kept." : "No longer pinned.";
    },
    command: async (form, status) => {
      const command = await send(form.dataset.action, { type: form.elements.type.value });
      follow(`${base}/api/v1/commands/${command.command}/events`, "command", ["done", "refused", "failed"], (row) => {
        status.textContent = [row.state, row.step, row.sentence || row.reason, row.cure].filter(Boolean).join(" · ");
      });
      return "Sent.";
    },
  };

  // For the whole document: a live page puts forms in anew.
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.dataset.kind) return;
    event.preventDefault();
    const [button, status] = [form.querySelector("button[type=submit]"), form.querySelector(".status")];
    button.disabled = true;
    status.className = "status";
    try {
      status.textContent = await kinds[form.dataset.kind](form, status);
    } catch (error) {
      status.className = "status bad-text";
      status.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  });
}
