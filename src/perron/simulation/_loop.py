"""The compiled loop: runs the program of `perron.simulation._program` with the gradients of a problem, many steps in a call."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numba import njit

from perron import random
from perron.problems import _gradients, _kernels, _normals, compiled
from perron.problems._gradients import gradients
from perron.simulation import _program
from perron.simulation._program import GRADIENT, RECIPROCAL, SUM

i64, u64 = np.int64, np.uint64
_SUM, _RECIPROCAL, _GRADIENT = i64(SUM), i64(RECIPROCAL), i64(GRADIENT)
FAST: Any = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}


def _source(*modules: ModuleType) -> str:
    """A hash of the source of modules."""
    return sha256(b"".join(Path(str(module.__file__)).read_bytes() for module in modules)).hexdigest()[:16]


PARTS = _source(_gradients, _kernels, _normals, _program, compiled, random)


def _kept(function: Any) -> Any:
    """Compile a function and keep it on disk, under a name that changes with the modules it uses: numba looks at its own only."""
    function.__qualname__ = f"{function.__name__}_{PARTS}"
    return njit(cache=True, **FAST)(function)


@njit(**FAST)
def add_rows(program, at):
    """A SUM, four entries at a time."""
    code, memory, source, weight, first = program.code, program.memory, program.source, program.weight, program.first
    for e in range(code[at, 6], code[at, 7]):
        weight[program.computed[e]] = program.factor[e] * memory[program.column[e]]
    place, stride, rows, width, row = code[at, 1], code[at, 2], code[at, 3], u64(code[at, 4]), code[at, 5]
    for r in range(rows):
        out, begin = u64(place + r * stride), first[row + r]
        for e in range(begin, first[row + r + 1], 4):
            w0, w1, w2, w3 = weight[e], weight[e + 1], weight[e + 2], weight[e + 3]
            p0, p1, p2, p3 = source[e], source[e + 1], source[e + 2], source[e + 3]
            if e == begin:
                for c in range(width):
                    memory[out + c] = (w0 * memory[p0 + c] + w1 * memory[p1 + c]) + (
                        w2 * memory[p2 + c] + w3 * memory[p3 + c]
                    )
            else:
                for c in range(width):
                    memory[out + c] += (w0 * memory[p0 + c] + w1 * memory[p1 + c]) + (
                        w2 * memory[p2 + c] + w3 * memory[p3 + c]
                    )


@_kept
def execute(program, at, end):
    """Do instructions from number ``at`` on, up to the next GRADIENT or ``end``; return where it stopped."""
    code, memory = program.code, program.memory
    while at < end:
        kind = code[at, 0]
        if kind == _GRADIENT:
            return at
        if kind == _SUM:
            add_rows(program, at)
        else:
            place, of, stride = code[at, 1], code[at, 5], code[at, 6]
            for r in range(code[at, 3]):
                memory[place + r] = 1.0 / memory[of + r] if kind == _RECIPROCAL else memory[of + r * stride + r]
        at += 1
    return at


@_kept
def run(program, problem, rates, step, steps, keys, draw):
    """Do steps; return the number of gradients that a node has computed.

    Args:
        program: see `perron.simulation._program`.
        problem: one of `perron.problems.compiled`.
        rates: learning rates, ``(steps, n)``; without rows, those in memory stay.
        step: the number of the first step.
        steps: their number.
        keys: of the random numbers, ``(trials, n)``.
        draw: the number of the first gradient.
    """
    code, memory, starts, first = program.code, program.memory, program.starts, draw
    cycle = len(starts) - 1
    for s in range(steps):
        if len(rates):
            memory[: keys.shape[1]] = rates[s]
        stage = (step + s) % cycle
        end = starts[stage + 1]
        at = execute(program, starts[stage], end)
        while at < end:
            gradients(problem, memory, code[at, 5], code[at, 6], code[at, 1], code[at, 2], keys, draw)
            draw += 1
            at = execute(program, at + 1, end)
    return draw - first
