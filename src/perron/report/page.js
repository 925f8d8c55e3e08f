"use strict";
// Draws with plotly what the page's data say, and makes the controls: real inputs, so that a keyboard reaches all of them.
(() => {
const STUDIES = JSON.parse(document.getElementById("data").textContent).studies;
const COLORS = 8;
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const STROKES = { solid: "", dash: "6 4", dot: "2 3", dashdot: "6 3 2 3", longdash: "10 4", longdashdot: "10 3 2 3" };
const SYMBOLS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star"];
const SHAPES = [
  "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", "M-3.5,-3.5h7v7h-7z", "M0,-4.5L4.5,3.5H-4.5z", "M0,-5L5,0L0,5L-5,0z", "M0,4.5L4.5,-3.5H-4.5z",
  "M-1.5,-5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z", "M-4,-4L4,4M4,-4L-4,4", "M0,-5L1.5,-1.5L5,-1.5L2.2,1L3.2,4.5L0,2.5L-3.2,4.5L-2.2,1L-5,-1.5L-1.5,-1.5z",
];
const AXES = { step: "steps", clock: "seconds on the clock of the run", bytes: "bytes sent over all links", seconds: "seconds of simulation", epochs: "passes over the data" };
const PAGE = 660; // pixels of a chart on a printed page
const redraw = new Map(); // for each panel, the function that draws it
let printing = false;

// ---- small tools

function make(tag, attributes = {}, ...children) {
  const space = ["svg", "path", "line"].includes(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const series = (number) => css(`--c${(number % COLORS) + 1}`);
const faint = (hex, share) => hex + Math.round(255 * share).toString(16).padStart(2, "0");
const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;"); // plotly reads some HTML
function number(value, share) {
  if (value === null || value === undefined) return "–";
  if (share) return `${(100 * value).toFixed(2)} %`;
  return value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7) ? value.toExponential(3) : String(Number(value.toPrecision(4)));
}

function swatch(color, symbol, dash) {
  const picture = make("svg", { width: 30, height: 14, viewBox: "0 0 30 14", "aria-hidden": "true", focusable: "false" });
  const stroke = color < 0 ? "var(--muted)" : `var(--c${(color % COLORS) + 1})`;
  picture.append(make("line", { x1: 0, x2: 30, y1: 7, y2: 7, stroke, "stroke-width": 2.5, "stroke-dasharray": STROKES[dash] }));
  if (symbol >= 0) picture.append(make("path", { d: SHAPES[symbol % SHAPES.length], transform: "translate(15,7)", fill: stroke, stroke }));
  return picture;
}

function pick(title, options, chosen, changed) {
  const select = make("select", { "aria-label": title }, ...options.map(([value, text]) => make("option", value === chosen ? { value, selected: "" } : { value }, text)));
  select.addEventListener("change", () => changed(select.value));
  return make("label", { class: "pick" }, title, select);
}

function tick(title, on, changed) {
  const input = make("input", on ? { type: "checkbox", checked: "" } : { type: "checkbox" });
  input.addEventListener("change", () => changed(input.checked));
  return make("label", { class: "tick" }, input, title);
}

// A group of checkboxes that is the legend, too.
function choices(title, labels, shown, mark, changed) {
  const box = make("div", { class: "choices" });
  const inputs = labels.map((label, place) => {
    const input = make("input", { type: "checkbox" });
    const line = make("label", {}, input, ...[mark(place)].filter(Boolean), label);
    const set = (on) => { input.checked = on; line.classList.toggle("off", !on); shown[on ? "add" : "delete"](place); };
    input.addEventListener("change", () => { set(input.checked); changed(); });
    set(shown.has(place));
    box.append(line);
    return set;
  });
  if (labels.length > 3) {
    for (const [word, on] of [["all", true], ["none", false]]) {
      const button = make("button", { type: "button", "aria-label": `${title}: ${word}` }, word);
      button.addEventListener("click", () => { inputs.forEach((set) => set(on)); changed(); });
      box.append(button);
    }
  }
  return make("fieldset", {}, make("legend", {}, title), box);
}

function table(caption, columns, rows) {
  return make("div", { class: "table", role: "region", tabindex: 0, "aria-label": caption }, make("table", {},
    make("caption", {}, caption), make("thead", {}, make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell, place) => make(place ? "td" : "th", place ? {} : { scope: "row" }, String(cell))))))));
}

// ---- panels of lines: all charts but heat maps and networks

