"""Hostile texts where names are expected: refused, or shown as what they are; files stay where they belong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser import browser_here
from reports import OTHERS, run_here

import perron
from perron import report
from perron.errors import PerronError
from perron.networks import files
from perron.studies.runner import read_study, run_study
from perron.studies.spec import Study

EVIL = {
    "script": "<script>alert(1)</script>",
    "image": "<img src=x onerror=alert(2)>",
    "out of a script": "</script><svg onload=alert(3)>",
    "template": "{{ 7 * 7 }}{% raw %}",
    "up": "../../up",
    "absolute": "/etc/absolute",
    "line": "one\ntwo",
    "zero": "a\0b",
    "long": "x" * 5000,
    "quotes": "\"'`;$(touch x)",
    "up in dots": "..",
}


def files_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_f23_names_of_studies(tmp_path, row):
    """A name becomes a file's: it is refused unless it is one word."""
    for what, text in EVIL.items():
        content = OTHERS["topologies"] | {"name": text}
        if what == "long":  # a word, but no file system would have it
            with pytest.raises(PerronError, match="Cannot write"):
                run_study(Study.model_validate(content), tmp_path / "out" / text)
            continue
        with pytest.raises(ValueError, match="name"):
            Study.model_validate(content)
    command = [sys.executable, "-m", "perron", "study", "run", "demo", "--set", 'name="../../up"']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert files_below(tmp_path) <= {tmp_path / "out"}
    row.measured(f"names of studies: {len(EVIL) + 1} refused, nothing written", trials=len(EVIL) + 1)


def test_f23_texts_in_the_report(tmp_path, row):
    """Titles and what runs said are shown, in a real browser; nothing of them runs."""
    if browser_here() is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    outcomes = []
    for number, text in enumerate(EVIL.values()):
        content = OTHERS["topologies"] | {"title": text, "about": f"{text} {text}", "name": f"evil-{number}"}
        key = Study.model_validate(content).runs[0].key
        said = {"failed": {key: f"run: {text}"}, "warned": {key: f"run: {text}"}}
        outcomes.append(read_study(run_here(content, tmp_path / str(number), **said)))
    before = files_below(tmp_path)
    page = report.write(outcomes, tmp_path / "report.html")
    assert files_below(tmp_path) - before == {page}
    dialogs, requests = [], []
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=browser_here(), args=arguments, timeout=600_000)
        opened = browser.new_page()
        opened.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        opened.on("request", lambda request: requests.append(request.url))
        opened.goto(page.as_uri())
        opened.wait_for_selector("html[data-ready=yes]", state="attached", timeout=600_000)
        shown = opened.inner_text("body")
        made = opened.evaluate("document.querySelectorAll('img, svg[onload], [onerror], [onload]').length")
        browser.close()
    assert dialogs == []
    assert [url for url in requests if not url.startswith(("data:", "blob:")) and url != page.as_uri()] == []
    assert made == 0
    assert EVIL["script"] in shown
    assert "{{ 7 * 7 }}" in shown
    row.measured(f"report: {len(EVIL)} titles shown in Chromium, 0 dialogs, 0 requests", trials=len(EVIL))


GRAPHML = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed">
<node id="{0}"/><node id="b"/><edge source="{0}" target="b"/><edge source="b" target="{0}"/></graph></graphml>"""


def test_f23_names_of_nodes(tmp_path, row):
    from xml.sax.saxutils import quoteattr

    kept = refused = 0
    for number, text in enumerate(EVIL.values()):
        path = tmp_path / f"{number}.graphml"
        path.write_text(GRAPHML.format(quoteattr(text)[1:-1].replace('"', "&quot;")))
        before = files_below(tmp_path)
        try:
            graph = files.read_graph(path)
        except PerronError as error:
            assert path.name in str(error)
            assert "\n" not in str(error)
            refused += 1
            continue
        assert graph.labels[0] == " ".join(text.split("\n"))
        assert files.read_graph(files.write_graph(graph, tmp_path / "again.graphml")) == graph
        assert files_below(tmp_path) - before <= {tmp_path / "again.graphml"}
        kept += 1
    assert refused >= 1  # a zero byte is no text
    row.measured(f"names of nodes: {kept} kept as texts, {refused} refused with the file", trials=len(EVIL))


def test_f23_names_in_a_log(tmp_path, row):
    """What a training measures may be called anything: it stays in the node's own file, a line each, and can be watched."""
    folder = tmp_path / "log"
    with perron.Log(folder, every=0) as log:
        for step, text in enumerate(EVIL.values(), 1):
            log(step, **{text: 0.5})
    assert files_below(tmp_path) == {folder, folder / "node-0.jsonl"}
    assert len((folder / "node-0.jsonl").read_text().splitlines()) == len(EVIL) + 2
    command = [sys.executable, "-m", "perron", "watch", str(folder), "--once"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "\x00" not in done.stdout
    row.measured(f"a log: {len(EVIL)} names in one file, watched without trouble", trials=len(EVIL))
