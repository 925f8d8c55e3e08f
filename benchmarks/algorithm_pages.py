"""Writes docs/algorithms from docs/algorithms/measured.json and the algorithms' own docstrings; measures nothing.

    .venv/bin/python benchmarks/algorithm_pages.py

`benchmarks/algorithms.py` measures, draws the curves, and calls this in the end.
"""

import inspect
import json
import re
from pathlib import Path

from perron import ALGORITHMS, Mixing, Network
from perron._storage.atomic import write_bytes
from perron.algorithms.base import Algorithm
from perron.algorithms.moves import Moving
from perron.networks import topologies
from perron.networks.graph import Graph
from perron.simulation import measure_traits

DOCS = Path(__file__).parents[1] / "docs" / "algorithms"
GRAPHS = {
    "exp16": (topologies.exponential(16), Mixing.random_integer(topologies.exponential(16), seed=281)),
    "rdg12": (
        topologies.random_digraph(12, probability=0.25, seed=27),
        Mixing.random_integer(topologies.random_digraph(12, probability=0.25, seed=27), seed=1),
    ),
}
FAMILIES = {
    "push-pull": "Push-Pull: A for models, B for trackers",
    "push-only": "Push-only: column-stochastic B",
    "pull-only": "Pull-only: row-stochastic A",
    "undirected": "Doubly stochastic W",
    "tree": "Spanning trees",
    "federated": "Federated",
    "centralized": "Centralized",
    "gossip": "Gossip: averages, no gradients",
}
NEEDS = {
    "A B": "a row-stochastic A and a column-stochastic B with a common root (as strongly connected graphs have)",
    "A": "a row-stochastic A, strongly connected, with a self-loop at every node",
    "B": "a column-stochastic B, strongly connected",
    "W": "doubly stochastic weights (`Mixing.metropolis` or `Mixing.balanced`)",
    "W sym": "symmetric doubly stochastic weights (`Mixing.metropolis`)",
    "R C": "a spanning-tree pair (`Mixing.spanning_trees`)",
    "-": "nothing but an average over all nodes",
}
FOCUS = r"""
\begin{aligned}
&\text{a client that takes part:} && w = x,\quad s = 0,\quad \text{then } \mathrm{local\_steps} \text{ times} \\
& && g = \nabla f(w),\quad s \mathrel{+}= g - g^{\mathrm{last}},\quad g^{\mathrm{last}} = g,\quad
\text{and between them } w \mathrel{-}= \eta s \\
&\text{the server:} && y \mathrel{+}= \sum s \text{ over those that took part},\quad x^{+} = x - \eta y
\end{aligned}
"""  # a procedure rather than equations
ROBUST = r"""
\begin{aligned}
s_j &= y_j^{0} + \dots + y_j^{k} && \text{is sent, with } x_j;\ s_{ij} \text{ and } x_{ij} \text{ are the newest that } i
\text{ has heard from } j \\
y_i^{+} &= B_{ii}\,y_i + \textstyle\sum_j B_{ij}\,(s_{ij} - r_{ij}) + \nabla f_i(x_i^{+}) - \nabla f_i(x_i),
&& r_{ij}^{+} = s_{ij} \\
x_i^{+} &= A_{ii}\,x_i + \textstyle\sum_j A_{ij}\,x_{ij} - \eta\,y_i^{+}
\end{aligned}
"""  # about single links rather than matrices
ROUNDS = {  # what comes before the exchange
    "local_push_pull": r"z &= x,\quad\text{then } H \text{ times}\quad z \mathrel{-}= \eta\,(\nabla f(z) + y - h),\qquad "
    r"h^{+} = \text{mean of the } H \text{ gradients}",
    "push_pull_diloco": r"z &= x,\quad\text{then } H \text{ times}\quad z \mathrel{-}= \eta\,\nabla f(z),\qquad p^{+} = x - z",
    "diloco": r"z &= x,\quad\text{then } H \text{ times}\quad z \mathrel{-}= \eta\,\nabla f(z)",
    "local_sgd": r"z &= x,\quad\text{then } H \text{ times}\quad z \mathrel{-}= \eta\,\nabla f(z)",
}
WORDS = {
    "lr": r"\eta", "theta": r"\theta", "phi": r"\phi", "psi": r"\psi", "nesterov": r"\mathrm{nesterov}",
    "heavy": r"\mathrm{heavy}", "momentum": r"\mathrm{momentum}", "mean": r"\operatorname{mean}", "max": r"\max",
    "grad": r"\nabla f", "grad_s": r"\nabla f_s",
}  # fmt: skip


