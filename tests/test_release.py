"""scripts/release: what it finds in a wheel, and what it keeps of earlier runs."""

import importlib.util
import json
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "release.py"


@pytest.fixture
def release(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("release", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "release", module)
    spec.loader.exec_module(module)
    files = {"src": {"src/perron/__init__.py", "src/perron/py.typed"}, "examples": {"examples/train.py"}}
    monkeypatch.setattr(module, "tracked", lambda *folders: files[folders[0]])
    monkeypatch.setattr(module, "DIST", tmp_path)
    monkeypatch.setattr(module, "WORK", tmp_path / "work")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "work" / "results.json")
    return module


GOOD = ["perron/__init__.py", "perron/py.typed", "perron/examples/train.py", "perron-1.dist-info/licenses/LICENSE"]


def write_wheel(folder: Path, names: list[str], content: str = "") -> None:
    with zipfile.ZipFile(folder / "perron-1-py3-none-any.whl", "w") as archive:
        for name in names:
            archive.writestr(name, content)


def test_a_wheel_has_the_package_and_the_examples_and_nothing_else(release, tmp_path):
    write_wheel(tmp_path, GOOD)
    assert release.wheel_problems() == []
    write_wheel(tmp_path, [*GOOD[:2], "perron/data/mnist.npz", "tests/test_all.py"])
    assert release.wheel_problems() == [
        "missing in the wheel: perron/examples/train.py",
        "not a file of the package: perron/data/mnist.npz",
        "not a file of the package: tests/test_all.py",
        "a data set: perron/data/mnist.npz",
        "no licence in the wheel",
    ]


def test_results_are_kept_for_the_same_wheel_only(release, tmp_path):
    write_wheel(tmp_path, GOOD)
    release.record("3.11 lowest", {"result": "passed"})
    release.record("3.11 newest", {"result": "FAILED"})
    assert list(release.load()) == ["3.11 lowest", "3.11 newest"]
    assert json.loads(release.RESULTS.read_text())["wheel"] == release.digest()
    write_wheel(tmp_path, GOOD, content="changed")
    assert release.load() == {}
