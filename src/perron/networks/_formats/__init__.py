"""Formats of network files. The format is recognized by the content; errors contain the file, the line and the token."""

from __future__ import annotations

import re
from pathlib import Path

from perron.networks._formats.base import WeightedNetwork as WeightedNetwork
from perron.networks._formats.base import decode
from perron.networks._formats.edge_list import SUFFIXES, parse_edge_list
from perron.networks._formats.gml import parse_gml
from perron.networks._formats.json import parse_json
from perron.networks._formats.matrix_market import parse_matrix_market
from perron.networks._formats.pajek import parse_pajek
from perron.networks._formats.table import parse_table
from perron.networks._formats.xml import parse_xml

GML = re.compile(r"(?:\s+|#.*\n|(?:Creator|Version|comment)\s.*\n)*graph\s*\[", re.IGNORECASE)
PAJEK = re.compile(r"(?:\s+|%.*\n)*\*(?:vertices|network)\b", re.IGNORECASE)


def parse(content: bytes, path: Path) -> WeightedNetwork:
    """Parse a text in any of the formats."""
    text = decode(content, path)
    start, suffix = text.lstrip(), path.suffix.lower()
    line = next((line for line in text.splitlines() if line.strip() and line.lstrip()[0] not in "#%"), "").lower()
    separated = "," in line or ";" in line or re.match(r"\W*(source|from|src)\W+(target|to|dst)\b", line)
    recognized = {
        parse_matrix_market: start.startswith("%%MatrixMarket"),
        parse_xml: start.startswith("<") or suffix == ".graphml",
        parse_json: start.startswith(("{", "[")),
        parse_pajek: PAJEK.match(text),
        parse_gml: GML.match(text),
        parse_table: suffix == ".csv" or (separated and suffix not in SUFFIXES),
        parse_edge_list: True,
    }
    return next(parser for parser, found in recognized.items() if found)(text, path)