def network_for(algorithm: Algorithm, graph: Graph, mixing: Mixing, name: str = "") -> Mixing:
    """The kind of network that an algorithm asks for."""
    if algorithm.about.matrices.startswith("W"):
        return Mixing.metropolis(graph.symmetric())
    if algorithm.about.matrices == "R C":
        return Mixing.spanning_trees(topologies.tree(graph.nodes) if name == "btpp" else graph)
    return mixing


def parts(algorithm: Algorithm) -> tuple[str, list[str], list[str], str]:
    """The docstring in parts: what it is, the lines of the recursion, what else there is to say, and the reference."""
    what, *rest = inspect.cleandoc(algorithm.__doc__ or "").split("\n\n")
    lines = [line.strip() for line in rest[0].splitlines()]
    said = [text for text in rest[1:] if not text.startswith(("Args:", "Example:", " "))]
    reference = [text for text in said if text.startswith("Reference")]
    said = [" ".join(text.split()) for text in said if text not in reference]
    where = " ".join(reference[0].split(":", 1)[1].split()) if reference else ""
    said = [re.sub(r"^(from|with|where)\b", lambda word: word[0].title(), text) for text in said]
    return " ".join(what.split()), lines, said, where


def tex(formula: str) -> str:
    """A formula of a docstring, typeset: x+ is the next x, x_prev the one before."""

    def word(found: re.Match[str]) -> str:
        name, plus = found[1], found[2]
        name = f"{WORDS.get(name[:-5], name[:-5])}^{{-}}" if name.endswith("_prev") else WORDS.get(name, name)
        return f"{name}^{{+}}" if plus else name

    own = re.fullmatch(r"(\S+) = own entry of (\S+)", formula)
    if own:
        return rf"{tex(own[1])} &= \text{{own entry of }} {tex(own[2])}"
    typeset = re.sub(r"([A-Za-z]\w*)(\+(?= |$|\)))?", word, formula).replace("R, C", r"R,\ C")
    typeset = re.sub(r"(?<!\\nabla)(?<=[A-Za-z}]) (?=[A-Za-z\\(])", r"\\,", typeset)
    return typeset.replace(" = ", " &= ", 1)


def recursion(name: str) -> tuple[str, list[str]]:
    """The recursion of an algorithm in its own order of operations, typeset, and the notes beside it."""
    algorithm = ALGORITHMS[name]
    if algorithm.about.family == "federated" or algorithm.about.robust:
        return (ROBUST if algorithm.about.robust else FOCUS).strip(), []
    _, lines, _, _ = parts(algorithm)
    order = f"{getattr(algorithm, 'order', algorithm.about.title)}:"
    chosen = [line.removeprefix(order).strip() for line in lines if line.startswith(order)] or [lines[0]]
    pieces = re.split(r"\s{3,}", chosen[0])
    if hasattr(algorithm, "damped"):
        pieces = [re.sub(r",  or (.*) where undamped", "" if algorithm.damped else r"  \1", piece) for piece in pieces]
        pieces = [re.sub(r"x\+ = \(phi \+ W phi\)/2  ", "x+ = ", piece) for piece in pieces]
    pieces = [piece for piece in pieces if not piece.startswith("z = x, then")]  # ROUNDS has it
    equations = [piece for piece in pieces if re.match(r"\w+\+? = ", piece) and "Mixing" not in piece]
    notes = [re.sub(r"^\((.*)\)$", r"\1", piece) for piece in pieces if piece not in equations]
    typeset = [*([ROUNDS[name]] if name in ROUNDS else []), *(tex(equation) for equation in equations)]
    rows = " \\\\\n".join(typeset)
    return f"\\begin{{aligned}}\n{rows}\n\\end{{aligned}}", notes


def escaped(text: str) -> str:
    """Plain text as Markdown; double backticks, as in docstrings, as single ones."""
    pieces = re.split(r"(``.*?``|`[^`]+`)", text)
    return "".join(
        f"`{piece.strip('`')}`" if piece.startswith("`") else re.sub(r"([*<>|$\[\]\\])", r"\\\1", piece)
        for piece in pieces
    )


