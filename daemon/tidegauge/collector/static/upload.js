// Dropping a file: sent as it is, with progress; then followed until the collector has taken it in.
"use strict";
{
  const form = document.getElementById("drop");
  const base = document.body.dataset.base;
  const token = document.querySelector("meta[name=csrf-token]").content;
  const [file, status, actions, progress, cancel, model] =
    ["file", "upload-status", "upload-actions", "progress", "cancel", "model-field"].map((id) => document.getElementById(id));
  const bar = progress.querySelector("progress");
  let request = null;

  const kind = () => form.elements.kind.value;
  const choose = (name) => { form.elements.kind.value = name; model.hidden = name !== "traces"; };
  const guess = (name) => {
    const lower = name.toLowerCase();
    if (lower.endsWith(".tidebundle")) choose("bundle");
    else if (/\.(onnx|tflite)$/.test(lower)) choose("model");
    else if (lower.endsWith(".zip") && !["traces", "compile"].includes(kind())) choose("traces");
  };

  const say = (text, bad = false) => {
    status.textContent = text;
    status.className = bad ? "status bad-text" : "status";
  };
  const end = () => { progress.hidden = cancel.hidden = true; request = null; };
  const offer = (text, href) => {
    const anchor = Object.assign(document.createElement("a"), { href, textContent: text, className: "button" });
    actions.replaceChildren(anchor);
  };

  const followRun = (id) => {
    const source = new EventSource(`${base}/api/v1/runs/${id}/events`);
    source.addEventListener("run", (event) => {
      const run = JSON.parse(event.data);
      if (run.state === "queued") say("Taken in; the comparison waits for its turn.");
      else if (run.state === "running") say("The layers are being compared.");
      else {
        source.close();
        end();
        say(run.sentence || run.reason, run.state === "failed");
        if (run.state === "done") offer("Open the report", `${base}/reports/runs/${id}/report.html`);
      }
    });
  };

  const follow = (id) => {
    const source = new EventSource(`${base}/api/v1/uploads/${id}/events`);
    source.addEventListener("upload", (event) => {
      const upload = JSON.parse(event.data);
      if (upload.state === "done") {
        source.close();
        const { run, device, bundle } = upload.result;
        if (run) return followRun(run);
        end();
        say("Taken in.");
        if (bundle) offer("Open the bundle", `${base}/bundles/${device}/${bundle}`);
        else offer("See the models", `${base}/models`);
      } else if (upload.state === "failed") {
        source.close();
        end();
        say(upload.problem, true);
      } else say("It is here and is being checked.");
    });
  };

  const send = (chosen) => {
    if (request) return say("One at a time: wait until this one is here, or cancel it.", true);
    guess(chosen.name);
    actions.replaceChildren();
    progress.hidden = cancel.hidden = false;
    bar.value = 0;
    say(`Sending ${chosen.name}.`);
    request = new XMLHttpRequest();
    const query = new URLSearchParams({ name: chosen.name });
    if (kind() === "traces" && form.elements.model.value) query.set("model", form.elements.model.value);
    request.open("POST", `${form.dataset.action}/${kind()}?${query}`);
    request.setRequestHeader("content-type", "application/octet-stream");
    request.setRequestHeader("x-csrf-token", token);
    request.upload.onprogress = (event) => {
      if (!event.lengthComputable) return;
      bar.value = event.loaded / event.total;
      say(`Sending ${chosen.name}: ${Math.floor((100 * event.loaded) / event.total)} %`);
    };
    request.onload = () => {
      let said = {};
      try { said = JSON.parse(request.responseText); } catch { /* not the API's answer: its status says enough */ }
      if (request.status === 202) {
        bar.removeAttribute("value"); // how long checking takes is not known
        cancel.hidden = true;
        follow(said.upload);
      } else {
        const problem = said.detail || `The collector answers ${request.status}.`;
        end();
        say(problem, true);
      }
    };
    request.onerror = () => { end(); say("The connection broke. Nothing was taken in; send it again.", true); };
    request.onabort = () => { end(); say("Cancelled. Nothing was taken in."); };
    request.send(chosen);
  };

  form.addEventListener("change", (event) => {
    if (event.target.name === "kind") choose(kind());
    if (event.target === file && file.files.length) { send(file.files[0]); file.value = ""; }
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  cancel.addEventListener("click", () => request && request.abort());
  for (const name of ["dragenter", "dragover"]) {
    form.addEventListener(name, (event) => { event.preventDefault(); form.classList.add("over"); });
  }
  for (const name of ["dragleave", "drop"]) form.addEventListener(name, () => form.classList.remove("over"));
  form.addEventListener("drop", (event) => {
    event.preventDefault();
    const dropped = event.dataTransfer.files;
    if (dropped.length > 1) say("One file at a time; zip a folder first.", true);
    else if (dropped.length) send(dropped[0]);
  });
}
