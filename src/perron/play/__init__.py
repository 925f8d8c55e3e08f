"""An interactive page: draw a digraph, and watch four methods run on it.

One self-contained HTML file, which loads nothing and needs no server. `network.js` has the mathematics, in a few lines that the
tests compare with the library; `page.html`, `page.css` and `page.js` are the rest.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from string import Template

from perron import __version__
from perron._storage.atomic import write_bytes

__all__ = ["page", "write"]

HERE = Path(__file__).parent


def page() -> str:
    """Return the page as text. Its Content-Security-Policy allows its own script and style, by hash, and nothing else."""
    parts = {
        path.name: path.read_text(encoding="utf-8")
        for path in HERE.iterdir()
        if path.suffix in (".js", ".css", ".html")
    }
    script = f"\n{parts['network.js']}\n{parts['page.js']}"
    style = f"\n{parts['page.css']}"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    return Template(parts["page.html"]).substitute(policy=policy, style=style, script=script, version=__version__)


def write(path: str | Path) -> Path:
    """Write the page to a file."""
    return write_bytes(path, page().encode())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