def page(name: str, facts: list[str]) -> str:
    """The page of an algorithm."""
    algorithm = ALGORITHMS[name]
    about, (what, _, said, where) = algorithm.about, parts(algorithm)
    formula, notes = recursion(name)
    traits = measure_traits(algorithm)
    steps = [
        f"{algorithm.default_lr(Network(network_for(algorithm, graph, mixing, name)), 1.0):.3g} on {which}"
        for which, (graph, mixing) in GRAPHS.items()
    ]
    rows = {
        "needs": NEEDS[about.matrices]
        + ("; a problem with samples (`Problem.sample_counts`)" if about.samples else ""),
        "sends per edge and step": traits.sends,
        "overlaps the gradient": traits.overlap.replace("-", "nothing"),
        "effective step": traits.effective_step,
        "move": "takes one, see [moves](../concepts/moves.md)" if isinstance(algorithm, Moving) else "takes none",
        "at a constant step": "exact" if about.exact else "biased by O(lr)",
        "default lr, times L": "; ".join(steps) if about.family != "gossip" else "has none",
        "reference": escaped(where or about.reference).replace("-", "none", where == "" and about.reference == "-"),
        "class": f"{{py:class}}`perron.{type(algorithm).__name__}`",
    }
    text = [
        f"# {escaped(about.title)}", "", escaped(what), "",
        f"`perron.ALGORITHMS[{name!r}]` = `{algorithm.description}`", "",
        "## Recursion", "", "$$", formula, "$$", "",
        *([f"*{escaped('; '.join(notes))}*", ""] if notes else []),
        *[line for paragraph in said for line in (escaped(paragraph), "")],
        "## Facts", "", "| | |", "|---|---|", *[f"| {key} | {value} |" for key, value in rows.items()], "",
        "## Measured", "", *[f"- {fact}" for fact in facts], "",
        f"![error over steps]({name}.svg)", "",
        "[What the symbols mean, the networks exp16 and rdg12, and all other algorithms](index.md)", "",
    ]  # fmt: skip
    return "\n".join(text)


def index(measured: dict[str, dict[str, list[str]]]) -> str:
    """The list of all algorithms by family."""
    metrics = [
        f"{which}: c = {network.alignment:.3f}, s_A = {network.pull_sum:.2f}, s_B = {network.push_sum:.2f}"
        for which, network in ((which, Network(mixing)) for which, (_, mixing) in GRAPHS.items())
    ]
    head = ["algorithm", "exp16", "earlier", "rdg12", "earlier", "noise ratio n = 4, 8, 16, 32", "earlier (n = 32)"]
    averaging = len({type(one) for one in ALGORITHMS.values() if one.about.family == "gossip"})
    methods = len({type(one) for one in ALGORITHMS.values()}) - averaging
    text = [
        "# Algorithms", "",
        f"{len(ALGORITHMS)} variants of {methods} optimisation and {averaging} averaging methods; variants of a method differ in",
        "options such as the order of operations. An algorithm is written once, for one node, and runs unchanged in the",
        "simulator and in real processes. Each page has its recursion, its requirements on the network, its reference, its",
        "default step and measurements. `perron algorithms` lists them in the terminal.", "",
        r"In the recursions $x^{+}$ is the next $x$ and $x^{-}$ the one before, $\eta$ is the learning rate `lr`, and",
        r"$\nabla f(x)$ stacks every node's gradient at its own model. $A$ is row-stochastic, $B$ column-stochastic, $W$ doubly",
        "stochastic.", "",
    ]  # fmt: skip
    for family, title in FAMILIES.items():
        names = [name for name in measured if ALGORITHMS[name].about.family == family]
        rows = [[f"[{escaped(ALGORITHMS[name].about.title)}]({name}.md)", *measured[name]["cells"]] for name in names]
        table = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
        toctree = ["```{toctree}", ":hidden:", "", *names, "```"]
        text += [f"## {title}", "", *table, "", *toctree, ""]
    text += [
        "## How it was measured", "",
        "By `benchmarks/algorithms.py`. The columns *earlier* come from prototypes, on other draws of the same kind of network",
        "and problem, so that they agree in size and order, not to the digit.", "",
        r"- exp16, rdg12: iterations until max_i |x_i - x\*| <= 1e-10 on heterogeneous quadratics (eigenvalues 0.1 .. 1,",
        "  d = 5), on an exponential graph with 16 nodes and a random digraph with 12, at the best effective step of a grid (in",
        "  brackets, times L); for biased methods the error left at the step 0.05. Variance-reduced methods: on least squares",
        "  with 20 samples of length 1 at each node, one of which is drawn in a step.",
        r"- noise ratio: stationary E|x-hat - x\*|^2 over the closed form of centralized SGD with as many nodes, effective",
        "  step 0.05, on exponential graphs: 1 means linear speedup in full. In brackets the standard error at n = 32. With",
        "  local steps an iteration is a round, and centralized SGD has the mean of as many gradients in a step.",
        f"- {'; '.join(metrics)}.", "",
    ]  # fmt: skip
    return "\n".join(text)


def pages() -> dict[str, str]:
    """Every page by the name of its file, from what was measured."""
    measured = json.loads((DOCS / "measured.json").read_text())
    found = {f"{name}.md": page(name, what["facts"]) for name, what in measured.items()}
    return found | {"index.md": index(measured)}


def write() -> int:
    """Write all pages; how many."""
    found = pages()
    for name, text in found.items():
        write_bytes(DOCS / name, text.encode())
    return len(found)


if __name__ == "__main__":
    print(f"{write()} pages in {DOCS}")
