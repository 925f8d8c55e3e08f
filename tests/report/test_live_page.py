"""The page of `perron watch --web`: its data, who may read it, and in a browser a study that is in progress."""

import fcntl
import http.client
import json
import re
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from threading import Thread

import browser as browsing
import pandas as pd
import psutil
import pytest
from study_runs import LONG, QUICK, run_in_background, suspend_one

from perron.cli import main as cli
from perron.errors import PerronError
from perron.monitor.dashboard import Dashboard
from perron.monitor.logger import Log
from perron.monitor.records import Records
from perron.monitor.status import STUDY_FILE, open_folder
from perron.report import live
from perron.report.server import Answer, PageServer

NAMES = [f"{i:016x}-01234567" for i in range(3)]
LABELS = [f"push_pull on ring({n}), lr 0.1" for n in (4, 8, 16)]
EVIL = "<script>document.title = 'hacked'</script>"


@pytest.fixture
def study(tmp_path):
    """A study of three runs: one done, one half done by a live process, one to come."""
    (tmp_path / "runs").mkdir()
    plan = [list(one) for one in zip(NAMES, LABELS, [1.0, 1.0, 2.0], strict=True)]
    table = pd.DataFrame({"step": [0, 0, 10, 10], "trial": [0, 1, 0, 1], "grad_norm_sq": [1.0, 3.0, 0.1, 0.3]})
    table.to_parquet(tmp_path / "runs" / f"{NAMES[0]}.parquet")
    (tmp_path / "runs" / f"{NAMES[0]}.json").write_text('{"seconds": 10.0, "warnings": []}')
    records = Records(tmp_path / STUDY_FILE, {"title": f"Rings {EVIL}", "workers": 2, "runs": plan})
    path = tmp_path / "runs" / f"{NAMES[1]}.live"
    path.write_text(json.dumps({"began": time.time() - 20, "steps": 100}) + "\n")
    advance(tmp_path, 1, range(0, 51, 10))
    with path.open("ab") as worker:
        fcntl.flock(worker, fcntl.LOCK_EX)
        yield tmp_path
    records.close()


def advance(folder, run, steps, ago=20):
    """Append records to those of a run; a second metric is recorded less often."""
    with (folder / "runs" / f"{NAMES[run]}.live").open("a") as file:
        for step in steps:
            more = {"test_accuracy": step / 100} if step % 20 == 0 else {}
            values = {"time": time.time() - ago + step / 5, "step": step, "grad_norm_sq": 10.0 ** (-step / 25)}
            file.write(json.dumps(values | more) + "\n")


@pytest.fixture
def page(study, monkeypatch):
    monkeypatch.setattr(live, "FRESH", 0.0)
    return live.LivePage(Dashboard(open_folder(study)))


@contextmanager
def served(server):
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# ---- the data


def lines(data, metric):
    """The curves of a metric by label, as steps and values."""
    curves, found = data["curves"], {}
    for run in curves["runs"]:
        if one := run["values"].get(metric):
            label = curves["dimensions"][0]["values"][run["at"][0]]
            found[label] = list(zip(curves["steps"][one["steps"]], one["mean"], strict=True))
    return found


def test_data_of_a_study(page, study):
    data = page.data()
    assert (data["running"], data["state"], data["share"]) == (True, "Running", pytest.approx(1.5 / 4))
    assert data["chips"][1] == "3 runs: 1 done, 1 in progress, 1 to come"
    assert data["table"]["rows"] == [["push_pull on ring(8)", "50 of 100", "|grad|² 0.01", "10 s left"]]
    found = lines(data, "grad_norm_sq")
    assert found["push_pull on ring(4)"] == [(0, 2.0), (10, 0.2)]  # means over trials
    assert found["push_pull on ring(8)"][-1] == (50, pytest.approx(0.01))
    assert lines(data, "test_accuracy") == {"push_pull on ring(8)": [(0, 0.0), (20, 0.2), (40, 0.4)]}
    assert [run["at"][1] for run in data["curves"]["runs"]] == [live.ACTIVE, live.DONE]
    labels = data["curves"]["dimensions"][0]["values"]
    advance(study, 2, [0], ago=0)
    assert page.data()["curves"]["dimensions"][0]["values"] == [*labels, "push_pull on ring(16)"]  # colors stay
    (study / STUDY_FILE).write_bytes(b'{"began": 2.0, "runs": [["a", "b"]]}\n')
    data = page.data()
    assert data["state"].startswith("Not updated")
    assert "is damaged" in data["details"]
    assert data["curves"]


def test_records_that_are_damaged_from_the_start(page, study):
    (study / STUDY_FILE).write_bytes(b'{"began": 2.0, "runs": [["a", "b"]]}\n')
    data = page.data()
    assert data["state"].startswith("Not updated")
    assert (data["curves"], data["chips"], data["table"]["rows"]) == (None, [], [])


