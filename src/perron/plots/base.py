"""Figures as data, their palette, and the files they are written to: PNG, PDF or SVG by the suffix of the path."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perron._storage.atomic import write_bytes
from perron.errors import FileError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")
MAX_PIXELS = 60_000  # of the longer side of a picture; matplotlib refuses 65,536
# Okabe & Ito's palette for color-blind readers, and brown, which differs in brightness from its neighbors.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
BLUE, INK, PALE, GREY = COLORS[0], "#222222", "#E6F1F8", "#888888"
# Fonts in a PDF are embedded as TrueType, which journals ask for; the ids in an SVG are not random.
WRITING: Any = {"svg.hashsalt": "perron", "pdf.fonttype": 42, "ps.fonttype": 42}


class Picture(ABC):
    """A figure as data, which ``figure`` draws with matplotlib."""

    @abstractmethod
    def figure(self) -> Figure: ...

    @property
    def settings(self) -> Any:
        """The settings of matplotlib with which it is drawn."""
        return {}

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file; its suffix decides the format."""
        from matplotlib import rc_context

        path = _check_format(Path(path))  # before drawing, which can take a while
        with rc_context(self.settings):
            return save(self.figure(), path)

    def _repr_svg_(self) -> str:
        from matplotlib import rc_context

        with rc_context(self.settings):
            return to_svg(self.figure())


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure atomically and without a date, so that equal figures are equal files."""
    path = _check_format(Path(path))
    return write_bytes(path, _content(figure, path.suffix[1:].lower()))


def to_svg(figure: Figure) -> str:
    """Return a figure as an SVG element, for notebooks."""
    text = _content(figure, "svg").decode()
    return text[text.index("<svg") :]


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of text as an HTML element, for notebooks."""
    lines = [("th", columns), *(("td", row) for row in rows)]
    cells = ["".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in row) for tag, row in lines]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _content(figure: Figure, kind: str) -> bytes:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[kind]
    with rc_context(WRITING):
        dpi = min(150, MAX_PIXELS / max(figure.get_size_inches()))
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=undated)
    return buffer.getvalue()


def _check_format(path: Path) -> Path:
    if path.suffix.lower() not in FORMATS:
        raise FileError(f"A picture is written to one of {', '.join(FORMATS)}; got {path}.")
    return path
