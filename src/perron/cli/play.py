"""``perron play``: an interactive page about digraphs."""

from __future__ import annotations

import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

from perron.cli.app import print_lines
from perron.cli.options import out_option


def play(
    out: Annotated[Path | None, out_option("Write the page to this file instead of opening it.")] = None,
) -> None:
    """Draw a digraph in the browser, and watch methods run on it.

    Weights, Perron vectors and mixing rates follow what you draw. Push-Pull, a push-only and a pull-only method and D-SGD run on
    it step by step; with D-SGD, a row-stochastic matrix leads to the wrong point. The page is one file and needs no server.

    perron play
    perron play --out play.html
    """
    from perron.play import write

    path = write(out or Path(tempfile.mkdtemp(prefix="perron-")) / "play.html")
    print_lines(f"Page: {path} (opens in any browser)")
    if out is None:
        webbrowser.open(path.resolve().as_uri())
