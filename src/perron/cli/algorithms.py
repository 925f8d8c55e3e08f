"""``perron algorithms``: the algorithms and their properties."""

from __future__ import annotations

from perron.cli.app import console, write_json
from perron.cli.options import Json

WIDTH = 150  # columns that the table needs


def algorithms(as_json: Json = False) -> None:
    """List the algorithms: what they need, send and reach.

    perron algorithms
    perron algorithms --json
    """
    from dataclasses import asdict

    from perron.algorithms import ALGORITHMS
    from perron.simulation.cost import measure_traits

    if as_json:
        write_json({name: asdict(one.about) | measure_traits(one)._asdict() for name, one in ALGORITHMS.items()})
        return
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table("name", "algorithm", "matrices", "sends per edge", "overlaps", "step", "", "reference", box=SIMPLE)
    family = ""
    for name, algorithm in ALGORITHMS.items():
        about = algorithm.about
        if about.family != family:
            family = about.family
            table.add_row(f"[bold]{family}[/bold]")
        traits, exact = measure_traits(algorithm), "exact" if about.exact else "biased"
        measured = (traits.sends, traits.overlap, traits.effective_step)
        table.add_row(f" {name}", about.title, about.matrices, *measured, exact, about.reference)
    screen = console(WIDTH)
    screen.width = max(screen.width, WIDTH)
    screen.print(table)
    screen.print(
        "A row-, B column-, W doubly stochastic (sym: symmetric), R C a spanning-tree pair. d: length of the model, n: nodes.\n"
        "step: the effective step, which comparisons hold equal. biased: off by O(lr) at a constant lr."
    )
