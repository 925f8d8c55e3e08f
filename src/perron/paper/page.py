"""The page "What holds in the paper", from the results of all checks."""

from __future__ import annotations

from collections.abc import Sequence

from perron.paper import MEANING, Result
from perron.paper.practicality import HEADINGS, Practicality

INTRODUCTION = """\
# What holds in the paper

The paper proves linear speedup for stochastic Push-Pull on any strongly connected digraph, and the runs of this library
agree: the noise floor falls as 1/n. Its text, however, has slips, from exponents to inequalities that are false as
printed. Here every statement that we had reason to doubt, or to rely on, is put to a numerical test. Nothing in the
library rests on those that fail.

This page is written by the command itself:

<!-- long: two minutes -->
```console
$ perron paper check                     # all claims; --effort full looks harder, and takes some minutes
$ perron paper check --only 7h --json    # one of them, with its counterexample
$ perron paper check --write docs/paper.md
```

A check looks for a counterexample: on two-node chains with negative eigenvalues, hubs, rings, nearly reducible and dense
random matrices, matrices close to 11^T/n, and the paper's topologies with weights 1..9, and then uphill from the worst of
them. Expectations are computed exactly where the iterates are linear in the noise. So "false" is certain, up to
rounding, while "holds" means that a search which could have found a counterexample found none. Of some claims (1, 2, 2b,
2d, 2e, 9) it is the derivation that is in question, that one printed expression bounds another; such a slip does not by
itself make the bound in the end false.

- **holds**: {holds}.
- **false**: {false}.
- **repaired**: {repaired}. A repair mends that step alone.
  Whether the theorem as a whole follows from the repaired steps would need a new proof; at leading order it seems to,
  with m growing as (n^3 T)^(1/4) instead of (n T)^(1/4).

Notation: |.| is the norm (spectral for matrices, Frobenius for iterates), a the step, Dx = (I - A_inf) x,
Dy = (I - B_inf) y, delta_0 = I - B_inf, delta_j = B^j - B^(j-1), s_Am and s_Bm those of A^m and B^m; all else as in the
paper and in `perron.spectral`. "The code" is what the authors released. Lemma 1, Lemma 2 and Theorem 1 are the m-step
descent lemma, the lemma on consensus errors and the main theorem, whatever numbers they have in print.
"""

PRACTICE = """\
## What Theorem 1 asks for

Medians of {weightings} random integer weightings 1..9. C-tilde is the least block m, and so the least number of steps T,
about which the theorem says anything; the largest step is its branch 1/(10 c m sqrt(s_B) s_Bm L) at m = C-tilde; the usual
step is Push-Pull's default in this library, which was found stable on all networks tried; the last column is where, at
sigma^2 = L Delta, the step's standard branch takes over, with which the leading term is the rate. `perron.theory.theorem`
computes all this, as printed and as corrected: a diagnostic, not a way to choose a step.
"""

REMARKS = """\
## What came out differently, and what was not checked

Against the list of errata with which this began, made by hand from separate experiments:

- **7l.** The list has the bound on E |Dy^(0)|^2 fail wherever n |pi_B|^2 > 2. The noise part never fails: the noises of
  the nodes are independent, which gives (n - 2 + n |pi_B|^2) sigma^2 < 2 n sigma^2. The gradient part can fail but
  need not, since each node's gradient is bounded on its own: of the weightings of ring+chords16 with n |pi_B|^2 > 2
  some break the bound and some do not (with `--effort full`, 6 of 13 do).
- **9.** The list has conditions on m that exceed C-tilde by a factor of up to 3.4; on hubs we find several hundred, since
  s_Am^2 s_Bm^2/s_A is not bounded by one.
- **2c** is more than a slip in the algebra: with constant losses and A = B = 11^T/n, Lemma 2 itself is false from n = 18.
- **12.** The omitted cross term alone refutes the one-step inequality, whatever its constants: two nodes are enough.
- **6.** Restoring n in the last term is not enough: the term with Dy needs n s_B^2 instead of s_B as well, because of
  7i; two nodes with a slow B show it.
- **3.** The list has runs with the step .05 not yet on their floor after 2,500 iterations; in our rerun (3b: the
  exponential graph, n = 4 and 16) what is left of the start is below the floor from iteration 1,750 on. From n = 4 to
  16 that floor falls by somewhat more than 4: with fewer samples at each node, minibatches of 200 vary less.
- **2e** needs the constant 13 instead of 10 in the step. `perron.theory.theorem` uses it, so that its corrected bound has 52 m
  where the list has 40 m.
- **7a, 7f, 7g** are nearly tight: with `--effort full` the search comes to .9999, .9998 (near 11^T/n) and .996 (two
  nodes). The list has .983, .58 and .74.
- **7h, 7i.** The harder one looks, the more they fail: with `--effort full` by a factor of 1.7 and, with two nodes and a
  slow B, of 554. The list's 23 for 7i is no limit.
- **16.** At m = 1 the residual varies between weightings: over c^2 sigma^2/n, with `--effort full` from .094 to 1.5 on
  ring+chords16 (37 weightings, median .64) and from .077 to .36 on exp16. The list's 1.145 and .14 are within these. Where
  A is doubly stochastic there is no residual at all.

Not checked, for want of a small numerical experiment: the neural-network experiments (row 14: independently initialised
models, BatchNorm statistics that are not mixed, test scores in training mode); the number of iterations behind the figures
(row 3: the text does not say it, 3,000 is assumed); L_i = L_Local/n, "for all k" in Proposition 1 and m >= 6 s_B^2/c^2
against s_B (row 15), which are matters of reading.
"""


def page(results: Sequence[Result], rows: Sequence[Practicality], *, seed: int, effort: str, weightings: int) -> str:
    """The page as Markdown."""
    agree = sum(result.agrees for result in results)
    parts = [
        INTRODUCTION.format(**MEANING),
        "## The claims\n",
        _table(("", "the paper says", "where", "verdict", "evidence"), [_cells(result) for result in results]),
        f"\n{agree} of {len(results)} verdicts are the expected ones (seed {seed}, effort {effort}).\n",
        PRACTICE.format(weightings=weightings),
        _table(HEADINGS, [row.cells() for row in rows]),
        f"\n{REMARKS}",
    ]
    return "\n".join(parts)


def _cells(result: Result) -> list[str]:
    claim, evidence = result.claim, result.evidence
    verdict = f"**{evidence.verdict}**" + (f": {claim.repair}" if evidence.verdict == "repaired" else "")
    if not result.agrees:
        verdict += f" (expected: {claim.expected})"
    return [claim.key, claim.statement, claim.where, verdict, evidence.text]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        kept = (cell.replace("|", r"\|") for cell in cells)  # bars are norms here, not ends of cells
        return f"| {' | '.join(kept)} |"

    return "\n".join([line(headings), line(["---"] * len(headings)), *map(line, rows)]) + "\n"
