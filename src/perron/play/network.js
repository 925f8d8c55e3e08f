"use strict";
// The mathematics of the page: matrices of a digraph, their Perron vectors, and four methods, for a handful of nodes.
// A link is {from, to, weight}; every node keeps a share of its own with the weight own[i]. Matrices are arrays of rows, and
// [i][j] is what node i takes from node j. tests/play/test_play.py compares all of it with the library.

const mathematics = (() => {
  const zeros = (n) => Array.from({ length: n }, () => Array(n).fill(0));
  const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
  const times = (M, x) => M.map((row) => dot(row, x));
  const product = (M, N) => M.map((row) => N[0].map((_, j) => row.reduce((sum, value, k) => sum + value * N[k][j], 0)));
  const combine = (a, x, b, y) => x.map((value, i) => a * value + b * y[i]);

  // Weights of the links, divided by the sum of each row (A, which nodes pull with) and of each column (B, which they push with).
  function matrices(n, links, own) {
    const W = zeros(n);
    for (let i = 0; i < n; i++) W[i][i] = own[i];
    for (const { from, to, weight } of links) W[to][from] = weight;
    const columns = W[0].map((_, j) => W.reduce((sum, row) => sum + row[j], 0));
    return { A: W.map((row) => row.map((value) => value / dot(row, row.map(() => 1)))), B: W.map((row) => row.map((value, j) => value / columns[j])) };
  }

  function reached(n, links, start, backward) {
    const found = new Set([start]), queue = [start];
    while (queue.length) {
      const node = queue.pop();
      for (const link of links) {
        const [here, there] = backward ? [link.to, link.from] : [link.from, link.to];
        if (here === node && !found.has(there)) { found.add(there); queue.push(there); }
      }
    }
    return found.size;
  }
  const stronglyConnected = (n, links) => n > 0 && reached(n, links, 0, false) === n && reached(n, links, 0, true) === n;

  // M^(2^k) by squaring: of a primitive stochastic matrix the limit, whose rows (A) or columns (B) are the Perron vector.
  function limit(M) {
    let power = M;
    for (let k = 0; k < 40; k++) power = product(power, power);
    return power;
  }
  function perron(A, B) {
    const normalized = (vector) => { const sum = dot(vector, vector.map(() => 1)); return vector.map((value) => value / sum); };
    return { pull: normalized(limit(A)[0]), push: normalized(limit(B).map((row) => row[0])) };
  }

  // The second largest modulus of an eigenvalue: the spectral radius of M minus its limit, as the limit of |M^(2^k)|^(1/2^k).
  function second(M) {
    const end = limit(M);
    let rest = M.map((row, i) => row.map((value, j) => value - end[i][j])), logarithm = 0;
    for (let k = 0; k < 40; k++) {
      const size = Math.sqrt(rest.reduce((sum, row) => sum + dot(row, row), 0));
      if (size < 1e-12) return 0;
      logarithm += Math.log(size) / 2 ** k;
      rest = rest.map((row) => row.map((value) => value / size));
      rest = product(rest, rest);
    }
    return Math.exp(logarithm);
  }

  const alignment = (pull, push) => pull.length * dot(pull, push);

  // Methods. Node i minimizes f_i(x) = (x - target[i])^2 / 2; all start at x. A state is replaced, never changed.
  const gradient = (x, target) => combine(1, x, -1, target);
  const methods = {
    push_pull: {
      title: "Push-Pull", formula: "x ← A x − η y,  y ← B y + ∇f(x) − ∇f(old x)",
      start: (x) => ({ x, y: x.map(() => 0), grad: x.map(() => 0) }),
      step({ x, y, grad }, { A, B }, target, lr) {
        const now = gradient(x, target), tracker = combine(1, times(B, y), 1, combine(1, now, -1, grad));
        return { x: combine(1, times(A, x), -lr, tracker), y: tracker, grad: now };
      },
    },
    push_diging: {
      title: "Push-only (Push-DIGing)", formula: "y ← B y + ∇f(x) − ∇f(old x),  u ← B (u − η y),  v ← B v,  x = u / v",
      start: (x) => ({ x, u: x, v: x.map(() => 1), y: x.map(() => 0), grad: x.map(() => 0) }),
      step({ x, u, v, y, grad }, { B }, target, lr) {
        const now = gradient(x, target), tracker = combine(1, times(B, y), 1, combine(1, now, -1, grad));
        const mass = times(B, combine(1, u, -lr, tracker)), weight = times(B, v);
        return { x: mass.map((value, i) => value / weight[i]), u: mass, v: weight, y: tracker, grad: now };
      },
    },
    frost: {
      title: "Pull-only (FROST)", formula: "h = ∇f(x) / (n diag(Aᵗ)),  y ← A y + h − old h,  x ← A x − η y", // with η/n: steps as long as those of the others
      start: (x) => ({ x, y: x.map(() => 0), scaled: x.map(() => 0), power: x.map((_, i) => x.map((_, j) => (i === j ? 1 : 0))) }),
      step({ x, y, scaled, power }, { A }, target, lr) {
        const now = gradient(x, target).map((value, i) => value / (x.length * power[i][i]));
        const tracker = combine(1, times(A, y), 1, combine(1, now, -1, scaled));
        return { x: combine(1, times(A, x), -lr, tracker), y: tracker, scaled: now, power: product(A, power) };
      },
    },
    dsgd: {
      title: "D-SGD with A", formula: "x ← A x − η ∇f(x)",
      start: (x) => ({ x }),
      step: ({ x }, { A }, target, lr) => ({ x: combine(1, times(A, x), -lr, gradient(x, target)) }),
    },
  };

  const optimum = (target) => dot(target, target.map(() => 1)) / target.length;
  const wrongPoint = (target, pull) => dot(target, pull);
  return { matrices, stronglyConnected, perron, second, alignment, methods, optimum, wrongPoint };
})();
