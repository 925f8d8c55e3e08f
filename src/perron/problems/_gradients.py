"""Gradients for the compiled loop of the simulator, compiled with numba.

Points and results are in one array: row i starts at ``place + i stride`` and has the numbers of all trials of node i, one trial
after the other. Problems have the same gradients in plain torch, and tests compare them. What is compiled here is kept on disk as
a part of the loop only, see `perron.simulation._loop`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

from perron.problems._kernels import distinct, minibatch, weighted_sum
from perron.problems._normals import normals
from perron.problems.compiled import Diagonal, Full, Linear, Minibatches, Sums

f32, i64, u64 = np.float32, np.int64, np.uint64
EXACT: Any = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
SUMS: Any = EXACT | {"fastmath": {"contract", "reassoc"}}


def gradients(problem, memory, of, of_stride, to, to_stride, keys, draw):
    """Write stochastic gradients.

    Args:
        problem: one of `perron.problems.compiled`.
        memory: the array with points and results.
        of, of_stride, to, to_stride: places and strides of the points and of the results.
        keys: of the random numbers, ``(trials, n)``.
        draw: the number of the draw.
    """
    raise NotImplementedError


@overload(gradients)
def _gradients(problem, memory, of, of_stride, to, to_stride, keys, draw):  # noqa: ARG001 (their types)
    kernel = {Full: _full, Diagonal: _diagonal, Linear: _linear, Minibatches: _minibatches, Sums: _sums}[
        problem.instance_class
    ]
    return lambda problem, memory, of, of_stride, to, to_stride, keys, draw: kernel(  # noqa: PLW0108 (a dispatcher)
        problem, memory, of, of_stride, to, to_stride, keys, draw
    )


@njit(**EXACT)
def _begin(problem, memory, to, to_stride, keys, draw):
    """Write noise minus H b."""
    nodes, dim = problem.offsets.shape
    offsets, scale, normal = problem.offsets.reshape(-1), problem.noise.scale, problem.noise.normal
    if scale:
        normals(keys, draw, dim, problem.noise.uniform, problem.noise.tails, problem.noise.far, normal)
    for i in range(nodes):
        for t in range(len(keys)):
            out, first, place = u64(to + i * to_stride + t * dim), u64(i * dim), u64((i * len(keys) + t) * dim)
            if scale:
                for c in range(u64(dim)):
                    memory[out + c] = scale * normal[place + c] - offsets[first + c]
            else:
                for c in range(u64(dim)):
                    memory[out + c] = -offsets[first + c]


@njit(**EXACT)
def _diagonal(problem, memory, of, of_stride, to, to_stride, keys, draw):
    _begin(problem, memory, to, to_stride, keys, draw)
    nodes, dim = problem.offsets.shape
    h = problem.hessians.reshape(-1)
    for i in range(nodes):
        for t in range(len(keys)):
            out, x, row = u64(to + i * to_stride + t * dim), u64(of + i * of_stride + t * dim), u64(i * dim)
            for c in range(u64(dim)):
                memory[out + c] += memory[x + c] * h[row + c]


@njit(**SUMS)
def _full(problem, memory, of, of_stride, to, to_stride, keys, draw):
    _begin(problem, memory, to, to_stride, keys, draw)
    nodes, dim = problem.offsets.shape
    h = problem.hessians.reshape(-1)
    trials, wide = len(keys), u64(dim)
    for i in range(nodes):
        first = u64(i) * wide * wide
        done = 0
        while done < trials:
            out, x = u64(to + i * to_stride + done * dim), u64(of + i * of_stride + done * dim)
            if trials - done >= 4:
                done += 4
                _product_4(h, first, memory, x, out, wide)
            else:
                done += 1
                if problem.symmetric and trials == 1:
                    _symmetric_product(h, first, memory, x, out, wide)
                else:
                    _product(h, first, memory, x, out, wide)


@njit(**SUMS)
def _product(h, first, memory, x, out, wide):
    """out += x H."""
    for j in range(u64(0), wide // u64(4) * u64(4), u64(4)):
        row = first + j * wide
        x0, x1, x2, x3 = memory[x + j], memory[x + j + u64(1)], memory[x + j + u64(2)], memory[x + j + u64(3)]
        for c in range(wide):
            q = row + c
            memory[out + c] += (x0 * h[q] + x1 * h[q + wide]) + (x2 * h[q + u64(2) * wide] + x3 * h[q + u64(3) * wide])
    for j in range(wide // u64(4) * u64(4), wide):
        row, factor = first + j * wide, memory[x + j]
        for c in range(wide):
            memory[out + c] += factor * h[row + c]


@njit(**SUMS)
def _product_4(h, first, memory, x, out, wide):
    """The same for four trials, for which H is read once."""
    xb, xc, xd = x + wide, x + u64(2) * wide, x + u64(3) * wide
    ob, oc, od = out + wide, out + u64(2) * wide, out + u64(3) * wide
    for j in range(u64(0), wide // u64(4) * u64(4), u64(4)):
        row, k, m, n = first + j * wide, j + u64(1), j + u64(2), j + u64(3)
        a0, a1, a2, a3 = memory[x + j], memory[x + k], memory[x + m], memory[x + n]
        b0, b1, b2, b3 = memory[xb + j], memory[xb + k], memory[xb + m], memory[xb + n]
        c0, c1, c2, c3 = memory[xc + j], memory[xc + k], memory[xc + m], memory[xc + n]
        d0, d1, d2, d3 = memory[xd + j], memory[xd + k], memory[xd + m], memory[xd + n]
        for c in range(wide):
            q = row + c
            h0, h1, h2, h3 = h[q], h[q + wide], h[q + u64(2) * wide], h[q + u64(3) * wide]
            memory[out + c] += (a0 * h0 + a1 * h1) + (a2 * h2 + a3 * h3)
            memory[ob + c] += (b0 * h0 + b1 * h1) + (b2 * h2 + b3 * h3)
            memory[oc + c] += (c0 * h0 + c1 * h1) + (c2 * h2 + c3 * h3)
            memory[od + c] += (d0 * h0 + d1 * h1) + (d2 * h2 + d3 * h3)
    for j in range(wide // u64(4) * u64(4), wide):
        row = first + j * wide
        a0, b0, c0, d0 = memory[x + j], memory[xb + j], memory[xc + j], memory[xd + j]
        for c in range(wide):
            h0 = h[row + c]
            memory[out + c] += a0 * h0
            memory[ob + c] += b0 * h0
            memory[oc + c] += c0 * h0
            memory[od + c] += d0 * h0


@njit(**SUMS)
def _symmetric_product(h, first, memory, x, out, wide):
    """out += x H, reading half of H."""
    fours = wide // u64(4) * u64(4)
    for j in range(u64(0), fours, u64(4)):
        row, k, m, n = first + j * wide, j + u64(1), j + u64(2), j + u64(3)
        x0, x1, x2, x3 = memory[x + j], memory[x + k], memory[x + m], memory[x + n]
        s0 = h[row + j] * x0 + h[row + k] * x1 + h[row + m] * x2 + h[row + n] * x3
        row1, row2, row3 = row + wide, row + u64(2) * wide, row + u64(3) * wide
        s1 = h[row + k] * x0 + h[row1 + k] * x1 + h[row1 + m] * x2 + h[row1 + n] * x3
        s2 = h[row + m] * x0 + h[row1 + m] * x1 + h[row2 + m] * x2 + h[row2 + n] * x3
        s3 = h[row + n] * x0 + h[row1 + n] * x1 + h[row2 + n] * x2 + h[row3 + n] * x3
        for c in range(j + u64(4), wide):
            h0, h1, h2, h3, xc = h[row + c], h[row1 + c], h[row2 + c], h[row3 + c], memory[x + c]
            memory[out + c] += (x0 * h0 + x1 * h1) + (x2 * h2 + x3 * h3)
            s0 += h0 * xc
            s1 += h1 * xc
            s2 += h2 * xc
            s3 += h3 * xc
        memory[out + j] += s0
        memory[out + k] += s1
        memory[out + m] += s2
        memory[out + n] += s3
    for j in range(fours, wide):
        row = first + j * wide
        for c in range(fours, wide):
            memory[out + c] += memory[x + j] * h[row + c]


@njit(**EXACT)
def _regularized(total, share, regularization, memory, x, out):
    """Write total / share plus the gradient of the regularizer rho sum_j x_j^2 / (1 + x_j^2)."""
    for j in range(u64(len(total))):
        bent = 1.0 + memory[x + j] * memory[x + j]
        memory[out + j] = total[j] / share + 2 * regularization * memory[x + j] / (bent * bent)


@njit(**EXACT)
def _minibatches(problem, memory, of, of_stride, to, to_stride, keys, draw):
    nodes, samples, dim = problem.rows.shape
    flat, batch = problem.rows.reshape(-1), problem.batch
    picks, seen = np.empty(batch, i64), np.zeros(samples, np.bool_)
    columns, z, touched = np.empty((dim, batch), f32), np.empty(batch, f32), f32(0)
    point, total = np.empty(dim, f32), np.empty(dim)
    for i in range(nodes):
        for t in range(len(keys)):
            out, x = to + i * to_stride + t * dim, of + i * of_stride + t * dim
            point[:] = memory[x : x + dim]
            total[:] = 0
            touched += minibatch(flat, i * samples, samples, point, keys[t, i], draw, picks, seen, columns, z, total)
            _regularized(total, batch, problem.regularization, memory, u64(x), u64(out))
    return touched


@njit(**EXACT)
def _sums(problem, memory, of, of_stride, to, to_stride, keys, draw):  # noqa: ARG001 (nothing is drawn)
    nodes, count, dim, block = problem.blocks.shape
    z, point, total = np.empty(block, f32), np.empty(dim, f32), np.empty(dim)
    for i in range(nodes):
        for t in range(len(keys)):
            out, x = to + i * to_stride + t * dim, of + i * of_stride + t * dim
            point[:] = memory[x : x + dim]
            total[:] = 0
            for b in range(count):
                weighted_sum(problem.blocks[i, b], point, z, total)
            _regularized(total, problem.samples, problem.regularization, memory, u64(x), u64(out))


@njit(**SUMS)
def _linear(problem, memory, of, of_stride, to, to_stride, keys, draw):
    nodes, dim = len(problem.shares), problem.rows.shape[1]
    flat, ends, batch = problem.rows.reshape(-1), problem.ends, problem.batch
    most = (ends[1:] - ends[:-1]).max()
    picks, seen, total = np.arange(batch if batch else most), np.zeros(most, np.bool_), np.empty(dim)
    for i in range(nodes):
        samples = ends[i + 1] - ends[i]
        for t in range(len(keys)):
            out, x = u64(to + i * to_stride + t * dim), u64(of + i * of_stride + t * dim)
            if batch:
                distinct(keys[t, i], draw, samples, picks, seen)
            count = batch if batch else samples
            total[:] = 0
            for k in range(count):
                sample, score = ends[i] + picks[k], 0.0
                row, target = u64(sample * dim), problem.targets[sample]
                for j in range(u64(dim)):
                    score += flat[row + j] * memory[x + j]
                slope = score - target if problem.squared else -target / (1.0 + np.exp(target * score))
                for j in range(u64(dim)):
                    total[j] += slope * flat[row + j]
            total *= problem.shares[i]
            _regularized(total, count, problem.nonconvex, memory, x, out)
            for j in range(u64(dim)):
                memory[out + j] += problem.l2 * memory[x + j]
