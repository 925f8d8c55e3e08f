"""One self-contained HTML page about one or several studies: what was run, the networks, the curves, what they mean, the data.

The page loads nothing: plotly, styles and data are within it, and its Content-Security-Policy lets no other script run. It reads
what `perron study run` left in its directories; nothing here runs anything. A study that is not complete gets a page that says
what is missing.

    facts.py      what was run, and how to run it again
    curves.py     the curves, thinned to what a screen shows
    charts.py     charts of what was concluded: fits, times, blocks, heat maps
    networks.py   the digraphs, drawn, with their numbers
    page.html, page.css, page.js
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from perron import __version__
from perron._storage.atomic import write_bytes
from perron._storage.jsonable import to_jsonable
from perron.errors import PerronError
from perron.monitor.progress import format_duration
from perron.report import charts, curves, facts, networks
from perron.studies.conclusions import conclude
from perron.studies.conclusions.base import Conclusion
from perron.studies.runner import Outcome, read_manifest, read_study

HERE = Path(__file__).parent
NUMBERS = 300_000  # in all curves of a page together: about 3 MB
WHOLE = 2_000_000  # characters that a page may spend on complete tables


def write(studies: Sequence[str | Path | Outcome], path: str | Path, *, concluded: Conclusion | None = None) -> Path:
    """Write the page about studies, given by their directories or as outcomes.

    ``concluded`` is what follows from a single study, if that is known already; to conclude can take a while.
    """
    outcomes = [one if isinstance(one, Outcome) else read_study(one) for one in studies]
    return write_bytes(path, page(outcomes, concluded=concluded).encode())


def page(outcomes: Sequence[Outcome], *, concluded: Conclusion | None = None) -> str:
    """The page as text; see `write`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    if not outcomes:
        raise PerronError("A report is about one study at least; got none.")
    points = curves.points(outcomes, NUMBERS)
    room, sections, data = WHOLE, [], []
    for number, outcome in enumerate(outcomes, start=1):
        section, content = _section(outcome, f"study-{number}", points, concluded)
        table = _complete(outcome, room)
        room -= len(table["numbers"]) if table else 0
        sections.append(section | {"complete": table is not None, "rows": len(outcome.table)})
        data.append(content | {"complete": to_jsonable(table)})
    scripts = {
        "theme": "document.documentElement.dataset.theme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';"
    }
    plotly = _inline(get_plotlyjs())
    scripts |= {"plotly": plotly, "page": _inline((HERE / "page.js").read_text(encoding="utf-8"))}
    style = (HERE / "page.css").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html").render(
        title=sections[0]["title"] if len(sections) == 1 else f"{len(sections)} studies",
        version=__version__,
        sections=sections,
        # Plotly adds a large style for maps, which no page here has, unless an element of this name is there.
        unneeded=re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotly),
        policy=policy(scripts.values(), [style]),
        style=Markup(style),  # noqa: S704  (our own file)
        scripts={name: Markup(text) for name, text in scripts.items()},  # noqa: S704  (our own files and plotly's)
        data=Markup(_json({"studies": data})),  # noqa: S704  (escaped by _json)
    )


def policy(scripts: Any, styles: Any) -> str:
    """What the page may do: run its own scripts, by hash, and nothing else; load nothing.

    Plotly puts an empty <style> into the page and fills it by rules, hence the hash of nothing. It sets `style` attributes on
    what it draws, for which there are no hashes: those alone are allowed inline. Heat maps and saved pictures are data: and blob:
    images.
    """
    run = " ".join(_hash(text) for text in scripts)
    look = " ".join(_hash(text) for text in [*styles, ""])
    return (
        f"default-src 'none'; script-src {run}; style-src-elem {look}; style-src-attr 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _section(
    outcome: Outcome, name: str, points: int, concluded: Conclusion | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the template says of a study, and what the script draws of it."""
    study, said = outcome.study, read_manifest(outcome.folder)
    try:
        found, trouble = concluded or conclude(outcome), ""
    except PerronError as error:
        found, trouble = Conclusion(), str(error)
    drawn, table, lost = networks.networks(outcome)
    lines = curves.curves(outcome, said.runs, points)
    charted = charts.charts(outcome, found) if not trouble else []
    command, own_file = facts.command(study)
    heat = charts.heat_maps(found)
    section = {
        "id": name,
        "title": study.title or study.name,
        "name": study.name,
        "about": [part for part in re.split(r"\n\s*\n", study.about.strip()) if part],
        "sentences": found.sentences,
        "trouble": trouble,
        "failed": list(outcome.failed.values()),
        "warned": list(outcome.warned.values()),
        "missing": facts.missing(outcome),
        "facts": facts.run_facts(outcome, said),
        "duration": format_duration(outcome.seconds, decimals=1),
        "runs": len(study.runs),
        "toml": facts.toml(study),
        "command": command,
        "own_file": own_file,
        "tables": {title: _cells(cells) for title, cells in found.tables.items()},
        "networks": _cells(table) if table is not None else None,
        "drawn": bool(drawn),
        "symbols": networks.MEANINGS,
        "lost": lost,
        "curves": lines is not None,
        "thinned": lines["thinned"] if lines else None,
        "charts": [{"title": chart["title"], "about": chart["about"]} for chart in charted],
        "heat_maps": heat,
    }
    content = {"id": name, "name": study.name, "title": section["title"], "curves": lines}
    return section, content | to_jsonable(
        {"charts": charted, "networks": drawn, "heat_maps": heat, "toml": section["toml"]}
    )


def _cells(table: Any) -> dict[str, Any]:
    return {"columns": list(table.columns), "rows": table.to_numpy().tolist()}


def _complete(outcome: Outcome, room: int) -> dict[str, Any] | None:
    """The complete table: the runs' parameters, and the other columns as packed numbers; None if that takes too much room."""
    if outcome.table.empty:
        return None
    names = curves.measured(outcome.table)
    if len(outcome.table) * len(names) * 10 > room:  # eight bytes for each number, in base64
        return None
    parts = [part for _, part in outcome.table.groupby("run", sort=False)]
    rows = pd.concat(parts)
    numbers = [rows[name].to_numpy("<i4").tobytes() for name in ("step", "trial")]
    numbers += [rows[name].to_numpy("<f8").tobytes() for name in names]
    packed = base64.b64encode(gzip.compress(b"".join(numbers), 6, mtime=0)).decode()
    columns = list(rows.columns[: list(rows.columns).index("step")])
    found = {"columns": columns, "metrics": names, "rows": [len(part) for part in parts], "numbers": packed}
    return found | {"runs": [part[columns].iloc[0].tolist() for part in parts]} if len(packed) <= room else None


def _json(content: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _inline(script: str) -> str:
    """A script that cannot end its own element either."""
    if re.search(r"</script|<!--", script, re.IGNORECASE) or "\r" in script:
        raise PerronError("A script cannot be embedded as it is: it ends its own element.")
    return script


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
