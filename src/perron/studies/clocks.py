"""The table ``[clock]`` of a study file: machines and links by name or by numbers, and the clock that they make."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from perron._registry import lookup
from perron.clock import Clock, Machines, presets
from perron.errors import PerronError
from perron.studies import own

SETTINGS = ("compute", "size", "protocol", "ahead", "overhead", "per_byte", "average")  # of a clock
NODES, LINKS = ("up", "down"), ("latency", "rate")  # of machines
KEYS = ("links", "route", *LINKS, *NODES, *SETTINGS)
FILES = ("links", "compute")  # keys whose values may be files


def clock_of(options: Mapping[str, Any], folder: str) -> Clock | None:
    """Return the clock of a run; None if there are no options. Files are in the study's folder."""
    if not options:
        return None
    given = {key: own.file_path(value, folder) for key, value in options.items()}
    values = {key: given[key] for key in (*LINKS, *NODES) if key in given}
    if "links" in given:
        machines = Machines.read(given["links"], route=given.get("route", False)).changed(**values)
    else:
        machines = Machines(**values)
    return Clock(machines, **{key: given[key] for key in SETTINGS if key in given})


def check_clock(table: Mapping[str, list[Any]], *, read: bool) -> None:
    """Raise an error for keys and values that no clock has; where files and presets are may be left unread."""
    for key, values in table.items():
        lookup(key, dict.fromkeys(KEYS), "key of a clock")
        for value in values:
            _check_value(key, value, read=read)
    if "links" in table and (twice := [key for key in LINKS if key in table]):
        raise ValueError(f"{' and '.join(twice)}: links has them for each link; leave out one of the two")
    if "route" in table and "links" not in table:
        raise ValueError("route: it fills in missing pairs of links, of which there are none")


def _check_value(key: str, value: Any, *, read: bool) -> None:
    if value is None or (isinstance(value, float) and not isfinite(value)):
        raise ValueError(f"{key} is finite; got {value}. Without a limit, leave it out")
    if isinstance(value, bool) != (key == "route"):
        raise ValueError(f"{key} is {'true or false' if key == 'route' else 'no truth value'}; got {value!r}")
    if own.is_file(value):
        if key not in FILES:
            raise ValueError(f"{key} is no file; got {value!r}")
    elif key == "links":
        if not isinstance(value, str):
            raise ValueError(f'links is the name of a preset or a file, as "file:links.csv"; got {value!r}')
        if read:
            lookup(value, dict.fromkeys([*presets.names(), "file:PATH"]), "record of links")
    elif key == "compute" and isinstance(value, str) and value.lower().endswith(".csv"):
        raise ValueError(f'compute: write a file as "file:{value}"')
    elif key != "route":
        try:
            clock_of({key: value}, "")
        except PerronError as error:
            raise ValueError(str(error)) from None
