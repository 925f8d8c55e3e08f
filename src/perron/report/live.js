"use strict";
// Asks the server how far the run is, and updates the page in place: what was scrolled to, and switched on or off, stays so.
(() => {
const { studies, redraw, show, table } = window.perron, study = studies[0];
const FAST = 2000, SLOW = 10000; // milliseconds between two questions, while the run is in progress and otherwise
const at = (id) => document.getElementById(id), panel = at("curves"), title = document.title;
let timer = 0, asking = false;

const items = (list) => list.map((text) => { const item = document.createElement("li"); item.textContent = text; return item; });
function write(id, ...content) { // only what has changed: screen readers read it out
  const key = JSON.stringify(content.flat());
  if (at(id).dataset.shown === key) return;
  at(id).dataset.shown = key;
  at(id).replaceChildren(...(Array.isArray(content[0]) ? items(content[0]) : content));
}

// What can be chosen: if that is as before, the lines are drawn again; otherwise the panel is made again.
const choices = (curves) => JSON.stringify([curves.metrics, curves.dimensions]);

function keepView(old, now) {
  const view = study.view, name = old.metrics[view.metric].name;
  view.metric = Math.max(0, now.metrics.findIndex((metric) => metric.name === name));
  view.shown = now.dimensions.map((dimension, place) => {
    const off = new Set(old.dimensions[place].values.filter((_, value) => !view.shown[place].has(value)));
    return new Set([...dimension.values.keys()].filter((value) => !off.has(dimension.values[value])));
  });
}

function draw(curves) {
  panel.hidden = !curves;
  at("nothing").hidden = Boolean(curves);
  if (!curves) return;
  const old = study.curves;
  if (old && choices(old) === choices(curves)) {
    Object.assign(old, curves); // the panel holds this object
    redraw.get(panel)();
    return;
  }
  if (old) keepView(old, curves);
  study.curves = curves;
  panel.dataset.chart = "curves";
  panel.style.minHeight = `${panel.offsetHeight}px`; // or the page would become shorter for a moment, and scroll
  panel.querySelectorAll(".js-plotly-plot").forEach((box) => Plotly.purge(box));
  const focus = document.activeElement, label = panel.contains(focus) && (focus.getAttribute("aria-label") || focus.closest("label")?.textContent);
  panel.replaceChildren();
  show(panel);
  redraw.get(panel)();
  panel.style.minHeight = "";
  if (label) [...panel.querySelectorAll("input, select, button")].find((one) => (one.getAttribute("aria-label") || one.closest("label")?.textContent) === label)?.focus();
}

function update(now) {
  document.title = `${now.state} – ${title}`;
  write("state", now.state);
  write("details", now.details);
  at("share").value = now.share ?? 0;
  at("share").hidden = now.share === null;
  write("chips", now.chips);
  write("alerts-title", now.alerts_title);
  write("messages", now.alerts);
  at("alerts").hidden = !now.alerts.length;
  at("report").hidden = !now.report;
  const fresh = table(now.table.title, now.table.columns, now.table.rows), shown = at("tracks").querySelector("table");
  if (shown?.caption.textContent === now.table.title) shown.tBodies[0].replaceWith(fresh.querySelector("tbody")); // stays scrolled
  else at("tracks").replaceChildren(fresh);
  at("tracks").hidden = !now.table.rows.length;
  draw(now.curves);
}

async function ask() {
  if (asking || document.hidden) return;
  asking = true;
  clearTimeout(timer);
  let wait = SLOW;
  try {
    const answer = await fetch("data", { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    const now = await answer.json();
    update(now);
    if (now.running) wait = FAST;
    document.documentElement.dataset.updated = String(1 + Number(document.documentElement.dataset.updated || 0));
  } catch (error) {
    document.title = `not updated – ${title}`;
    write("state", "Not updated any more: perron watch --web does not answer.");
    write("details", error.message);
  } finally {
    asking = false;
    timer = setTimeout(ask, wait);
  }
}
document.addEventListener("visibilitychange", ask);
ask();
})();
