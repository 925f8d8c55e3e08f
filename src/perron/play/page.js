// The page: an editor of a digraph, its numbers, and four methods that run on it.

(() => {
  const MOST = 12, LIMIT = 1e3, SHOWN = 100;
  const COLORS = ["#0072b2", "#c75000", "#00805e", "#a8528a", "#8f6a00", "#2a86bf", "#5b5fc7", "#8c564b", "#b3446c", "#4d7c0f", "#7a6ff0", "#607080"];
  const { matrices, stronglyConnected, perron, second, alignment, methods, optimum, wrongPoint } = mathematics;
  const find = (id) => document.getElementById(id);
  const number = (value) => (value === 0 ? "0" : Math.abs(value) < 1e-3 ? value.toExponential(1) : value.toFixed(3));
  const picked = (name) => document.querySelector(`input[name="${name}"]:checked`).value;

  function element(name, attributes = {}, parent = null, text = null) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }
  function html(name, attributes = {}, parent = null, text = null) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }

  // ---- the network

  const network = { nodes: [], links: [] }; // nodes: x, y, target, own; links: from, to, weight
  let chosen = null; // {node} or {link}

  const circle = (n) => Array.from({ length: n }, (_, i) => {
    const angle = (2 * Math.PI * i) / n - Math.PI / 2;
    return { x: 300 + 180 * Math.cos(angle), y: 225 + 165 * Math.sin(angle), target: 0, own: 1 };
  });
  const shifts = (n, sizes) => sizes.flatMap((size) => Array.from({ length: n }, (_, i) => ({ from: i, to: (i + size) % n, weight: 1 })));
  const presets = {
    "a ring with a shortcut": () => [circle(6), [...shifts(6, [1]), { from: 0, to: 3, weight: 1 }, { from: 4, to: 1, weight: 1 }]],
    "a directed ring": () => [circle(6), shifts(6, [1])],
    "an exponential graph": () => [circle(8), shifts(8, [1, 2, 4])],
    "an undirected ring": () => [circle(6), shifts(6, [1, 5])],
    "a loud node": () => [circle(6), [...[1, 2, 3, 4, 5].map((to) => ({ from: 0, to, weight: 1 })), ...shifts(6, [1])]],
    "two groups, one way each": () => [circle(8), [
      ...[[0, 1], [1, 2], [2, 3], [3, 0], [1, 0], [2, 1], [4, 5], [5, 6], [6, 7], [7, 4], [5, 4], [6, 5]].map(([from, to]) => ({ from, to, weight: 1 })),
      { from: 3, to: 4, weight: 1 }, { from: 7, to: 0, weight: 1 }]],
    "nothing: draw your own": () => [[], []],
  };
  function load(name) {
    [network.nodes, network.links] = presets[name]();
    const n = network.nodes.length, found = analyse();
    // Targets from -5 to 5; nodes with much say have large ones, so that the wrong point differs from the optimum.
    const order = network.nodes.map((_, i) => i).sort((i, j) => (Math.abs(found.pull[i] - found.pull[j]) > 1e-9 ? found.pull[i] - found.pull[j] : ((5 * i) % n) - ((5 * j) % n)));
    order.forEach((i, rank) => { network.nodes[i].target = Math.round(10 * ((10 * rank) / (n - 1) - 5)) / 10; });
    chosen = null;
    changed();
  }

  // ---- runs

  let current = null, states = {}, histories = {}, steps = 0, timer = null;

  function analyse() {
    const n = network.nodes.length, own = network.nodes.map((node) => node.own);
    if (!n) return null;
    const { A, B } = matrices(n, network.links, own), connected = stronglyConnected(n, network.links);
    const target = network.nodes.map((node) => node.target), vectors = perron(A, B);
    return { n, A, B, connected, target, ...vectors, c: alignment(vectors.pull, vectors.push), secondA: second(A), secondB: second(B) };
  }
  function restart() {
    stop();
    steps = 0;
    for (const name of Object.keys(methods)) {
      states[name] = current ? methods[name].start([...current.target]) : null;
      histories[name] = current ? [current.target] : [];
    }
    drawRuns();
  }
  function advance() {
    if (!current || !current.connected) return stop();
    const lr = rate();
    for (const [name, method] of Object.entries(methods)) {
      if (!histories[name].at(-1).every((value) => Math.abs(value) < LIMIT)) continue; // diverged
      states[name] = method.step(states[name], current, current.target, lr);
      histories[name].push(states[name].x);
    }
    steps += 1;
    drawRuns();
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    find("run").textContent = "Run";
  }
  const rate = () => 10 ** Number(find("lr").value);

  // ---- pictures

  function drawGraph() {
    const svg = find("graph"), radius = 22, weights = current && current[picked("shown")];
    svg.replaceChildren();
    for (const link of network.links) {
      const { from, to } = link, a = network.nodes[from], b = network.nodes[to];
      const length = Math.hypot(b.x - a.x, b.y - a.y) || 1, ux = (b.x - a.x) / length, uy = (b.y - a.y) / length;
      const back = network.links.some((other) => other.from === to && other.to === from), bend = back ? 26 : 0;
      const middle = [(a.x + b.x) / 2 - uy * bend, (a.y + b.y) / 2 + ux * bend];
      const toEnd = Math.hypot(b.x - middle[0], b.y - middle[1]) || 1, ex = (b.x - middle[0]) / toEnd, ey = (b.y - middle[1]) / toEnd;
      const tip = [b.x - ex * (radius + 3), b.y - ey * (radius + 3)], base = [tip[0] - ex * 11, tip[1] - ey * 11];
      const path = `M${a.x} ${a.y} Q${middle[0]} ${middle[1]} ${base[0]} ${base[1]}`;
      const group = element("g", { class: chosen && chosen.link === link ? "chosen" : "" }, svg);
      element("path", { class: "link", d: path }, group);
      element("path", { class: "tip", d: `M${tip[0]} ${tip[1]} L${base[0] - ey * 6} ${base[1] + ex * 6} L${base[0] + ey * 6} ${base[1] - ex * 6} Z` }, group);
      element("path", { class: "grip", d: path, "data-link": network.links.indexOf(link) }, group);
      if (weights) {
        const at = (t, ends) => (1 - t) ** 2 * ends[0] + 2 * t * (1 - t) * ends[1] + t ** 2 * ends[2]; // nearer to the receiver
        const label = { class: "weight", x: at(0.64, [a.x, middle[0], b.x]), y: at(0.64, [a.y, middle[1], b.y]) + 4 };
        element("text", label, group, weights[to][from].toFixed(2));
      }
    }
    network.nodes.forEach((node, i) => {
      const group = element("g", { class: chosen && chosen.node === node ? "chosen" : "" }, svg);
      element("circle", { class: "node", cx: node.x, cy: node.y, r: radius, fill: COLORS[i], "data-node": i }, group);
      element("text", { class: "name", x: node.x, y: node.y + 5 }, group, i);
      if (weights) element("text", { class: "weight", x: node.x, y: node.y + radius + 15 }, group, `keeps ${weights[i][i].toFixed(2)}`);
    });
  }

  function drawFacts() {
    const usable = current && current.connected;
    find("alignment").textContent = usable ? number(current.c) : "–";
    find("second-A").textContent = usable ? number(current.secondA) : "–";
    find("second-B").textContent = usable ? number(current.secondB) : "–";
    const rows = find("vectors");
    rows.replaceChildren();
    network.nodes.forEach((node, i) => {
      const row = html("tr", {}, rows);
      html("td", {}, row, i);
      html("td", {}, row, node.target.toFixed(1));
      for (const side of ["pull", "push"]) {
        const cell = html("td", {}, row), bar = element("svg", { viewBox: "0 0 1 1", preserveAspectRatio: "none" }, cell);
        if (usable) element("rect", { class: `fill-${side}`, width: current[side][i] / Math.max(...current.pull, ...current.push), height: 1 }, bar);
        cell.append(usable ? number(current[side][i]) : "–");
      }
    });
    const warning = find("warning");
    warning.hidden = usable;
    warning.textContent = !current ? "There are no nodes: tap into the picture to add some."
      : "Not every node reaches every other one: add links until it does. Methods need that to agree.";
  }

  function drawSelected() {
    const bar = find("selected");
    bar.replaceChildren();
    if (!chosen) return;
    const slider = (text, low, high, step, value, set) => {
      const label = html("label", {}, bar, text), input = html("input", { type: "range", min: low, max: high, step }, label);
      const shown = html("output", {}, label, number(value));
      input.value = value;
      input.addEventListener("input", () => { set(Number(input.value)); shown.textContent = number(Number(input.value)); changed(false); });
    };
    if (chosen.node) {
      slider(`target of node ${network.nodes.indexOf(chosen.node)}`, -5, 5, 0.1, chosen.node.target, (value) => { chosen.node.target = value; });
      slider("weight of its own value", 0.1, 5, 0.1, chosen.node.own, (value) => { chosen.node.own = value; });
    } else {
      slider(`weight of the link ${chosen.link.from} → ${chosen.link.to}`, 0.1, 5, 0.1, chosen.link.weight, (value) => { chosen.link.weight = value; });
    }
    html("button", { type: "button", id: "remove" }, bar, "Remove").addEventListener("click", remove);
  }

  function drawRuns() {
    find("count").textContent = steps;
    find("lr-value").textContent = number(rate());
    const plots = find("plots"), n = network.nodes.length;
    const best = n ? optimum(network.nodes.map((node) => node.target)) : 0;
    for (const [name, method] of Object.entries(methods)) {
      let figure = plots.querySelector(`[data-method="${name}"]`);
      if (!figure) {
        figure = html("figure", { "data-method": name }, plots);
        html("figcaption", {}, figure, method.title);
        html("div", { class: "formula" }, figure, method.formula);
        element("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": `Values of all nodes with ${method.title}` }, figure);
        html("div", { class: "steps" }, figure);
        html("div", { class: "error" }, figure);
      }
      const history = histories[name], svg = figure.querySelector("svg"), error = figure.querySelector(".error");
      svg.replaceChildren();
      if (!history.length || !current || !current.connected) { error.textContent = ""; continue; }
      const wrong = wrongPoint(current.target, current.pull), end = Math.max(SHOWN, history.length - 1);
      const low = Math.min(...current.target) - 1, high = Math.max(...current.target) + 1;
      const x = (step) => (100 * step) / end, y = (value) => Math.max(-5, Math.min(105, (100 * (high - value)) / (high - low)));
      element("line", { class: "optimum", x1: 0, x2: 100, y1: y(best), y2: y(best) }, svg);
      element("line", { class: "wrong", x1: 0, x2: 100, y1: y(wrong), y2: y(wrong) }, svg);
      const every = Math.ceil(history.length / 400);
      for (let i = 0; i < n; i++) {
        const points = history.map((values, step) => [step, values[i]]).filter(([step]) => step % every === 0 || step === history.length - 1);
        element("polyline", { class: "trace", stroke: COLORS[i], points: points.map(([step, value]) => `${x(step)},${y(value)}`).join(" ") }, svg);
      }
      const largest = Math.max(...history.at(-1).map((value) => Math.abs(value - best)));
      error.textContent = largest < LIMIT ? `largest distance to the optimum: ${number(largest)}` : "diverged: η is too large for this network";
      figure.querySelector(".steps").textContent = `0 to ${end} steps`;
    }
  }

  function changed(select = true) {
    current = analyse();
    drawGraph();
    drawFacts();
    if (select) drawSelected();
    restart();
  }
  function remove() {
    if (!chosen) return;
    if (chosen.link) network.links = network.links.filter((link) => link !== chosen.link);
    else {
      const gone = network.nodes.indexOf(chosen.node), after = (node) => (node > gone ? node - 1 : node);
      network.links = network.links.filter((link) => link.from !== gone && link.to !== gone)
        .map((link) => ({ ...link, from: after(link.from), to: after(link.to) }));
      network.nodes.splice(gone, 1);
    }
    chosen = null;
    changed();
  }

  // ---- drawing by hand

  let drag = null; // {node, moved, line}
  function place(event) {
    const box = find("graph").getBoundingClientRect();
    return { x: ((event.clientX - box.left) / box.width) * 600, y: ((event.clientY - box.top) / box.height) * 460 };
  }
  const nodeAt = ({ x, y }) => network.nodes.findIndex((node) => Math.hypot(node.x - x, node.y - y) <= 28);

  find("graph").addEventListener("pointerdown", (event) => {
    const at = place(event), node = nodeAt(at);
    find("graph").setPointerCapture(event.pointerId);
    drag = { node, at, moved: false, line: null, link: event.target.dataset.link };
  });
  find("graph").addEventListener("pointermove", (event) => {
    if (!drag || drag.node < 0) return;
    const at = place(event), from = network.nodes[drag.node];
    if (Math.hypot(at.x - drag.at.x, at.y - drag.at.y) > 6) drag.moved = true;
    if (!drag.moved) return;
    if (picked("mode") === "move") {
      from.x = Math.max(24, Math.min(576, at.x));
      from.y = Math.max(24, Math.min(420, at.y));
      drawGraph();
    } else {
      if (!drag.line) drag.line = element("line", { class: "pulled", x1: from.x, y1: from.y }, find("graph"));
      drag.line.setAttribute("x2", at.x);
      drag.line.setAttribute("y2", at.y);
    }
  });
  find("graph").addEventListener("pointerup", (event) => {
    if (!drag) return;
    const at = place(event), { node, moved, link } = drag, to = nodeAt(at);
    drag = null;
    if (node >= 0 && moved) {
      if (picked("mode") === "link" && to >= 0 && to !== node) {
        const there = network.links.find((one) => one.from === node && one.to === to);
        chosen = { link: there || { from: node, to, weight: 1 } };
        if (!there) network.links.push(chosen.link);
        return changed();
      }
      return drawGraph();
    }
    if (node >= 0) chosen = { node: network.nodes[node] };
    else if (link !== undefined) chosen = { link: network.links[Number(link)] };
    else if (network.nodes.length < MOST) {
      network.nodes.push({ x: Math.max(24, Math.min(576, at.x)), y: Math.max(24, Math.min(420, at.y)), target: ((3 * network.nodes.length) % 11) - 5, own: 1 });
      chosen = { node: network.nodes.at(-1) };
      return changed();
    } else chosen = null;
    drawGraph();
    drawSelected();
  });
  find("graph").addEventListener("pointercancel", () => { drag = null; drawGraph(); });
  document.addEventListener("keydown", (event) => {
    if (["Delete", "Backspace"].includes(event.key) && !["INPUT", "SELECT"].includes(event.target.tagName)) remove();
  });

  // ---- controls

  for (const name of Object.keys(presets)) html("option", {}, find("preset"), name);
  find("preset").addEventListener("change", () => load(find("preset").value));
  for (const input of document.querySelectorAll('input[name="shown"]')) input.addEventListener("change", drawGraph);
  find("lr").addEventListener("input", restart);
  find("step").addEventListener("click", () => { stop(); advance(); });
  find("reset").addEventListener("click", restart);
  find("run").addEventListener("click", () => {
    if (timer) return stop();
    find("run").textContent = "Pause";
    timer = setInterval(advance, 40);
  });
  load(Object.keys(presets)[0]);
})();
