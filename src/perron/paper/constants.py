"""Claims about the numbers in the proof of Lemma 2: whether each display follows from the displays before it.

Every coefficient is a polynomial in n, c, m, the squared step and the mixing sums. For A = B = 11^T/n all mixing sums and c are
one, so that the coefficients are rational numbers: a ratio above one is then exact, and proves that the display does not follow.
Whether the bound that it states is false is another matter; `perron.paper.proof` has constants that do follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import ceil

from perron.paper.bounds import block_conditions
from perron.paper.claim import Claim, Evidence, conclude, within
from perron.paper.search import Generator, Pair, pairs
from perron.theory.theorem import MixingConstants

Number = float | Fraction


@dataclass(frozen=True)
class Setting:
    """The numbers of a network, a block m and the square of the largest step that the proof allows, with L = 1."""

    n: int
    c: Number
    a: Number
    b: Number
    am: Number
    bm: Number
    m: Number

    @classmethod
    def of(cls, pair: Pair) -> Setting:
        """Return a network with the least block that meets all conditions of the printed proof."""
        known = pair.constants
        sums = known.pull_sum, known.push_sum, known.pull_power_sum, known.push_power_sum
        return cls(known.nodes, known.alignment, *sums, max(block_conditions(known).values()))

    @classmethod
    def average(cls, n: int) -> Setting:
        """Return A = B = 11^T/n, whose numbers are exact."""
        one = Fraction(1)
        least = max(block_conditions(MixingConstants(n, 1.0, 1.0, 1.0, 1.0, 1.0)).values())
        return cls(n, one, one, one, one, one, Fraction(ceil(least)))

    @property
    def u(self) -> Number:
        """s_B s_Bm^2."""
        return self.b * self.bm**2

    @property
    def v(self) -> Number:
        """s_A s_Am^2."""
        return self.a * self.am**2

    @property
    def move(self) -> Number:
        """The squared step 1/(10 c m sqrt(s_B) s_Bm)^2."""
        return 1 / (100 * self.c**2 * self.m**2 * self.u)


Ratios = dict[str, Number]


def first_trackers(s: Setting) -> Ratios:
    """sum |Dy|^2, first: after 7, 6, 4 and Delta_2 by its bound, the printed 16, 12, 320 and 160."""
    rest = 1 - 160 * s.move * s.m * s.b * s.u
    noise = 7 * s.u + 80 * s.c**2 * s.m**2 / s.n**2 * s.move * s.u
    return {
        "16": noise / rest / (16 * s.u),
        "12": 6 / rest / 12,
        "320": 160 / rest / 320,
        "160": 80 / rest / 160,
    }


def first_distance(s: Setting) -> Ratios:
    """sum Delta_2, first: 40 m n |Dx|^2 + 40 a^2 m s_B |Dy|^2 + ..., with Dy by the bound before."""
    n, c, m, b, u = s.n, s.c, s.m, s.b, s.u
    return {
        "50": 40 * (1 + 320 * s.move * m * b * u) / 50,
        "480": b,
        "21 (noise)": (640 * m * b * u + 20 * c**2 * m**2 / n**2) * n / (21 * c**2 * m**2 / n),
        "21 (gradients)": 20 * (1 + 320 * s.move * m * b * u) / 21,
    }


def consensus(s: Setting) -> Ratios:
    """sum |Dx|^2: 15, 3, 6 and 3 from Delta_4, with Delta_2 (50, 480, 21) and Dy (16, 12, 320, 160) by the bounds before."""
    n, c, m, b, u = s.n, s.c, s.m, s.b, s.u
    rest = 1 - s.move * s.v * m * n * b * (300 + 960 * u)
    noise = 15 + 126 * c**2 * s.move * m**2 / n**2 + 48 * u
    gradients = 3 * n**2 + (126 + 480 * u) * b * c**2 * s.move * m**2
    return {
        "64": noise / rest / (64 * u),
        "7": gradients / rest / (7 * n**2),
        "416": (36 + 2880 * s.move * m) / rest / 416,
    }


def second_trackers(s: Setting) -> Ratios:
    """sum |Dy|^2, second: 16, 12, 320 and 160, with Dx (64, 7, 416) by the bound before."""
    n, c, m, b, u, v = s.n, s.c, s.m, s.b, s.u, s.v
    return {
        "32": 16 * (1 + 1280 * s.move * m * n * v * b * u) / 32,
        "26": (12 + 133120 * s.move * m * n * v * b * u) / 26,
        "170": (160 * c**2 * m**2 + 2240 * m * n**3 * v) / (170 * c**2 * m**2),
    }


def second_distance(s: Setting) -> Ratios:
    """sum Delta_2, second: 50, 480 and 21, with Dx (64, 7, 416) by the bound before."""
    n, c, m, b, u, v = s.n, s.c, s.m, s.b, s.u, s.v
    return {
        "181": (21 * c**2 * m**2 / n + 3200 * m * n**2 * v * b * u) / (181 * c**2 * m**2 / n),
        "21280": (20800 * n**2 * v * b + 480 * n) / (21280 * n**2 * v * b),
        "38": (21 * c**2 * m + 350 * n**3 * v) / (38 * c**2 * m),
    }


DISPLAYS = {
    "22a": first_trackers,
    "22b": first_distance,
    "22c": consensus,
    "22d": second_trackers,
    "22e": second_distance,
}


def display(rng: Generator, effort: int, *, key: str, forgiven: float = 1.0) -> Evidence:
    """Each coefficient of a display over the one that is printed, at the largest step and the least block.

    ``forgiven`` is a factor by which printed coefficients may be too small.
    """
    settings = [Setting.of(pair) for pair in pairs(rng, max(14, effort // 3))]
    exact = {n: DISPLAYS[key](Setting.average(n)) for n in (2, 3, 4, 16)}
    found = [*exact.values(), *map(DISPLAYS[key], settings)]
    largest = {name: max(float(one[name]) for one in found) for name in found[0]}
    told = ", ".join(f"{name}: {ratio:.3g}" for name, ratio in largest.items())
    broken = {n: {name: str(r) for name, r in one.items() if r > forgiven} for n, one in exact.items()}
    n, proof = next(((n, one) for n, one in broken.items() if one), (0, {}))
    text = f"largest what follows/printed of {len(found)} networks: {told}"
    if proof:
        text += f"; 11^T/{n}, exactly: {', '.join(f'{name}: {ratio}' for name, ratio in proof.items())}"
    passed = all(within(ratio / forgiven) for ratio in largest.values())
    return conclude(text, largest, {"A = B": f"11^T/{n}", "what follows/printed": proof}, printed=passed)


def _claim(key: str, statement: str, expected: str) -> Claim:
    return Claim(key, statement, "Lemma 2, proof", expected, partial(display, key=key))  # type: ignore[arg-type]


CLAIMS = (
    _claim("22a", "16, 12, 320 and 160 in the first bound on sum |Dy|^2 follow from the displays before", "holds"),
    _claim("22b", "50, 480 and 21 in the first bound on sum Delta_2 follow from the displays before", "false"),
    _claim("22c", "64, 7 and 416 in the bound on sum |Dx|^2 follow from the displays before", "false"),
    _claim("22d", "32, 26 and 170 in the second bound on sum |Dy|^2 follow from the displays before", "false"),
    _claim("22e", "181, 21280 and 38 in the second bound on sum Delta_2 follow from the displays before", "false"),
)
