"""Names and numbers of a table of results as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perron.algorithms import ALGORITHMS

VARYING = ("weights", "algorithm", "lr_setting", "seed", "network_seed")  # besides options of problem and links
OPTIONS = ("link_", "problem_", "clock_")
TITLES = {
    "grad_norm_sq": "squared gradient norm",
    "grad_norm_sq_mean": "squared gradient norm at the plain mean",
    "grad_norm_sq_local": "squared norm of the mean local gradient",
    "loss_mean": "training loss of the averaged model",
    "test_accuracy": "test accuracy of the averaged model",
    "test_loss": "test loss of the averaged model",
    "test_accuracy_weighted": "test accuracy of x-hat",
    "test_accuracy_local": "test accuracy of the nodes, mean",
    "test_accuracy_worst": "test accuracy of the worst node",
    "consensus_error_sq": "consensus error, squared",
    "residual_sq": "squared residual",
    "grad_norm_batch": "norm of the averaged minibatch gradient",
    "distance_sq": "squared distance from the optimum",
}
SYMBOLS = {"grad_norm_sq": r"$\|\nabla f(\hat x)\|^2$"}


def table(rows: Sequence[Mapping[str, str]]) -> Any:
    """Return a table of cells that are text; cells that are missing are empty."""
    import pandas as pd

    return pd.DataFrame(rows).fillna("")


def to_markdown(cells: Any) -> str:
    """Return a table of cells in Markdown."""
    rows = [list(cells.columns), ["---"] * len(cells.columns), *cells.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)


LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "²": r"$^2$"}


def to_latex(cells: Any) -> str:
    """Return a table of cells in LaTeX, with the rules of the package booktabs."""
    escaped = LATEX | {mark: f"\\{mark}" for mark in "#$%&_{}"}

    def line(row: Sequence[Any]) -> str:
        return " & ".join("".join(escaped.get(mark, mark) for mark in str(cell)) for cell in row) + r" \\"

    head, body = line(list(cells.columns)), map(line, cells.to_numpy().tolist())
    start = f"\\begin{{tabular}}{{{'l' * len(cells.columns)}}}"
    return "\n".join([start, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"])


def metric_title(name: str) -> str:
    """Return what a metric measures."""
    return TITLES.get(name, readable(name))


def metric_symbol(name: str) -> str:
    """Return the title of an axis: a formula if there is one."""
    return SYMBOLS.get(name, metric_title(name))


def with_error(value: float, error: float, digits: str = ".3e") -> str:
    """Return ``1.2e-06 ± 3e-08``; without the error if it is not finite; empty if the value is not."""
    if not np.isfinite(value):
        return ""
    return f"{value:{digits}}" + (f" ± {error:{digits if 'f' in digits else '.0e'}}" if np.isfinite(error) else "")


OWN = re.compile(r"^(file:(.*/)?|[\w.]+:)")  # before a name of the user's own


def readable(name: str) -> str:
    """Return a name of a table with spaces and without prefixes, modules and directories.

    >>> readable("random_digraph"), readable("my_module:wheel(spokes=3)"), readable("file:networks/abilene.gml")
    ('random digraph', 'wheel(spokes=3)', 'abilene.gml')
    """
    name = OWN.sub("", name)
    name = name.replace("problem_", "").replace("clock_", "")
    return name.replace("link_", "link ").replace("lr_setting", "lr").replace("_", " ")


def algorithm_title(algorithm: str) -> str:
    """Return the title of an algorithm, with its options.

    >>> algorithm_title("push_pull_atc(move=adamw)")
    'Push-Pull, ATC, adamw'
    >>> algorithm_title("push_pull_diloco(local_steps=16, wire=int4)")
    'Push-Pull DiLoCo, H=16, int4'
    """
    name, _, options = algorithm.partition("(")
    if name not in ALGORITHMS:
        return OWN.sub("", algorithm)
    title, options = ALGORITHMS[name].about.title, re.sub(r"\b(move|wire)=", "", options.removesuffix(")"))
    if found := re.search(r"(^|, )local_steps=(\d+)", options):  # the title has the default
        title, options = re.sub(r"H=\d+", f"H={found[2]}", title), options.replace(found[0], "", 1).removeprefix(", ")
    return ", ".join(filter(None, [title, options]))


def describe(variant: Mapping[str, Any]) -> str:
    """Return the values that distinguish a variant, as text."""
    return ", ".join(
        algorithm_title(value) if key == "algorithm" else f"{readable(key)} {readable(str(value))}"
        for key, value in variant.items()
    )


def panel_title(variant: Mapping[str, Any], *parts: str) -> str:
    """Return the title of a panel, with the values that distinguish its variant."""
    return ", ".join(filter(None, [*parts, describe(variant)]))


def file_name(base: str, variant: Mapping[str, Any]) -> str:
    """Return the name of a file about a variant.

    >>> file_name("curves", {"weights": "random_integer", "algorithm": "push_pull(move=adamw)"})
    'curves-random-integer-push-pull-move-adamw'
    """
    return "-".join([base, *(re.sub(r"[^A-Za-z0-9.]+", "-", str(value)).strip("-") for value in variant.values())])


def variant_of(row: Mapping[str, Any], but: str = "") -> dict[str, Any]:
    """Return the values of a row that distinguish its variant."""
    return {key: row[key] for key in row if key != but and (key in VARYING or key.startswith(OPTIONS))}


def identity(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells that say which runs a row is about."""
    cells = {readable(key): readable(str(value)) for key, value in variant_of(row, but="algorithm").items()}
    cells |= {name: str(row[name]) for name in ("variant", "topology", "nodes", "algorithm") if row.get(name, "") != ""}
    named = {"topology": readable, "algorithm": algorithm_title}
    return {name: named[name](cell) if name in named else cell for name, cell in cells.items()}
