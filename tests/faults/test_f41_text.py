"""Text in files that means something to other programs: terminals and spreadsheets."""

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress

import pandas as pd
import pytest
from browser import browser_here
from processes import HANG
from tables import STUDY, Here

from perron import report
from perron.errors import strip_control
from perron.networks import topologies
from perron.networks.files import read_graph, write_graph
from perron.networks.graph import Graph
from perron.studies.results import Outcome, read_study
from perron.studies.runner import run_study
from perron.studies.spec import Study

EVIL = "a\x1b[2Jb\x1b]0;owned\x07c\x9b31md\x08\u202ee"
COLORS = re.compile(r"\x1b\[[\d;]*m|\x1b\[\?25[lh]|\x1b\[(\d*[ABGK]|2K)")  # what rich itself writes


def on_terminal(*words):
    """What a command writes to a terminal."""
    main, end = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200"}
    command = [sys.executable, "-m", "perron", *words]
    with subprocess.Popen(command, stdin=end, stdout=end, stderr=end, env=environment) as process:
        os.close(end)
        found = b""
        with suppress(OSError):  # the end of a terminal
            while piece := os.read(main, 4096):
                found += piece
        os.close(main)
        process.wait(timeout=HANG)
    return found.decode()


def test_f41_nothing_steers_the_terminal(tmp_path, row):
    content = STUDY | {"title": EVIL, "about": EVIL}
    out = tmp_path / "out"
    outcome = run_study(Study.model_validate(content), out, executor=Here())
    manifest = json.loads((out / "manifest.json").read_text())
    key = outcome.study.runs[0].key
    (out / "manifest.json").write_text(json.dumps(manifest | {"warned": {key: EVIL}, "failed": {key: EVIL}}))
    file, bad, weights = tmp_path / "evil.toml", tmp_path / "bad.toml", tmp_path / "evil.graphml"
    file.write_text(
        f"title = {json.dumps(EVIL)}\ntopologies = ['ring']\nnodes = 2\nsteps = 5\nconclusion = 'topologies'\n"
    )
    bad.write_text(f"{json.dumps(EVIL)} = 3\ntopologies = ['ring']\nnodes = 2\n")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "manifest.json").write_text(json.dumps(manifest | {"format": EVIL}))
    weights.write_text(f"<graphml><{strip_control('x')}>\x9b31m</graphml>")
    commands = [
        ("study", "show", str(out)),
        ("study", "check", str(file)),
        ("study", "check", str(bad)),
        ("study", "show", str(damaged)),
        ("study", "run", str(file), "--out", str(tmp_path / "run")),
        ("graph", str(weights)),
        ("watch", str(out), "--once"),
    ]
    for words in commands:
        shown = COLORS.sub("", on_terminal(*words))
        assert len(shown) > 20, words
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", shown), (words, shown)
    assert "a[2Jb]0;ownedc31mde" in on_terminal("study", "check", str(file))
    row.measured(
        f"{len(commands)} commands on a terminal: no control character of a file came out", trials=len(commands)
    )


LABELS = ["=1+1", "+SUM(A1)", "-2+3", "@x", "'=1", "'x", "-1.5e3", "plain", "''@", "\t=2"]


def test_f41_labels_of_a_network_as_csv(tmp_path, row):
    labels = [label.strip() or label for label in LABELS]
    ring = topologies.ring(len(labels))
    graph = Graph(ring.nodes, ring.edges, labels=labels)
    path = write_graph(graph, tmp_path / "labels.csv")
    cells = [cell for line in csv.reader(io.StringIO(path.read_text())) for cell in line]
    numbers = re.compile(r"[+-]?[\d.]+(e\d+)?")
    assert [cell for cell in cells if re.match(r"[=+\-@\t\r]", cell) and not numbers.fullmatch(cell)] == []
    assert list(read_graph(path).labels) == list(graph.labels)
    assert "-1.5e3" in cells
    row.measured(f"{len(labels)} labels in CSV: no formula among them, read back as they were", trials=len(labels))


@pytest.mark.browser
def test_f41_tables_of_a_report_as_csv(tmp_path, row):
    if browser_here() is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    run_study(Study.model_validate(STUDY), tmp_path / "out", executor=Here())
    found = read_study(tmp_path / "out")
    table = found.table.assign(algorithm="=cmd|' /C calc'!A0", weights="-x", lr_setting="-0.5")
    page = report.write([Outcome(found.study, found.folder, table, 1.0)], tmp_path / "page.html")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=browser_here(), args=arguments, timeout=600_000)
        opened = browser.new_page(accept_downloads=True)
        opened.goto(page.as_uri())
        opened.wait_for_selector("html[data-ready=yes]", state="attached", timeout=600_000)
        with opened.expect_download() as caught:
            opened.get_by_role("button", name="Complete table as CSV").click()
        text = caught.value.path().read_text()
        browser.close()
    back = pd.read_csv(io.StringIO(text), dtype=str)
    assert set(back.algorithm) == {"'=cmd|' /C calc'!A0"}
    assert set(back.weights) == {"'-x"}
    assert set(back.lr_setting) == {"-0.5"}
    row.measured("a report's table as CSV: formulas became text, numbers stayed", trials=1)
