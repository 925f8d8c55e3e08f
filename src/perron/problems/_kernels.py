"""The two sums of logistic regression that take all the time, compiled with numba.

`Logistic` has the same sums in plain torch, which serve where numba is not installed and which tests hold against these.
Arithmetic is in float32 within a block of samples and in float64 between blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from perron.random import AGAIN, FIRST, GOLDEN, RETRIES, SECOND

f32, i32, i64, u64 = np.float32, np.int32, np.int64, np.uint64
GOLDEN_64, _FIRST, _SECOND, _AGAIN = (u64(constant % 2**64) for constant in (GOLDEN, FIRST, SECOND, AGAIN))
_RETRIES, _ONE = u64(RETRIES), u64(1)
FAST: Any = {"cache": True, "nogil": True, "fastmath": True, "error_model": "numpy"}


@njit(cache=True, inline="always")
def mix(z):
    """splitmix64's hash, as in `perron.random`."""
    z = (z ^ (z >> u64(30))) * _FIRST
    z = (z ^ (z >> u64(27))) * _SECOND
    return z ^ (z >> u64(31))


@njit(cache=True, inline="always")
def _below(hashed, high):
    """A whole number 0 .. high-1 from a hash."""
    return min(i64((np.float64(i64(hashed >> u64(11))) + 0.5) * 2.0**-53 * high), high - 1)


@njit(cache=True, nogil=True)
def distinct(key, draw, high, rows, seen):
    """`Keyed.distinct` for one key, into ``rows``; ``seen`` is all False before and after."""
    for k in range(len(rows)):
        rows[k] = _below(mix(key + u64(draw * len(rows) + k + 1) * GOLDEN_64), high)
    again, retry = mix(key ^ _AGAIN), u64(draw) << _RETRIES
    for k in range(len(rows)):
        row = rows[k]
        while seen[row]:
            row = _below(mix(again + retry * GOLDEN_64), high)
            retry += _ONE
        seen[row] = True
        rows[k] = row
    for k in range(len(rows)):
        seen[rows[k]] = False


@njit(**FAST)
def _sigmoids(z):
    """z <- 1 / (1 + exp(z)), in place, in a form that the compiler turns into vector instructions.

    exp(z) = 2^q 2^r with q whole and |r| <= 1/2; 2^q is made by its bits, and 2^r by a minimax polynomial (Cephes' exp2f).
    """
    for k in range(len(z)):
        power = min(max(z[k], f32(-80)), f32(80)) * f32(1.4426950408889634)
        q = np.rint(power)
        r = power - q
        p = f32(1.535336188319500e-4)
        p = p * r + f32(1.339887440266574e-3)
        p = p * r + f32(9.618437357674640e-3)
        p = p * r + f32(5.550332471162809e-2)
        p = p * r + f32(2.402264791363012e-1)
        p = p * r + f32(6.931472028550421e-1)
        p = p * r + f32(1)
        z[k] = f32(1) / (f32(1) + p * i32((i32(q) + i32(127)) << i32(23)).view(f32))


@njit(**FAST)
def weighted_sum(columns, x, z, total):
    """total -= sum_k columns[:, k] / (1 + exp(columns[:, k]^T x)); z is scratch.

    Five coordinates at a time, so that z is loaded and stored a fifth as often.
    """
    dim, fives = len(x), len(x) // 5 * 5
    z[:] = f32(0)
    for j in range(0, fives, 5):
        c0, c1, c2, c3, c4 = columns[j], columns[j + 1], columns[j + 2], columns[j + 3], columns[j + 4]
        x0, x1, x2, x3, x4 = x[j], x[j + 1], x[j + 2], x[j + 3], x[j + 4]
        for k in range(len(z)):
            z[k] += c0[k] * x0 + c1[k] * x1 + c2[k] * x2 + c3[k] * x3 + c4[k] * x4
    for j in range(fives, dim):
        c0, x0 = columns[j], x[j]
        for k in range(len(z)):
            z[k] += c0[k] * x0
    _sigmoids(z)
    for j in range(0, fives, 5):
        c0, c1, c2, c3, c4 = columns[j], columns[j + 1], columns[j + 2], columns[j + 3], columns[j + 4]
        s0, s1, s2, s3, s4 = f32(0), f32(0), f32(0), f32(0), f32(0)
        for k in range(len(z)):
            w = z[k]
            s0 += c0[k] * w
            s1 += c1[k] * w
            s2 += c2[k] * w
            s3 += c3[k] * w
            s4 += c4[k] * w
        total[j] -= s0
        total[j + 1] -= s1
        total[j + 2] -= s2
        total[j + 3] -= s3
        total[j + 4] -= s4
    for j in range(fives, dim):
        c0, s0 = columns[j], f32(0)
        for k in range(len(z)):
            s0 += c0[k] * z[k]
        total[j] -= s0


@njit(**FAST)
def minibatch(flat, first, samples, x, key, draw, picks, seen, columns, z, total):
    """Add the sum over the minibatch of a node in a trial to ``total``; the arguments from ``picks`` to ``z`` are scratch."""
    dim, batch, touched = len(x), len(picks), f32(0)
    distinct(key, draw, samples, picks, seen)
    for k in range(batch):
        picks[k] = (first + picks[k]) * dim
    for k in range(batch):  # touching first lets the processor fetch many rows from memory at a time
        touched += flat[u64(picks[k])] + flat[u64(picks[k] + dim - 1)]
    for k in range(batch):
        for j in range(dim):
            columns[j, k] = flat[u64(picks[k] + j)]
    weighted_sum(columns, x, z, total)
    return touched  # so that the compiler does not leave the touching out


@njit(**FAST)
def minibatch_grads(rows, x, keys, draw, batch, out):
    """Mean gradients over a minibatch of each node in each trial.

    Args:
        rows: y h for each sample, ``(n, m, d)``.
        x, out: ``(trials, n, d)``.
        keys: of the random numbers, ``(trials, n)``.
    """
    nodes, samples, dim = rows.shape
    flat = rows.reshape(-1)
    picks, seen = np.empty(batch, i64), np.zeros(samples, np.bool_)
    columns, z, touched = np.empty((dim, batch), f32), np.empty(batch, f32), f32(0)
    out[:] = 0
    for i in range(nodes):  # outermost: a node's samples stay in the cache for all trials
        for t in range(x.shape[0]):
            touched += minibatch(
                flat, i * samples, samples, x[t, i], keys[t, i], draw, picks, seen, columns, z, out[t, i]
            )
    out /= batch
    return touched


@njit(**FAST)
def local_grads(blocks, x, samples, out):
    """Mean gradients over all samples of each node.

    Args:
        blocks: y h in blocks of samples, ``(n, blocks, d, block)``, filled up with zeros.
        x, out: ``(points, n, d)``.
        samples: of each node.
    """
    z = np.empty(blocks.shape[3], f32)
    out[:] = 0
    for i in range(blocks.shape[0]):
        for b in range(blocks.shape[1]):
            for p in range(x.shape[0]):
                weighted_sum(blocks[i, b], x[p, i], z, out[p, i])
    out /= samples
