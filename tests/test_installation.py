"""What an installation says about itself: a missing PyTorch, and the commit that it was made from."""

import subprocess
import sys
from pathlib import Path

import pytest

from perron.studies import provenance

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; "


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


def test_a_missing_torch_is_an_error_that_says_how_to_get_it(tmp_path):
    done = run(f"{WITHOUT_TORCH}import perron; perron.simulate", tmp_path)
    assert "perron needs PyTorch" in done.stderr.splitlines()[-1]
    done = run(f"{WITHOUT_TORCH}from perron.cli.main import _run; sys.exit(_run(['demo'], debug=False))", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("perron: perron needs PyTorch")
    assert "--torch-backend cpu" in done.stderr


def test_graphs_need_no_torch(tmp_path):
    code = f"{WITHOUT_TORCH}from perron.cli.main import _run; sys.exit(_run(['graph', 'ring', '--nodes', '4'], debug=False))"
    assert run(code, tmp_path).returncode == 0


@pytest.mark.parametrize("tracked", [True, False])
def test_the_commit_is_that_of_the_checkout_not_of_a_repository_around_the_environment(tmp_path, monkeypatch, tracked):
    (tmp_path / "other.txt").touch()
    (tmp_path / "perron").mkdir()
    (tmp_path / "perron" / "__init__.py").touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "." if tracked else "other.txt"], ["commit", "-q", "-m", "All"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path / "perron")
    assert (provenance.commit() is not None) == tracked