function grid(width, count) {
  const columns = Math.min(count, width < 560 ? 1 : count === 4 ? 2 : width < 860 && !printing ? 2 : 3);
  return { columns, rows: Math.ceil(count / columns), narrow: width < 560 };
}

function base(width, height, margin) {
  return {
    width, height, margin, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
    font: { family: "system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif", size: 12, color: css("--ink") },
    hoverlabel: { bgcolor: css("--raised"), bordercolor: css("--line"), font: { color: css("--ink") } }, annotations: [],
  };
}

function render(box, traces, layout, label) {
  const narrow = layout.width < 560 || printing;
  layout.dragmode = narrow ? false : "zoom"; // a finger scrolls the page
  box.setAttribute("aria-label", label);
  return Plotly.react(box, traces, layout, {
    displaylogo: false, displayModeBar: narrow ? false : "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  });
}

const widthOf = (box) => (printing ? PAGE : Math.max(260, box.clientWidth));

// panels: [{title, lines: [{label, x, y, color, dash, symbol, band, bars, floor, fit, guide}]}]
function plot(box, panels, o, label) {
  const width = widthOf(box), { columns, rows, narrow } = grid(width, panels.length);
  const titled = panels.some((panel) => panel.title), one = panels.length === 1;
  const notes = panels.some((panel) => panel.note) ? 18 : 0, head = titled ? 26 + notes : 12;
  const margin = { l: (narrow ? 54 : 64) + (o.curves ? 0 : 16), r: 14, t: head, b: o.names && narrow ? 90 : 50 };
  const tall = (one ? (narrow ? 280 : 400) : 215) * (printing ? 0.55 : 1), gap = { x: 18, y: (o.names && narrow ? 80 : 32) + head };
  const inner = { x: width - margin.l - margin.r, y: rows * tall + (rows - 1) * gap.y };
  const layout = base(width, inner.y + margin.t + margin.b, margin), traces = [];
  const axis = (log) => ({
    type: log ? "log" : undefined, gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false, exponentformat: "power", showline: true,
    ticks: "outside", tickcolor: css("--line"), tickfont: { size: 11 }, nticks: 6, minorloglabels: "complete",
  });
  panels.forEach((panel, place) => {
    const end = place ? place + 1 : "", column = place % columns, row = Math.floor(place / columns);
    const wide = (inner.x - (columns - 1) * gap.x) / columns;
    const left = (column * (wide + gap.x)) / inner.x, top = 1 - (row * (tall + gap.y)) / inner.y;
    const bottom = place + columns >= panels.length;
    layout[`xaxis${end}`] = {
      ...axis(o.logX), domain: [left, left + wide / inner.x], anchor: `y${end}`, matches: place ? "x" : undefined, showticklabels: bottom,
      title: { text: bottom ? safe(o.x) : "", standoff: 8, font: { size: 12 } }, ...(o.ticks ? { tickvals: o.ticks, ticktext: o.ticks.map((one) => (o.names ? safe(o.names[one]) : String(one))) } : {}),
    };
    layout[`yaxis${end}`] = {
      ...axis(o.logY), domain: [Math.max(0, top - tall / inner.y), top], anchor: `x${end}`, matches: place ? "y" : undefined, showticklabels: !column,
      title: { text: column || (!one && rows > 1 && narrow && row) ? "" : safe(o.y), standoff: 6, font: { size: 12 } }, tickformat: o.format,
    };
    if (panel.title) {
      const note = panel.note ? `<br>${safe(panel.note)}` : "";
      layout.annotations.push({ text: `<b>${safe(panel.title)}</b>${note}`, x: left, y: top, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", align: "left", showarrow: false, font: { size: 12.5 } });
    }
    for (const line of panel.lines) traces.push(...drawn(line, `x${end}`, `y${end}`, o));
  });
  return render(box, traces, layout, label);
}

// Curves that coincide: from thick to thin, none hides another.
function nest(lines) {
  lines.forEach((line, place) => { line.width = lines.length > 1 ? 5 - (3.5 * place) / (lines.length - 1) : 1.8; });
}

function drawn(line, xaxis, yaxis, o) {
  const color = line.guide ? css("--muted") : series(line.color), found = [], on = { xaxis, yaxis };
  const area = (x, low, high) => ({ ...on, x: [...x, ...[...x].reverse()], y: [...high, ...[...low].reverse()], fill: "toself", fillcolor: faint(color, 0.16), line: { width: 0 }, mode: "lines", hoverinfo: "skip", meta: "band" });
  if (line.band) {
    const kept = line.x.map((_, place) => place).filter((place) => line.y[place] !== null && (!o.logY || line.y[place] > 0) && line.band.low[place] !== null && line.band.high[place] !== null);
    const at = (values) => kept.map((place) => values[place]);
    const low = kept.map((place) => (o.logY ? Math.max(line.band.low[place], line.y[place] / 100) : line.band.low[place]));
    found.push(area(at(line.x), low, at(line.band.high)));
  }
  if (line.fit) {
    found.push(area(line.fit.x, line.fit.low, line.fit.high));
    found.push({ ...on, x: line.fit.x, y: line.fit.y, mode: "lines", line: { color: color, width: 1.5, dash: line.dash }, hoverinfo: "skip", meta: "fit" });
  }
  if (line.floor) {
    const ends = line.x.filter((x) => x !== null);
    found.push({ ...on, x: [ends.find((x) => !o.logX || x > 0), ends.at(-1)], y: [line.floor, line.floor], mode: "lines", line: { color: color, width: 1.2, dash: "2px,4px" }, hoverinfo: "skip", meta: "floor" });
  }
  const bars = line.bars && { type: "data", symmetric: false, array: line.bars.high.map((high, place) => (high === null ? 0 : high - line.y[place])), arrayminus: line.bars.low.map((low, place) => (low === null ? 0 : line.y[place] - low)), thickness: 1.3, width: 3, color: color };
  found.push({
    ...on, x: line.x, y: o.logY ? line.y.map((y) => (y > 0 ? y : null)) : line.y, name: line.label, meta: line.guide ? "guide" : "main", error_y: bars || undefined,
    mode: line.guide ? "lines" : o.dots || line.fit ? "markers" : "lines+markers",
    line: { color: color, width: line.guide ? 1.5 : line.width || 1.8, dash: line.guide ? "dash" : line.dash },
    marker: { color: color, symbol: SYMBOLS[(line.symbol ?? line.color ?? 0) % SYMBOLS.length], size: 7, maxdisplayed: o.curves ? 5 : 0 },
    hovertemplate: `<b>${safe(line.label)}</b>${o.names ? "" : `<br>${safe(o.x)} %{x}`}<br>${safe(o.y)} %{y:${o.share ? ".2%" : ".4g"}}<extra></extra>`,
  });
  return found;
}

// ---- the curves of a study

// Where a run is on an axis at a record: its clock is recorded, and other costs are those of a step.
const knownOn = (run, name) => name === "step" || (name === "clock" ? run.clock : run.per_step[name]);
const axis = (run, name, step, at) => (name === "step" ? step : name === "clock" ? run.clock[at] : step * run.per_step[name]);

function curves(panel, study) {
  const c = study.curves, dims = c.dimensions;
  const state = (study.view ??= { // what the controls say, also for a panel that is made again
    metric: 0, x: "step", logX: false, logY: !c.metrics[0].share, band: c.trials > 1 ? "error" : "none", panel: c.panel, floors: true,
    shown: c.shown.map((list) => new Set(list)),
  });
  const box = make("div", { class: "chart", role: "img" }), summary = make("p", { class: "summary", role: "status" }), about = make("p", { class: "metric" });
  const key = make("div", { class: "choices" }), values = make("div"), more = make("details", { class: "extra" }, make("summary", {}, "Last values of the curves shown, as a table"), values);
  const known = Object.keys(AXES).filter((name) => c.runs.some((run) => knownOn(run, name)));
  const floors = c.runs.some((run) => run.floor) && c.metrics.some((metric) => metric.name === "grad_norm_sq");
  const logY = tick("log y axis", state.logY, (on) => { state.logY = on; draw(); });
  const change = (name) => (value) => { state[name] = value; draw(); };
  const controls = make("div", { class: "controls" });
  if (c.metrics.length > 1) {
    controls.append(pick("Show", c.metrics.map((metric, place) => [String(place), metric.title]), String(state.metric), (value) => {
      state.metric = Number(value);
      logY.firstChild.checked = state.logY = !c.metrics[state.metric].share;
      draw();
    }));
  }
  controls.append(pick("Over", known.map((name) => [name, AXES[name]]), state.x, change("x")));
  if (dims.length) controls.append(pick("Panels", [["-1", "one for all"], ...dims.map((dim, place) => [String(place), `one for each ${dim.title.replace(/s$/, "")}`])], String(state.panel), (value) => { state.panel = Number(value); draw(); }));
  if (c.trials > 1) controls.append(pick("Band", [["none", "none"], ["error", "± 2 standard errors"], ["quantiles", `10 to 90 % of ${c.trials} trials`]], state.band, change("band")));
  controls.append(tick("log x axis", state.logX, change("logX")), logY);
  if (floors) controls.append(tick("predicted floor (dotted)", state.floors, change("floors")));
  const groups = dims.map((dim, place) => choices(dim.title, dim.values, state.shown[place], (value) => (place === c.color ? swatch(value, value, "solid") : null), () => draw()));
  panel.append(controls, ...groups, key, about, box, summary, more);

  function draw() {
    const metric = c.metrics[state.metric], visible = c.runs.filter((run) => run.at.every((value, place) => state.shown[place].has(value)));
    const lines = visible.filter((run) => knownOn(run, state.x) && run.values[metric.name]);
    const rest = dims.map((_, place) => place).filter((place) => place !== c.color && place !== state.panel);
    const name = (run, places) => places.filter((place) => state.shown[place].size > 1).map((place) => dims[place].values[run.at[place]]).join(", ");
    const combos = [...new Set(lines.map((run) => name(run, rest)))];
    const panels = new Map();
    for (const run of lines) {
      const value = run.values[metric.name];
      const all = dims.map((_, place) => place).filter((place) => place !== state.panel);
      const label = name(run, all) || (c.color >= 0 ? dims[c.color].values[run.at[c.color]] : study.name);
      const error = (sign) => value.error.map((one, place) => (one === null || value.mean[place] === null ? null : value.mean[place] + sign * 2 * one));
      const band = !value.error || state.band === "none" ? null : state.band === "error" ? { low: error(-1), high: error(1) } : { low: value.low, high: value.high };
      const title = state.panel < 0 ? "" : dims[state.panel].values[run.at[state.panel]];
      if (!panels.has(title)) panels.set(title, []);
      const color = c.color < 0 ? 0 : run.at[c.color];
      panels.get(title).push({ label, x: c.steps[value.steps ?? run.steps].map((step, at) => axis(run, state.x, step, at)), y: value.mean, color, symbol: color, dash: DASHES[combos.indexOf(name(run, rest)) % DASHES.length], band, error: value.error, floor: state.floors && metric.name === "grad_norm_sq" ? run.floor : null, title });
    }
    if (c.nested) panels.forEach(nest);
    key.replaceChildren(...(combos.length > 1 ? combos.map((text, place) => make("span", {}, swatch(-1, -1, DASHES[place % DASHES.length]), text)) : []));
    about.textContent = metric.about ? `${metric.title}: ${metric.about}` : metric.title;
    const flat = [...panels.values()].flat(), last = (line) => line.y[line.y.length - 1];
    const rows = flat.map((line) => [[line.title, line.label].filter(Boolean).join(": "), number(line.x[line.x.length - 1]), number(last(line), metric.share), line.error ? number(line.error[line.error.length - 1], metric.share) : "–"]);
    const ended = flat.filter((line) => last(line) !== null).sort((a, b) => last(a) - last(b));
    const describe = (line) => `${[line.title, line.label].filter(Boolean).join(", ")} (${number(last(line), metric.share)})`;
    summary.textContent = [
      `${flat.length} ${flat.length === 1 ? "curve" : "curves"} of the ${metric.title} over ${AXES[state.x]}.`,
      ended.length > 1 ? `At the end the lowest is ${describe(ended[0])}, the highest ${describe(ended.at(-1))}.` : "",
      ended.length < flat.length ? `${flat.length - ended.length} have no finite value at the end.` : "",
      lines.length < visible.length ? `${visible.length - lines.length} more are left out: their ${AXES[state.x]} are not known, or they have none.` : "",
      flat.length ? "" : "Tick a box in each group above to see some.",
    ].filter(Boolean).join(" ");
    values.replaceChildren(table("Last values", ["curve", AXES[state.x], metric.title, "standard error"], rows.slice(0, 200)));
    const shown = panels.size ? [...panels].map(([title, list]) => ({ title, lines: list })) : [{ title: "", lines: [] }];
    plot(box, shown, { x: AXES[state.x], y: metric.title, logX: state.logX, logY: state.logY, share: metric.share, format: metric.share ? ".0%" : undefined, curves: true }, summary.textContent);
  }
  return [box, draw];
}

// ---- charts of what was concluded

function lines(panel, study, place) {
  const chart = study.charts[place], named = (guide) => chart.panels.flatMap((one) => one.lines.filter((line) => Boolean(line.guide) === guide).map((line) => line.label));
  const guides = new Set(named(true)), labels = [...new Set([...named(false), ...guides])];
  if (named(false).every((label) => /^n = \d+$/.test(label))) labels.sort((a, b) => guides.has(a) - guides.has(b) || a.localeCompare(b, "en", { numeric: true }));
  const shown = new Set(labels.keys()), box = make("div", { class: "chart", role: "img" }), status = make("p", { class: "summary", role: "status" });
  const xs = [...new Set(chart.panels.flatMap((one) => one.lines.flatMap((line) => line.x)))];
  const ys = chart.panels.flatMap((one) => one.lines.flatMap((line) => line.y));
  const notes = chart.panels.filter((one) => one.note).map((one) => `${one.title}: ${one.note}`);
  const state = { logX: chart.log_x, logY: chart.log_y };
  const controls = make("div", { class: "controls" });
  if (!chart.names) controls.append(tick("log x axis", state.logX, (on) => { state.logX = on; draw(); }));
  if (!chart.share) controls.append(tick("log y axis", state.logY, (on) => { state.logY = on; draw(); }));
  panel.append(controls, choices("Shown", labels, shown, (one) => (guides.has(labels[one]) ? swatch(-1, -1, "dash") : swatch(one, one, "solid")), () => draw()), box, status);

  function draw() {
    const panels = chart.panels.map((one) => ({
      ...one,
      lines: one.lines.filter((line) => shown.has(labels.indexOf(line.label))).map((line) => ({ ...line, color: labels.indexOf(line.label), dash: "solid", bars: line.low ? line : null })),
    })).filter((one) => one.lines.some((line) => !line.guide));
    if (chart.nested) panels.forEach((one) => nest(one.lines));
    if (!panels.length) panels.push({ title: "", lines: [] });
    const count = panels.reduce((sum, one) => sum + one.lines.length, 0);
    status.textContent = `${count} of ${chart.panels.reduce((sum, one) => sum + one.lines.length, 0)} lines shown: ${chart.y} over ${chart.x}.`;
    const ticks = chart.names ? [...chart.names.keys()] : chart.log_x && xs.length < 9 ? apart([...xs].sort((a, b) => a - b)) : null;
    const format = chart.share ? ".0%" : Math.max(...ys) < 0.01 ? "~e" : undefined;
    plot(box, panels, { x: chart.x, y: chart.y, ...state, share: chart.share, format, dots: chart.marks === "dots", ticks, names: chart.names }, `${chart.title}. ${status.textContent} ${notes.join("; ")}`);
  }
  return [box, draw];
}

// Ticks that do not touch each other on a logarithmic axis.
function apart(values) {
  const least = 0.07 * Math.log(values.at(-1) / values[0]), kept = [];
  for (const value of values) if (!kept.length || Math.log(value / kept.at(-1)) > least) kept.push(value);
  return kept;
}

function heat(panel, study) {
  const maps = study.heat_maps, box = make("div", { class: "chart", role: "img" });
  panel.append(box);
  function draw() {
    const width = widthOf(box), { columns, rows } = grid(width, maps.length), tall = Math.max(160, 21 * maps[0].counts.length);
    const margin = { l: 44, r: 8, t: 28, b: 44 }, gap = { x: 50, y: 76 }, inner = { x: width - margin.l - margin.r, y: rows * tall + (rows - 1) * gap.y };
    const layout = base(width, inner.y + margin.t + margin.b, margin), most = Math.max(...maps.flatMap((map) => map.counts.flat()));
    const traces = maps.map((map, place) => {
      const end = place ? place + 1 : "", wide = (inner.x - (columns - 1) * gap.x) / columns;
      const left = ((place % columns) * (wide + gap.x)) / inner.x, top = 1 - (Math.floor(place / columns) * (tall + gap.y)) / inner.y;
      layout[`xaxis${end}`] = { domain: [left, left + wide / inner.x], anchor: `y${end}`, dtick: 1, title: { text: "class", standoff: 4 }, showgrid: false, zeroline: false, fixedrange: true };
      layout[`yaxis${end}`] = { domain: [Math.max(0, top - tall / inner.y), top], anchor: `x${end}`, dtick: 1, autorange: "reversed", title: { text: place % columns ? "" : "node", standoff: 4 }, showgrid: false, zeroline: false, fixedrange: true };
      layout.annotations.push({ text: `<b>${safe(map.title)}</b>`, x: left, y: top, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", showarrow: false, font: { size: 12.5 } });
      return { type: "heatmap", z: map.counts, text: map.counts, texttemplate: map.counts[0].length > 20 ? "" : "%{text}", textfont: { size: 10 }, zmin: 0, zmax: most, showscale: false, xgap: 1, ygap: 1, colorscale: [[0, css("--raised")], [1, css("--heat")]], xaxis: `x${end}`, yaxis: `y${end}`, hovertemplate: "node %{y}, class %{x}: %{z} samples<extra></extra>" };
    });
    render(box, traces, layout, `Heat maps of how many samples of each class the nodes have: ${maps.map((map) => map.title).join("; ")}. The largest number is ${most}. The numbers are in the tables below.`);
  }
  return [box, draw];
}

// ---- networks

function bezier(from, to, bend) {
  const along = [to[0] - from[0], to[1] - from[1]];
  if (!bend) return [from, to];
  const control = [(from[0] + to[0]) / 2 + bend * along[1], (from[1] + to[1]) / 2 - bend * along[0]];
  return Array.from({ length: 13 }, (_, i) => i / 12).map((t) => [0, 1].map((k) => (1 - t) ** 2 * from[k] + 2 * t * (1 - t) * control[k] + t * t * to[k]));
}

function network(panel, study) {
  const all = study.networks, box = make("div", { class: "chart", role: "img" }), status = make("p", { class: "summary", role: "status" });
  const values = make("div"), more = make("details", { class: "extra" }, make("summary", {}, "Perron weights and neighbours of each node, as a table"), values);
  let chosen = all.findIndex((one) => one.nodes === Math.max(...all.filter((other) => other.nodes <= 16).map((other) => other.nodes)));
  chosen = Math.max(0, chosen);
  if (all.length > 1) panel.append(make("div", { class: "controls" }, pick("Network", all.map((one, place) => [String(place), one.title]), String(chosen), (value) => { chosen = Number(value); draw(); })));
  panel.append(box, status, more);

  function draw() {
    const net = all[chosen], sides = ["pull", "push"].filter((side) => net[side]), symbol = { pull: "pi_A", push: "pi_B" };
    const drawable = sides.every((side) => net[side].at), width = widthOf(box), columns = width < 560 ? 1 : sides.length;
    const gap = 30, side = Math.min(440, (width - gap * (columns - 1)) / columns), rows = Math.ceil(sides.length / columns), head = 26;
    const layout = base(width, rows * (side + head), { l: 0, r: 0, t: 0, b: 0 }), traces = [];
    if (drawable) {
      sides.forEach((which, place) => {
        const end = place ? place + 1 : "", column = place % columns, row = Math.floor(place / columns), wide = (width - gap * (columns - 1)) / columns;
        const x = [column * (wide + gap) / width, (column * (wide + gap) + wide) / width], y = [1 - (row + 1) / rows, 1 - row / rows - head / (rows * (side + head))];
        const span = [0, 1].map((k) => net[which].at.map((at) => at[k])).map((list) => [Math.min(...list), Math.max(...list)]);
        const room = Math.max(span[0][1] - span[0][0], span[1][1] - span[1][0], 0.2) * 0.62;
        const range = span.map(([low, high]) => [(low + high) / 2 - room, (low + high) / 2 + room]);
        layout[`xaxis${end}`] = { domain: x, anchor: `y${end}`, visible: false, range: range[0], scaleanchor: `y${end}`, constrain: "domain" };
        layout[`yaxis${end}`] = { domain: y, anchor: `x${end}`, visible: false, range: range[1], constrain: "domain" };
        layout.annotations.push({ text: `<b>${which === "pull" ? "pull: pi_A" : "push: pi_B"}</b>`, x: (x[0] + x[1]) / 2, y: 1 - row / rows, xref: "paper", yref: "paper", xanchor: "center", yanchor: "top", showarrow: false, font: { size: 13 } });
        traces.push(...nodesAndLinks(net[which], `x${end}`, `y${end}`, side / (2 * room), symbol[which]));
      });
    } else {
      layout.height = 60;
    }
    const extreme = (which) => {
      const w = net[which].weights, high = w.indexOf(Math.max(...w)), low = w.indexOf(Math.min(...w));
      if (w[high] - w[low] < 1e-9 * w[high]) return `${symbol[which]}: all nodes count equally (${number(w[high])})`;
      return `${symbol[which]}: node ${net[which].labels[high]} counts most (${number(w[high])}), node ${net[which].labels[low]} least (${number(w[low])})`;
    };
    status.textContent = [`${net.title}${net.period > 1 ? ` (varies in time; all links of its ${net.period} steps)` : ""}.`, drawable ? "" : "It is too large to be drawn.", ...net.times, ...(net.times.length && sides.some((which) => (net[which].critical || []).length) ? ["Critical links of the first of these are drawn thick."] : []), ...sides.map((which) => `${extreme(which)}.`), ...net.advice].filter(Boolean).join(" ");
    const first = net[sides[0]];
    values.replaceChildren(table(`Nodes of ${net.title}`, ["node", ...sides.map((which) => symbol[which]), "hears"], first.labels.slice(0, 400).map((label, node) => [label, ...sides.map((which) => number(net[which].weights[node])), first.hears[node].map((one) => first.labels[one]).join(", ")])));
    render(box, traces, layout, `Drawing of the network. ${status.textContent}`);
  }
  return [box, draw];
}

function nodesAndLinks(side, xaxis, yaxis, pixels, symbol) {
  const n = side.at.length, radius = Math.min(15, Math.max(3, side.room * pixels));
  const size = side.weights.map((weight) => Math.min(46, Math.max(5, 2 * radius * Math.sqrt(n * weight))));
  const link = (pairs, arrow, critical = false) => {
    const x = [], y = [], sizes = [], stand = [];
    for (const [from, to, bend] of pairs) {
      const path = bezier(side.at[from], side.at[to], bend);
      path.forEach(([a, b], place) => { const end = arrow && place === path.length - 1; x.push(a); y.push(b); sizes.push(end ? 9 : 0); stand.push(end ? size[to] / 2 + 1 : 0); });
      x.push(null); y.push(null); sizes.push(0); stand.push(0);
    }
    return { x, y, xaxis, yaxis, hoverinfo: "skip", mode: arrow ? "lines+markers" : "lines", line: { color: css(critical ? "--bad" : "--muted"), width: critical ? 3 : 1 }, marker: { symbol: "arrow", angleref: "previous", size: sizes, standoff: stand, color: css(critical ? "--bad" : "--ink"), line: { width: 0 } } };
  };
  const back = side.lines.map(([from, to, bend]) => [to, from, -bend]);
  return [
    link(side.undirected ? side.lines : [], false), link(side.undirected ? [] : [...side.arrows, ...side.lines, ...back], true), link(side.critical || [], !side.undirected, true),
    { x: side.at.map((at) => at[0]), y: side.at.map((at) => at[1]), xaxis, yaxis, mode: n <= 40 ? "markers+text" : "markers", text: side.labels.map((label) => safe(label.slice(0, 8))), textfont: { size: 10, color: css("--ink") },
      marker: { size, color: css("--node"), opacity: 1, line: { color: css("--c1"), width: 1.5 } }, meta: symbol,
      customdata: side.weights.map((weight, node) => [number(weight), safe(side.hears[node].map((one) => side.labels[one]).join(", "))]),
      hovertemplate: `node %{text}<br>${symbol} %{customdata[0]}<br>hears %{customdata[1]}<extra></extra>` },
  ];
}

// ---- downloads

// A spreadsheet would evaluate text that begins with = + - @ as a formula, unless an apostrophe is before it. Numbers stay, also with their errors, as -0.98 ± 0.02.
const formula = (text) => /^[=+\-@\t\r]./.test(text) && !/^[+-](inf|nan|infinity|[\d.][\d.eE+\-±×^%()[\], ]*)$/i.test(text);
const cell = (value) => {
  const plain = value === null || value === undefined ? "" : String(value), text = formula(plain) ? `'${plain}` : plain;
  return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
};
const csv = (rows) => rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";

function curvesTable(study) {
  const c = study.curves, parts = c.trials > 1 ? ["mean", "error", "low", "high"] : ["mean"];
  const words = { mean: "mean", error: "standard_error", low: "quantile_10", high: "quantile_90" };
  const axes = Object.keys(AXES).filter((name) => name !== "clock" || c.runs.some((run) => run.clock));
  const rows = [["run", ...c.dimensions.map((dim) => dim.title), "lr", "predicted_floor", ...axes, ...c.metrics.flatMap((metric) => parts.map((part) => `${metric.name}_${words[part]}`))]];
  for (const run of c.runs) {
    c.steps[run.steps].forEach((step, place) => rows.push([
      run.run, ...run.at.map((value, dim) => c.dimensions[dim].values[value]), run.lr, run.floor, ...axes.map((name) => (knownOn(run, name) ? axis(run, name, step, place) : null)),
      ...c.metrics.flatMap((metric) => parts.map((part) => (run.values[metric.name][part] || [])[place])),
    ]));
  }
  return csv(rows);
}

async function completeTable(all) {
  const bytes = Uint8Array.from(atob(all.numbers), (letter) => letter.charCodeAt(0));
  const numbers = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  const count = all.rows.reduce((sum, one) => sum + one, 0), [steps, trials] = [0, 1].map((place) => new Int32Array(numbers, 4 * count * place, count));
  const values = all.metrics.map((_, place) => new Float64Array(numbers, 8 * count * (1 + place), count));
  const lines = [csv([[...all.columns, "step", "trial", ...all.metrics]])];
  let row = 0;
  all.runs.forEach((run, place) => {
    const first = run.map(cell).join(",");
    for (const end = row + all.rows[place]; row < end; row++) lines.push(`${first},${steps[row]},${trials[row]},${values.map((one) => String(one[row]).replace("Infinity", "inf")).join(",")}\n`);
  });
  return new Blob(lines, { type: "text/csv;charset=utf-8" });
}

function save(name, content) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: "text/csv;charset=utf-8" }));
  const link = make("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-csv], button[data-download]");
  if (!button) return;
  if (button.dataset.csv) {
    const rows = [...document.getElementById(button.dataset.csv).rows].map((row) => [...row.cells].map((one) => one.textContent));
    save(`${button.dataset.csv}.csv`, csv(rows));
    return;
  }
  const study = STUDIES[button.dataset.study], status = document.querySelector(`[data-status="${button.dataset.study}"]`);
  const name = { curves: `${study.name}-curves.csv`, complete: `${study.name}.csv`, toml: `${study.name}.toml` }[button.dataset.download];
  try {
    save(name, button.dataset.download === "curves" ? curvesTable(study) : button.dataset.download === "toml" ? study.toml : await completeTable(study.complete));
    status.textContent = `Saved as ${name}.`;
  } catch (error) {
    status.textContent = `This browser cannot unpack the table (${error.message}); it is in results.parquet.`;
  }
});

// ---- colors, sizes, printing

const root = document.documentElement, themeButton = document.getElementById("theme"), dark = matchMedia("(prefers-color-scheme: dark)");
function theme(name) {
  root.dataset.theme = name;
  themeButton.setAttribute("aria-pressed", String(name === "dark"));
  redraw.forEach((draw) => draw());
}
themeButton.addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));

