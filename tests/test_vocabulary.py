"""Standard terms: words that a reader would have to translate do not occur in the source."""

import re
from pathlib import Path

import pytest

import perron

SOURCE = Path(perron.__file__).parent
# Each with what to write instead.
FORBIDDEN = {
    r"so many": "the number, or n",
    r"\banew\b": "again, from the start",
    r"under.?way": "running, in flight, in progress",
    r"whoever|somebody|nobody|everybody|anybody": "the process, node, caller or user that is meant",
    r"now_or_never": "force",
    r"(?<!PERRON_)zygote": "fork server",
    r"\bpulses?\b": "heartbeat",
    r"\bdoors?\b|\bknock": "handshake",
    r"\bmortal\b": "TCP keepalive",
    r"farewell|without mercy": "grace period",
    r"\bpatience\b": "timeout",
    r"parcel": "transfer, message",
    r"stripe": "block",
    r"wiring|rewire": "network",
    r"\bgo(es|ing)? on\b|\bwent on\b": "continue, resume",
    r"what there is to know|as the node within": "no docstring where it adds nothing",
    r"\btakes? up again\b|\btaken up\b": "resume",
    r"\blookers?\b|\bteller": "reader",
}
SUFFIXES = {".py", ".pyi", ".toml", ".html", ".css", ".js"}
PATHS = sorted(path for path in SOURCE.rglob("*.*") if path.suffix in SUFFIXES)
PATHS.remove(SOURCE / "_aliases.py")  # it lists the old names


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_source_uses_standard_terms(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for pattern, instead in FORBIDDEN.items():
            found = re.search(pattern, line, re.I)
            assert not found, f"{path.name}:{number}: {found[0]!r}; write instead: {instead}"
