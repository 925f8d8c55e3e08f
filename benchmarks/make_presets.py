"""Write the presets of links, src/perron/clock/presets/*.csv, from the figures of their sources.

    .venv/bin/python benchmarks/make_presets.py FOLDER

The folder holds aws-10.csv (figures of Yuan et al. 2022) and the GML files of Marfoq et al. 2020. Numbers are carried over as
they are; names of routers are shortened.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import networkx as nx

from perron._storage.atomic import write_bytes
from perron.clock import presets

CORE = 1000  # Mbit/s of every link of an underlay
FROM = "lengths from Marfoq et al. 2020 (omarfoq/communication-in-cross-silo-fl, Apache-2.0)"
SOURCES = {
    "gaia": ("gaia.gml", f"eleven data centers of Gaia (Hsieh et al. 2017); {FROM}"),
    "aws-na": ("amazon_us.gml", f"AWS in North America; {FROM}"),
    "geant": ("geantdistance.gml", f"Geant 2012 (Internet Topology Zoo); {FROM}"),
    "exodus": ("exodus.gml", f"Exodus (Rocketfuel; Spring et al. 2002); {FROM}"),
    "ebone": ("ebone.gml", f"Ebone (Rocketfuel; Spring et al. 2002); {FROM}"),
}


def short(label: str) -> str:
    """``San+Jose,+CA471`` is San Jose 471."""
    city, _, rest = label.replace("+", " ").partition(",")
    number = re.search(r"\d+$", rest or city)
    return f"{city.rstrip('0123456789')} {number[0]}" if number else city


def underlay(path: Path, about: str) -> str:
    """Return the text of a preset: the links with their lengths, then the nodes in their order."""
    graph = nx.read_gml(path)
    name = {node: short(node) for node in graph}
    if len(set(name.values())) < len(name):
        raise SystemExit(f"{path}: shortened names are not all different.")
    links = [f"{name[a]},{name[b]},{data['distance']!r},{CORE}" for a, b, data in graph.edges(data=True)]
    head = f"# both_ways=true; {about}; {CORE // 1000} Gbit/s is assumed"
    return "\n".join([head, "from,to,distance_km,rate_mbit", *links, "node", *name.values()]) + "\n"


def main(folder: Path) -> None:
    for name, (file, about) in SOURCES.items():
        write_bytes(presets.FOLDER / f"{name}.csv", underlay(folder / file, about).encode())
    rows = [line for line in (folder / "aws-10.csv").read_text().splitlines() if not line.startswith("#")]
    head = (
        "# both_ways=true; ten AWS regions, delays and rates of all pairs from Yuan et al. 2022 (DS3Lab/DT-FM, MIT); delays are "
        "taken as one way"
    )
    write_bytes(presets.FOLDER / "aws-10.csv", ("\n".join([head, *rows]) + "\n").encode())
    for name in presets.names():
        print(presets.load(name), "-", presets.load(name, route=False))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
