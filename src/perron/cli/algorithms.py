"""``perron algorithms``: the algorithms and their properties."""

from __future__ import annotations

from perron.cli.app import console, write_json
from perron.cli.options import Json

WIDTH = 160  # columns that the table needs


def algorithms(as_json: Json = False) -> None:
    """List the algorithms: what they need, send and reach.

    perron algorithms
    perron algorithms --json
    """
    from dataclasses import asdict

    from perron.algorithms import ALGORITHMS, MOVES
    from perron.algorithms.moves import Moving
    from perron.simulation.cost import measure_traits

    if as_json:
        found = {name: asdict(one.about) | measure_traits(one)._asdict() for name, one in ALGORITHMS.items()}
        write_json({name: facts | {"moves": isinstance(ALGORITHMS[name], Moving)} for name, facts in found.items()})
        return
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(
        "name", "algorithm", "matrices", "sends per edge", "overlaps", "step", "", "move", "reference", box=SIMPLE
    )
    family = ""
    for name, algorithm in ALGORITHMS.items():
        about = algorithm.about
        if about.family != family:
            family = about.family
            table.add_row(f"[bold]{family}[/bold]")
        traits, exact = measure_traits(algorithm), "exact" if about.exact else "biased"
        takes = "yes" if isinstance(algorithm, Moving) else ""
        measured = (traits.sends, traits.overlap, traits.effective_step)
        table.add_row(f" {name}", about.title, about.matrices, *measured, exact, takes, about.reference)
    screen = console(WIDTH)
    screen.width = max(screen.width, WIDTH)
    screen.print(table)
    screen.print(
        "A row-, B column-, W doubly stochastic (sym: symmetric), R C a spanning-tree pair. d: length of the model, n: nodes.\n"
        "step: the effective step, which comparisons hold equal. biased: off by O(lr) at a constant lr.\n"
        f"move: takes a move: {', '.join(MOVES)}."
    )
