// Draws a device's past with Plotly: curves and events on one time axis, told apart by dash and marker as well as by
// colour (Okabe and Ito's, which colour-blind people tell apart). The page has the same as tables.
"use strict";
{
  const plot = document.getElementById("timeline");
  const problem = document.getElementById("timeline-problem");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 40rem)");
  const LINES = [["#0072B2", "#56B4E9", "solid", "circle"], ["#D55E00", "#E69F00", "dash", "square"], ["#009E73", "#2CC89B", "dot", "diamond"], ["#A8518A", "#E3A1C8", "dashdot", "x"]];
  const KINDS = [["alarm", "alarms", "triangle-up"], ["capture", "captures", "diamond"], ["reboot", "reboots", "x-thin"], ["restart", "agent restarts", "line-ns"], ["version", "versions", "square"], ["artifacts", "artifacts", "hexagram"]];
  const MARKS = { alarm: 1, capture: 0, reboot: 3, restart: 3, version: 2, artifacts: 2 };

  const color = (index) => LINES[index % LINES.length][dark.matches ? 1 : 0];
  const two = (number) => String(number).padStart(2, "0");
  // Plotly's time axis knows no zones: it is given the viewer's own time, as text.
  const local = (seconds) => {
    const at = new Date(seconds * 1000);
    return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  };

  const line = (name, index, axis, at, y, more = {}) => ({
    name, x: at.map(local), y, yaxis: axis, type: "scatter", mode: at.length > 60 ? "lines" : "lines+markers",
    line: { color: color(index), width: 2, dash: LINES[index % LINES.length][2] },
    marker: { symbol: LINES[index % LINES.length][3], size: 6, color: color(index) },
    customdata: at.map(window.tide.utc), hovertemplate: "%{y:.3g}<br>%{customdata}", connectgaps: false, ...more,
  });

  const traces = (data) => {
    const found = [
      line("mean loss", 0, "y", data.loss.at, data.loss.mean),
      line("largest loss", 1, "y", data.loss.at, data.loss.most),
      ...data.evidence.map((each, index) => line(`${each.detector} evidence`, index + 2, "y2", each.at, each.share)),
      line("mean °C", 0, "y3", data.temperature.at, data.temperature.mean),
      line("highest °C", 1, "y3", data.temperature.at, data.temperature.most),
    ].filter((trace) => trace.y.some((value) => value !== null));
    const rows = KINDS.filter(([kind]) => data.marks.some((mark) => mark.kind === kind));
    for (const [kind, words, symbol] of rows) {
      const marks = data.marks.filter((mark) => mark.kind === kind);
      found.push({
        name: words, x: marks.map((mark) => local(mark.at)), y: marks.map(() => words), yaxis: "y4", type: "scatter", mode: "markers",
        marker: { symbol, size: 12, color: color(MARKS[kind]), line: { width: 2, color: color(MARKS[kind]) } }, text: marks.map((mark) => mark.text),
        customdata: marks.map((mark) => [window.tide.utc(mark.at), mark.path]), hovertemplate: "%{text}<br>%{customdata[0]}<extra></extra>", showlegend: false,
      });
    }
    return found;
  };

  // Rows from the bottom: events, then what was measured.
  const layout = (data, drawn) => {
    const style = getComputedStyle(document.body);
    const [ink, grid, muted] = ["--ink", "--line", "--muted"].map((name) => style.getPropertyValue(name).trim());
    const has = (axis) => drawn.some((trace) => trace.yaxis === axis);
    const events = new Set(drawn.filter((trace) => trace.yaxis === "y4").map((trace) => trace.name)).size;
    const rows = [["y4", Math.max(0.4, 0.24 * events)], ["y3", 1], ["y2", 1], ["y", 1]].filter(([axis]) => has(axis));
    const sum = rows.reduce((total, [, share]) => total + share, 0);
    const gap = 0.05;
    const found = {};
    let low = 0;
    for (const [axis, share] of rows) {
      const height = (share / sum) * (1 - gap * (rows.length - 1));
      found[axis] = [low, low + height];
      low += height + gap;
    }
    const axis = (name, title, more = {}) => ({
      domain: found[name] || [0, 0.001], visible: Boolean(found[name]), title: { text: narrow.matches ? "" : title, standoff: 8 }, gridcolor: grid, zeroline: false, fixedrange: true,
      automargin: true, tickfont: { color: muted }, nticks: 5, ...more,
    });
    const height = 88 + rows.reduce((total, [name, share]) => total + (name === "y4" ? 34 + 26 * events : 150), 0);
    return {
      height, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, family: style.fontFamily, size: 13 }, margin: { l: 60, r: 32, t: 36, b: 52 },
      hovermode: "closest", dragmode: "pan", showlegend: true, legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0, font: { size: 12 } },
      hoverlabel: { font: { family: style.fontFamily } },
      // Beyond the end by so much that the mark of what has just happened is whole.
      xaxis: { type: "date", range: [local(data.since), local(data.until + 0.015 * (data.until - data.since))], gridcolor: grid, anchor: rows.length ? rows[0][0] : "y", tickfont: { color: muted }, fixedrange: true },
      yaxis: axis("y", "Loss", { rangemode: "tozero" }), yaxis2: axis("y2", "Share of limit", { tickformat: ".0%", rangemode: "tozero" }),
      yaxis3: axis("y3", "°C"), yaxis4: axis("y4", "", { type: "category", nticks: 0, showgrid: false }),
      shapes: found.y2 ? [{ type: "line", xref: "paper", x0: 0, x1: 1, yref: "y2", y0: 1, y1: 1, line: { color: color(1), width: 1, dash: "dash" } }] : [],
      annotations: found.y2 ? [{ xref: "paper", x: 1, yref: "y2", y: 1, text: "limit: alarm", showarrow: false, xanchor: "right", yanchor: "bottom", font: { size: 11, color: muted } }] : [],
    };
  };

  let data = null;
  const draw = () => {
    const drawn = traces(data);
    const shape = layout(data, drawn);
    plot.style.height = `${shape.height}px`;
    return Plotly.react(plot, drawn, shape, { displayModeBar: false, responsive: true });
  };

  const load = async () => {
    try {
      const answer = await fetch(plot.dataset.source, { headers: { accept: "application/json" } });
      if (!answer.ok) throw new Error(`the collector answers ${answer.status}`);
      data = await answer.json();
      await draw();
      problem.hidden = true;
      plot.dataset.drawn = "yes";
    } catch (error) {
      problem.hidden = false;
      problem.textContent = `The timeline can't be drawn (${error.message}); the tables below have it all.`;
    }
  };

  if (plot) {
    load().then(() => {
      if (!plot.on) return;
      plot.on("plotly_click", (event) => {
        const path = event.points[0].customdata[1];
        if (event.points[0].yaxis._name === "yaxis4" && path) location.href = document.body.dataset.base + path;
      });
    });
    for (const query of [dark, narrow]) query.addEventListener("change", () => data && draw());
    // Another hour of history, alarm or capture has come: the curves are fetched anew.
    document.querySelector("main").addEventListener("refreshed", load);
  }
}
