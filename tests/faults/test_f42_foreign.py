"""Foreign files in a study's folder, and addresses that are none."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from processes import HANG
from tables import STUDY, Here, contents

from perron.data import download
from perron.distributed.store import open_store
from perron.errors import FileError, PerronError
from perron.studies.executors.slurm import Slurm
from perron.studies.results import run_name
from perron.studies.runner import run_study
from perron.studies.spec import Study

SPEC = Study.model_validate(STUDY)


@pytest.mark.parametrize("name", ["runs", "earlier", "slurm"])
def test_f42_a_link_in_a_study(name, tmp_path, row):
    """Nothing is written, read or removed through it."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in ("thesis.part", "start-here", f"{run_name(SPEC.runs[0])}.json.123.part"):
        (elsewhere / file).write_text("valuable")
    if name == "earlier":
        run_study(SPEC, out, executor=Here())
    out.mkdir(exist_ok=True)
    (out / name).symlink_to(elsewhere, target_is_directory=True)
    before = contents(elsewhere)
    other = Study.model_validate(STUDY | {"steps": 5})
    job = SimpleNamespace(target=out / "runs" / "one")
    start = (
        (lambda: list(Slurm().run([job], print))) if name == "slurm" else lambda: run_study(other, out, executor=Here())
    )
    with pytest.raises(FileError, match=rf"{name} is a symbolic link"):
        start()
    assert contents(elsewhere) == before
    row.measured(f"a link {name}: refused, nothing behind it changed", trials=1)


def test_f42_files_of_others(tmp_path, row):
    """Only temporary files of runs are removed; checkpoints of other code and studies stay, and are said."""
    out, said = tmp_path / "out", []
    (out / "runs").mkdir(parents=True)
    run = run_name(SPEC.runs[0])
    foreign = ["thesis.part", "movie.mp4.1234.part", "notes.partial.txt", "x.live", f"{run}.txt"]
    others = [f"{'0' * 16}-{'1' * 8}{suffix}" for suffix in (".partial", ".partial.before", ".live")]
    ours = [f"{run}.parquet.1234.part", f"{run}.partial.77.part"]
    for name in (*foreign, *others, *ours):
        (out / "runs" / name).write_text("valuable")
    run_study(SPEC, out, executor=Here(), notice=said.append)
    left = {path.name for path in (out / "runs").iterdir()}
    assert {*foreign, *others} <= left
    assert not {*ours} & left
    assert any("checkpoints of 1 unfinished runs of other code or other studies" in one for one in said)
    row.measured(f"{len(foreign) + len(others)} files of others stayed, {len(ours)} of killed runs removed", trials=10)


@pytest.mark.parametrize("port", ["99999", "65536", "0", "9" * 40])
def test_f42_a_port_that_is_none(port, tmp_path, row):
    for serve in (True, False):
        with pytest.raises(PerronError, match=r"a port from 1 to 65535, as 10\.0\.0\.1:29500; got '127"):
            open_store(f"127.0.0.1:{port}", serve=serve)
    (tmp_path / "script.py").write_text("")
    command = [sys.executable, "-m", "perron", "launch", "--nodes", "1", "--store", f"127.0.0.1:{port}"]
    if port == "99999":
        done = subprocess.run(
            [*command, str(tmp_path / "script.py")], capture_output=True, text=True, check=False, timeout=HANG
        )
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "bug" not in done.stderr
    row.measured(f"port {port[:8]}: refused with the range", trials=2)


def test_f42_downloads_stay_on_https(monkeypatch, row):
    assert all(url.startswith("https://") for urls in download.MIRRORS.values() for url in urls)

    class Plain(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"content")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Plain) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        plain = f"http://127.0.0.1:{server.server_port}/"
        real = download.urllib.request.urlopen
        monkeypatch.setattr(download.urllib.request, "urlopen", lambda _, timeout: real(plain, timeout=timeout))
        with pytest.raises(FileError, match=f"redirected from https to {plain}"):
            download._download("https://mirror.example/file.gz")
        server.shutdown()
    row.measured("all mirrors by https; one that leads away from it is refused", trials=2)