let before = null;
addEventListener("beforeprint", () => {
  before = { theme: root.dataset.theme, closed: [...document.querySelectorAll("details:not(.extra):not([open])")] };
  before.closed.forEach((one) => { one.open = true; });
  printing = true;
  theme("light");
});
addEventListener("afterprint", () => {
  printing = false;
  before.closed.forEach((one) => { one.open = false; });
  theme(before.theme);
});

// ---- the charts of the page

const kinds = { curves, lines, heat, network };
function show(panel) {
  const [box, draw] = kinds[panel.dataset.chart](panel, STUDIES[panel.dataset.study], Number(panel.dataset.number || 0));
  let width = 0;
  redraw.set(panel, draw);
  new ResizeObserver(() => {
    if (!printing && box.clientWidth && Math.abs(box.clientWidth - width) > 1) { width = box.clientWidth; draw(); }
  }).observe(box);
}

// One after the other, so that the page can be read and scrolled meanwhile.
const waiting = [...document.querySelectorAll("[data-chart]")];
function next() {
  const panel = waiting.shift();
  if (!panel) {
    document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true"); // where plotly measures texts
    root.dataset.ready = "yes";
    return;
  }
  setTimeout(next); // whatever becomes of this one
  show(panel);
}
window.perron = { studies: STUDIES, redraw, show, table }; // for live.js
theme(root.dataset.theme);
next();
})();
