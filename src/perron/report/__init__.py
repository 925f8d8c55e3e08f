"""One self-contained HTML page about one or several studies: what was run, the networks, curves, conclusions and data.

The page loads nothing: plotly, styles and data are within it, and its Content-Security-Policy lets no other script run. It reads
the directories that `perron study run` wrote and runs nothing. The page of an incomplete study lists the runs that are missing.

    facts.py      how a study was run, and how to repeat it
    curves.py     the curves, thinned to the resolution of a screen
    networks.py   the digraphs, drawn, with their numbers
    page.html, page.css, page.js
    live.py, live.html, live.js   the same page while a study or training runs, for `perron watch --web`
    server.py     which serves it
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from perron import __version__
from perron._storage.atomic import write_bytes
from perron._storage.jsonable import to_jsonable
from perron.errors import PerronError
from perron.monitor.progress import format_duration
from perron.plots import Chart
from perron.report import curves, facts, networks
from perron.studies.conclusions import conclude
from perron.studies.conclusions.base import Conclusion
from perron.studies.results import Outcome, read_manifest, read_study
from perron.studies.toml import to_toml

HERE = Path(__file__).parent
NUMBERS = 300_000  # in all curves of a page together: about 3 MB
WHOLE = 2_000_000  # characters that a page may spend on complete tables
THEME = (
    "document.documentElement.dataset.theme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';"
)


def write(studies: Sequence[str | Path | Outcome], path: str | Path, *, concluded: Conclusion | None = None) -> Path:
    """Write the page about studies, given by their directories or as outcomes.

    ``concluded`` is the conclusion of a single study, if it is known already; drawing it can take a while.
    """
    outcomes = [study if isinstance(study, Outcome) else read_study(study) for study in studies]
    return write_bytes(path, page(outcomes, concluded=concluded).encode())


def page(outcomes: Sequence[Outcome], *, concluded: Conclusion | None = None) -> str:
    """Return the page as text; see `write`."""
    return document(outcomes, concluded=concluded).text


class Document(NamedTuple):
    """A page, and its Content-Security-Policy, which is in it, too."""

    text: str
    policy: str


def document(outcomes: Sequence[Outcome], *, concluded: Conclusion | None = None) -> Document:
    """Return the page; see `write`."""
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
    title = sections[0]["title"] if len(sections) == 1 else f"{len(sections)} studies"
    return render("page.html", title, {"studies": data}, sections=sections)


def render(template: str, title: str, data: Any, *, sections: Sequence[Any] = (), live: bool = False) -> Document:
    """Return a page from a template, with styles, plotly and the scripts; a live one may ask its server for news."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    plotly = _inline(get_plotlyjs())
    own = ["page", "live"] if live else ["page"]
    scripts = {"theme": THEME, "plotly": plotly}
    scripts |= {name: _inline((HERE / f"{name}.js").read_text(encoding="utf-8")) for name in own}
    style = (HERE / "page.css").read_text(encoding="utf-8")
    rules = policy(scripts.values(), [style]) + ("; connect-src 'self'" if live else "")
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.get_template(template).render(
        title=title,
        version=__version__,
        sections=sections,
        # Plotly adds a large style for maps, which no page here has, unless an element of this name exists.
        unneeded=re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotly),
        policy=rules,
        style=Markup(style),  # noqa: S704  (our own file)
        scripts={name: Markup(text) for name, text in scripts.items()},  # noqa: S704  (our own files and plotly's)
        data=Markup(_json(data)),  # noqa: S704  (escaped by _json)
    )
    return Document(text, rules)


def policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """Return the Content-Security-Policy: the page runs its own scripts, by hash, and loads nothing.

    Plotly puts an empty <style> into the page and fills it by rules, hence the hash of nothing. It sets `style` attributes on
    what it draws, for which there are no hashes: those alone are allowed inline. Heat maps and saved pictures are data: and blob:
    images.
    """
    script_hashes = " ".join(map(_hash, scripts))
    style_hashes = " ".join(map(_hash, [*styles, ""]))
    return (
        f"default-src 'none'; script-src {script_hashes}; style-src-elem {style_hashes}; style-src-attr 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _section(
    outcome: Outcome, name: str, points: int, concluded: Conclusion | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values that the template shows of a study, and the data that the script draws."""
    study, manifest = outcome.study, outcome.manifest or read_manifest(outcome.folder)
    try:
        found, trouble = concluded or conclude(outcome), ""
    except PerronError as error:
        found, trouble = Conclusion(), str(error)
    drawn, table, lost = networks.networks(outcome)
    lines = curves.curves(outcome, manifest.runs, points)
    figures = [figure for figure in found.figures.values() if isinstance(figure, Chart) and figure.title]
    charts = [asdict(figure) for figure in figures if figure.panels]
    heat_maps = [{"title": title, "counts": counts} for title, counts in found.summary.get("partition", {}).items()]
    command, own_file = facts.command(study)
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
        "facts": facts.run_facts(outcome, manifest),
        "duration": format_duration(outcome.seconds, decimals=1),
        "runs": len(study.runs),
        "toml": to_toml(study),
        "command": command,
        "own_file": own_file,
        "tables": {title: _cells(cells) for title, cells in found.tables.items()},
        "networks": _cells(table) if table is not None else None,
        "drawn": bool(drawn),
        "symbols": networks.MEANINGS,
        "lost": lost,
        "curves": lines is not None,
        "clock": bool(study.clock),
        "thinned": lines["thinned"] if lines else None,
        "charts": charts,
        "heat_maps": heat_maps,
    }
    shared = {key: section[key] for key in ("id", "name", "title", "toml", "charts", "heat_maps")}
    return section, to_jsonable(shared | {"networks": drawn}) | {"curves": lines}


def _cells(table: Any) -> dict[str, Any]:
    return {"columns": list(table.columns), "rows": table.to_numpy().tolist()}


def _complete(outcome: Outcome, room: int) -> dict[str, Any] | None:
    """Return the complete table: the runs' parameters, and the other columns as packed numbers; None if it is too large."""
    if outcome.table.empty:
        return None
    names = curves.recorded_columns(outcome.table)
    if len(outcome.table) * len(names) * 10 > room:  # eight bytes for each number, in base64
        return None
    parts = [part for _, part in outcome.table.groupby("run", sort=False)]
    rows = pd.concat(parts)
    numbers = [rows[name].to_numpy("<i4").tobytes() for name in ("step", "trial")]
    numbers += [rows[name].to_numpy("<f8").tobytes() for name in names]
    packed = base64.b64encode(gzip.compress(b"".join(numbers), 6, mtime=0)).decode()
    if len(packed) > room:
        return None
    columns = list(rows.columns[: list(rows.columns).index("step")])
    return {
        "columns": columns,
        "metrics": names,
        "rows": [len(part) for part in parts],
        "numbers": packed,
        "runs": [part[columns].iloc[0].tolist() for part in parts],
    }


def _json(content: Any) -> str:
    """Return JSON that cannot end the element that holds it."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _inline(script: str) -> str:
    """Return a script if it cannot end its own element."""
    if re.search(r"</script|<!--", script, re.IGNORECASE) or "\r" in script:
        raise PerronError("A script cannot be embedded as it is: it ends its own element.")
    return script


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