def test_data_of_a_training(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "FRESH", 0.0)
    logs = [Log(tmp_path, steps=100, node=node, every=0) for node in range(2)]
    page = live.LivePage(Dashboard(open_folder(tmp_path)))
    assert page.data()["curves"] is None
    for node, log in enumerate(logs):
        for step in (1, 2):
            log(step, loss=float("inf") if step == 2 and node else step / 2)
    data = page.data()
    assert data["running"]
    assert not data["report"]
    assert data["curves"]["metrics"] == [{"name": "loss", "title": "loss", "about": "", "share": False}]
    assert lines(data, "loss") == {"node 0": [(1, 0.5), (2, 1.0)], "node 1": [(1, 0.5), (2, None)]}
    assert [row[:2] for row in data["table"]["rows"]] == [[f"node {node}", "2 of 100"] for node in range(2)]
    for log in logs:
        log.close()
    data = page.data()
    assert (data["running"], data["state"]) == (False, "Ended")
    json.dumps(data, allow_nan=False)


# ---- the server


def asked(server, path=None, method="GET", **headers):
    """Status, headers and content."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)) as connection:
        connection.putrequest(method, f"/{server.token}/" if path is None else path, skip_host="Host" in headers)
        for name, values in headers.items():
            for value in values:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


@pytest.fixture
def server():
    def fail():
        raise PerronError("There is nothing.")

    with served(PageServer({"": lambda: Answer(b"<p>ok", "text/html", "default-src 'self'"), "bad": fail})) as server:
        yield server


def test_a_reader_with_the_token_gets_the_page(server):
    status, headers, content = asked(server)
    assert (status, content) == (200, b"<p>ok")
    assert headers["Content-Security-Policy"] == "default-src 'self'"
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    expected = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
    assert expected.items() <= dict(headers).items()
    assert headers["Server"] == "perron"
    assert asked(server, Host=[f"localhost:{server.server_port}"])[0] == 200
    status, headers, content = asked(server, f"/{server.token}/bad")
    assert (status, content) == (503, b"There is nothing.\n")
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert len(server.token) == 32
    with PageServer({}) as other:
        assert other.token != server.token


@pytest.mark.parametrize(
    "path",
    [
        "/", "", "/favicon.ico", "/{t}", "/{t}/x", "/{t}/?", "/{t}/?a=b", "/{t}/../", "/{t}/%2e%2e/", "/{t}//", "/{T}/", "{t}/",
        "/{t}x/", "/x{t}/", "http://127.0.0.1/{t}/", "/{t}/live.jsonl", "/{t}/../../etc/passwd", "*", "/%ff/",
    ],
)  # fmt: skip
def test_other_paths_are_refused(server, path):
    path = path.format(t=server.token, T=server.token.swapcase())
    status, headers, content = asked(server, path)
    assert status in (404, 421)
    assert server.token.encode() not in content
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    "hosts",
    [
        ["evil.example"],
        ["evil.example:{p}"],
        ["127.0.0.1"],
        ["127.0.0.1:1"],
        ["[::1]:{p}"],
        [""],
        [],
        ["127.0.0.1:{p}"] * 2,
    ],
)
def test_other_hosts_are_refused(server, hosts):
    """As a name that an attacker lets point to this machine."""
    status, _, content = asked(server, Host=[host.format(p=server.server_port) for host in hosts])
    assert (status, content) == (421, b"421 Misdirected Request\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "X"])
def test_other_methods_are_refused(server, method):
    status, headers, _ = asked(server, method=method)
    assert (status, headers["Allow"]) == (405, "GET")


def test_it_listens_on_the_loopback_interface_only(server):
    listening = [one for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN]
    assert [one.laddr.ip for one in listening if one.laddr.port == server.server_port] == ["127.0.0.1"]


def test_a_port_that_is_taken(server):
    with pytest.raises(PerronError, match=rf"Cannot listen on port {server.server_port} .* Choose another"):
        PageServer({}, server.server_port)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--port 8000", "--port is for --web"),
        ("--web --json", "leave out --once and --json"),
        ("--web --once", "leave out --once and --json"),
        ("--web --metric nothing", "No metric 'nothing'"),
        ("--web --port 70000", "Cannot listen on port 70000"),
    ],
)
def test_options_that_do_not_fit(study, words, message, capsys):
    assert cli._run(["watch", str(study), *words.split()], debug=False) == 1
    assert message in capsys.readouterr().err


# ---- in a browser

in_browser = pytest.mark.skipif(browsing.browser_here() is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def browser():
    with browsing.started() as browser:
        yield browser


@pytest.fixture
def opened(browser):
    """Opens an address; in the end nothing may have gone wrong, and nothing but the data was asked for."""
    troubles, contexts = [], []

    def opening(address, width=1280, height=700):
        contexts.append(browser.new_context(viewport={"width": width, "height": height}))
        page = browsing.opened(contexts[-1], address, troubles)
        wait_for_update(page, 1)
        return page

    yield opening
    for context in contexts:
        context.close()
    expected = (
        r"request: http://127\.0\.0\.1:\d+/[\w-]{32}/(data|report)|console: .*ERR_CONNECTION_REFUSED"  # at the end
    )
    assert not [one for one in troubles if not re.fullmatch(expected, one)]


def wait_for_update(page, count):
    wait_until(page, f"Number(document.documentElement.dataset.updated || 0) >= {count}")


def wait_until(page, condition, seconds=600):
    """As page.wait_for_function, which the page's Content-Security-Policy does not let evaluate text."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


