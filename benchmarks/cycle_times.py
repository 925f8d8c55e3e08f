"""Print the cycle times of Marfoq et al. 2020 beside ours: five networks, three models, four overlays.

    python benchmarks/cycle_times.py

Milliseconds per step in their model: `perron.clock.overlays.published_cycle_time` on `presets.load(name, per_hop=True)`, with a
core of 1 Gbit/s and accesses of 10 Gbit/s. Published figures are those of iNaturalist; those of FEMNIST and Sent140 were not at
hand, and ours stand alone. Rings are tours by Christofides' algorithm, whose ties may be broken in several ways; the last column
is our tour (nearest neighbors, 2-opt).
"""

from __future__ import annotations

from perron.clock import overlays, presets

MODELS = {
    "iNaturalist": (44_961_717, 0.0254),
    "Sent140": (19_269_416, 0.0098),
    "FEMNIST": (4_843_243, 0.0046),
}  # bits, seconds
OVERLAYS = ("STAR", "MST", "delta-MBST", "RING")
PUBLISHED = {  # iNaturalist, ms, in the order of OVERLAYS: Do et al. 2023 (arXiv 2207.09657), Table 3
    "gaia": (390.9, 138.1, 138.1, 118.1),
    "aws-na": (288.1, 89.7, 89.7, 81.3),
    "geant": (622.3, 101.0, 101.0, 109.0),
    "exodus": (911.9, 145.3, 145.3, 103.9),
    "ebone": (901.7, 121.8, 121.8, 95.3),
}


def cycle_times(name: str, model: str) -> dict[str, float]:
    """Return milliseconds per step, by overlay.

    The hub of the star is node 0: the published code takes the node of the greatest load centrality in the complete graph of
    silos, where no shortest path has a node between, so that all are 0 and the first one is taken.
    """
    machines = presets.load(name, per_hop=True)
    bits, compute = MODELS[model]
    size = bits / 8
    graphs = {
        "STAR": overlays.star(machines, hub=0),
        "MST": overlays.minimum_spanning_tree(machines, size, compute=compute),
        "delta-MBST": overlays.delta_mbst(machines, size, compute=compute),
        "RING": overlays.ring(machines, size, improve=False),
        "RING, 2-opt": overlays.ring(machines, size),
    }
    return {
        overlay: 1e3 * overlays.published_cycle_time(machines, graph, size, compute=compute)
        for overlay, graph in graphs.items()
    }


def main() -> None:
    for model in MODELS:
        published = model == "iNaturalist"
        print(
            f"\n{model}, ms per step: ours{' / published (error)' if published else '; published figures not at hand'}\n"
        )
        print(f"{'':8}" + "".join(f"{overlay:>26}" for overlay in OVERLAYS) + f"{'RING, 2-opt':>14}")
        for name, figures in PUBLISHED.items():
            ours = cycle_times(name, model)
            cells = []
            for overlay, theirs in zip(OVERLAYS, figures, strict=True):
                found = ours[overlay]
                cells.append(f"{found:.1f} / {theirs:.1f} ({found / theirs - 1:+.1%})" if published else f"{found:.1f}")
            print(f"{name:8}" + "".join(f"{cell:>26}" for cell in cells) + f"{ours['RING, 2-opt']:14.1f}")


if __name__ == "__main__":
    main()