def updates(page):
    return int(page.evaluate("document.documentElement.dataset.updated"))


def drawn(page):
    return page.evaluate(
        """() => Object.fromEntries(document.querySelector('#curves .chart').data
            .filter((trace) => trace.meta === 'main').map((trace) => [trace.name.split(',')[0], [...trace.y]]))"""
    )


@in_browser
@pytest.mark.browser
def test_the_page_follows_the_run_and_keeps_its_place(opened, page, study):
    with served(live.make_server(page)) as server:
        shown = opened(server.address)
        assert re.match("Running . Rings <script>", shown.title())
        assert shown.locator("#state").inner_text() == "Running"
        assert shown.evaluate("document.getElementById('share').value") == pytest.approx(0.375)
        assert len(drawn(shown)["push_pull on ring(8)"]) == 6
        shown.get_by_label("push_pull on ring(4)", exact=True).uncheck()
        shown.get_by_label("Show", exact=True).select_option(index=1)
        shown.evaluate("window.scrollTo(0, 250)")
        # New records, and a new run: the panel is made again, and stays as it was.
        advance(study, 1, [60, 70, 80])
        advance(study, 2, [0, 10, 20], ago=0)
        wait_for_update(shown, updates(shown) + 2)
        assert not shown.get_by_label("push_pull on ring(4)", exact=True).is_checked()
        assert shown.get_by_label("push_pull on ring(16)", exact=True).is_checked()
        assert drawn(shown)["push_pull on ring(8)"] == [0, 0.2, 0.4, 0.6, 0.8]
        assert shown.evaluate("window.scrollY") == 250
        shown.get_by_label("Show", exact=True).select_option(index=0)
        assert set(drawn(shown)) == {"push_pull on ring(8)", "push_pull on ring(16)"}
        assert "80 of 100" in shown.locator("#tracks").inner_text()


@in_browser
@pytest.mark.browser
def test_it_fits_a_phone_and_shows_what_went_wrong(opened, page, study):
    with (study / STUDY_FILE).open("a") as file:
        file.write(json.dumps({"time": time.time(), "step": 0, "event": f"killed {EVIL}", "run": NAMES[2]}) + "\n")
    with served(live.make_server(page)) as server:
        shown = opened(server.address, 390, 844)
        assert shown.evaluate("document.documentElement.scrollWidth") <= 390
        assert shown.locator("#messages li").all_inner_texts() == [
            f"failed: push_pull on ring(16), lr 0.1: killed {EVIL}"
        ]
        assert shown.locator("#alerts h2").inner_text() == "Failures"
        assert shown.title() != "hacked"
    shown.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # it asks at once, and there is no answer
    wait_until(shown, "document.title.startsWith('not updated')")
    assert "does not answer" in shown.locator("#state").inner_text()


@in_browser
@pytest.mark.browser
@pytest.mark.processes
def test_a_study_in_progress_from_its_start_to_its_report(opened, tmp_path):
    (tmp_path / "quick.toml").write_text(QUICK)
    process = run_in_background(tmp_path / "quick.toml", tmp_path / "out", "--workers", "1", *LONG)
    watching = None
    try:
        worker = suspend_one(tmp_path / "out")
        watching = subprocess.Popen(
            [sys.executable, "-m", "perron", "watch", str(tmp_path / "out"), "--web"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        address = re.search(r"http://\S+", watching.stdout.readline())[0]
        shown = opened(address)
        assert shown.locator("#state").inner_text() == "Running"
        assert shown.locator("#report").is_hidden()
        assert "push_pull on " in shown.locator("#tracks").inner_text()
        worker.resume()
        process.communicate(timeout=600)
        assert process.returncode == 0
        wait_until(shown, "document.title.startsWith('Ended')")
        assert shown.evaluate("document.getElementById('share').value") == 1
        assert "8 runs: 8 done" in shown.locator("#chips").inner_text()
        assert len(drawn(shown)) == 8
        with shown.expect_navigation():
            shown.evaluate("location.href = document.querySelector('#report a').href")
        shown.wait_for_selector("html[data-ready=yes]", state="attached")
        assert shown.locator("h1").inner_text() == "A quick one"
        assert shown.locator('[data-chart="curves"] .main-svg').count()
        watching.send_signal(signal.SIGINT)
        assert watching.communicate(timeout=600)[1] == ""
        assert watching.returncode == 0
    finally:
        for one in (process, watching):
            if one is not None and one.poll() is None:
                one.kill()
                one.communicate()
