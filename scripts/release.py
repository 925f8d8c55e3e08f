"""Build wheel and sdist, check them, test the installed wheel, and time its demo.

The tests are those of `scripts/test --quick`, and the doctests. They run against the installed wheel, in a copy of the checkout
without src, for each Python and each set of dependencies:

    lowest   the lowest versions that pyproject.toml allows and that this Python can use
    pinned   the versions in constraints.txt
    newest   the newest versions

Only CPU builds of torch are installed, from PyTorch's own index or else from the files that pip is told about (find-links). Where
there is none, the tests of the parts that need no torch run. What was done is kept in build/release for as long as the wheel is
the same; `--again` repeats it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WORK, DIST = ROOT / "build" / "release", ROOT / "dist"
RESULTS, CHECKOUT = WORK / "results.json", WORK / "checkout"
TOOLS = Path(sys.executable).parent
PYTHONS = ["3.11", "3.12", "3.13", "3.14", "3.15"]
SETS = ["lowest", "pinned", "newest"]
EXTRAS = ["design", "fast", "slurm", "tensorboard"]
TEST_TOOLS = ["hypothesis", "psutil", "pytest", "pytest-timeout", "pytest-xdist", "sybil"]
TIERS = "not (processes or cluster or browser or docs or fault or slow)"
# These look at the checkout: at the sources, at the documentation, or at files that only development needs.
OF_THE_CHECKOUT = ["tests/docs", "tests/cli/test_examples.py", "tests/test_architecture.py", "tests/test_vocabulary.py"]
WITHOUT_TORCH = [
    *(f"tests/networks/test_{name}.py" for name in ("files", "formats", "graph", "spectral", "topologies")),
    "tests/clock/test_link_files.py",
]
BAR = 60.0  # seconds until the demo's first picture
LARGEST = 1_000_000  # bytes of a file in the wheel
DATA = re.compile(r"\.(npz|gz|zip|csv|parquet|idx\d-ubyte|bin|txt)$")  # suffixes that data sets have
SMALL_DATA = re.compile(r"perron/(data/digits\.npz|clock/presets/\w+(-\w+)?\.csv|play/.*|.*dist-info/.*)")


# ---- building


def build() -> None:
    """Build both into dist, and check their metadata and contents."""
    shutil.rmtree(DIST, ignore_errors=True)
    run([TOOLS / "python", "-m", "build", "--outdir", DIST, ROOT], quiet=True)
    run([TOOLS / "twine", "check", "--strict", wheel(), sdist()])
    problems = [*wheel_problems(), *sdist_problems()]
    for problem in problems:
        print(f"  {problem}")
    if problems:
        raise SystemExit("scripts/release: the contents are not as they should be.")
    print(sizes())


def wheel() -> Path:
    """Return the wheel in dist; build first if there is none."""
    if not (found := sorted(DIST.glob("*.whl"))):
        build()
        found = sorted(DIST.glob("*.whl"))
    return found[-1]


def sdist() -> Path:
    return next(DIST.glob("*.tar.gz"))


def sizes() -> str:
    with zipfile.ZipFile(wheel()) as archive:
        installed = sum(one.file_size for one in archive.infolist())
    return (
        f"wheel {wheel().stat().st_size / 1e6:.2f} MB ({installed / 1e6:.2f} MB installed), "
        f"sdist {sdist().stat().st_size / 1e6:.2f} MB"
    )


def wheel_problems() -> list[str]:
    """Return what is missing in the wheel, or should not be in it."""
    with zipfile.ZipFile(wheel()) as archive:
        files = {one.filename: one.file_size for one in archive.infolist()}
    wanted = {name.removeprefix("src/") for name in tracked("src")}
    wanted |= {f"perron/{name}" for name in tracked("examples")}
    packaged = {name for name in files if ".dist-info/" not in name}
    return [
        *(f"missing in the wheel: {name}" for name in sorted(wanted - packaged)),
        *(f"not a file of the package: {name}" for name in sorted(packaged - wanted)),
        *(f"larger than {LARGEST:,} bytes: {name}" for name, size in files.items() if size > LARGEST),
        *(f"a data set: {name}" for name in packaged if DATA.search(name) and not SMALL_DATA.fullmatch(name)),
        *([] if any(name.endswith("dist-info/licenses/LICENSE") for name in files) else ["no licence in the wheel"]),
        *([] if "perron/py.typed" in files else ["no py.typed in the wheel"]),
    ]


def sdist_problems() -> list[str]:
    """Return what is missing in the sdist, or should not be in it."""
    with tarfile.open(sdist()) as archive:
        files = {one.name.partition("/")[2]: one.size for one in archive.getmembers() if one.isfile()}
    needed = {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "constraints.txt"}
    wanted = needed | {*tracked("src"), *tracked("tests"), *tracked("examples")}
    return [
        *(f"missing in the sdist: {name}" for name in sorted(wanted - files.keys())),
        *(f"not under version control: {name}" for name in sorted(files.keys() - {*tracked(), "PKG-INFO"})),
    ]


def tracked(*folders: str) -> set[str]:
    """Return the files under version control."""
    return set(output(["git", "-C", ROOT, "ls-files", *folders]).splitlines())


# ---- testing


def check(pythons: list[str], sets: list[str], *, again: bool, workers: int) -> None:
    """Test the installed wheel for each Python and set of dependencies, unless that was done for this very wheel."""
    copy_checkout()
    for python in pythons:
        for name in sets:
            key = f"{python} {name}"
            if again or key not in load():
                print(f"== Python {key}", flush=True)
                record(key, check_one(python, name, workers))


def copy_checkout() -> None:
    """Copy all that is under version control but src, so that perron can only come from the wheel."""
    shutil.rmtree(CHECKOUT, ignore_errors=True)
    for name in tracked():
        if not name.startswith("src/"):
            (CHECKOUT / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, CHECKOUT / name)


def check_one(python: str, name: str, workers: int) -> dict[str, Any]:
    """Make an environment, test in it, and return what came out."""
    interpreter, lock = find_python(python), WORK / f"{python}-{name}.txt"
    torch = find_torch(python)
    try:
        versions = resolve(python, name, lock, torch if interpreter else [], EXTRAS)
    except CommandError as error:
        return {"result": "no versions fit", "why": str(error)[:300]}
    about = {key: versions.get(key, "-") for key in ("numpy", "torch")}
    if interpreter is None:
        return about | {
            "result": "not run",
            "why": "neither pyenv nor uv can provide this Python here; all wheels exist",
        }
    environment = make_environment("environment", interpreter, lock, torch)
    uv("pip", "install", "--python", environment, "--no-deps", wheel())
    started = time.monotonic()
    command, options = (
        test_command(environment, name, workers, torch=torch is not None),
        {"cwd": CHECKOUT, "text": True},
    )
    done = subprocess.run(command, env=clean_environment(), capture_output=True, check=False, **options)
    seconds = round(time.monotonic() - started)
    (WORK / f"{python}-{name}.log").write_text(done.stdout + done.stderr)
    summary = ((done.stdout or done.stderr).strip().splitlines() or [""])[-1].strip("= ")
    return about | {
        "python": output([environment / "bin" / "python", "-c", "import platform; print(platform.python_version())"]),
        "result": ("passed" if done.returncode == 0 else "FAILED") + ("" if torch else ", networks only"),
        "why": summary + ("" if torch else "; there is no CPU build of torch for this Python here"),
        "seconds": seconds,
    }


def find_python(version: str) -> Path | None:
    """Return an interpreter of pyenv or of the system, or one that uv downloads; None if there is none."""
    root = Path(output(["pyenv", "root"])) if shutil.which("pyenv") else WORK
    for path in sorted(root.glob(f"versions/{version}.*/bin/python"), reverse=True):
        return path
    for arguments in ("find --no-managed-python", "install", "find --managed-python"):
        try:
            found = uv("python", *arguments.split(), version)
        except CommandError:
            continue
        if found:
            return Path(found)
    return None


def find_torch(python: str) -> list[Any] | None:
    """Return uv's options for a CPU build of torch, from PyTorch's index or else from pip's find-links; None if there is none."""
    try:
        uv(*["pip", "compile", "--no-deps", "--torch-backend", "cpu", "--python-version"], python, "-", input="torch")
    except CommandError:
        folder = WORK / "torch" / python
        pip = [
            TOOLS / "python",
            *["-m", "pip", "download", "-q", "--no-index", "--no-deps", "--only-binary", ":all:", "--python-version"],
        ]
        subprocess.run([*pip, python, "-d", folder, "torch"], capture_output=True, check=False)
        for path in folder.glob("torch-*.whl"):
            constraint = folder / "constraint.txt"
            constraint.write_text(f"torch=={path.name.split('-')[1]}\n")  # registries have no versions with +cpu
            return ["--find-links", folder, "--constraint", constraint]
        return None
    return ["--torch-backend", "cpu"]


def resolve(python: str, name: str, lock: Path, torch: list[Any] | None, extras: list[str]) -> dict[str, str]:
    """Choose versions of all dependencies, with wheels only, write them to a file, and return them."""
    WORK.mkdir(parents=True, exist_ok=True)
    lock.unlink(missing_ok=True)  # uv would prefer the versions in it
    options = {"lowest": "--resolution lowest-direct", "pinned": "--constraint constraints.txt", "newest": ""}[
        name
    ].split()
    if torch is None:
        overrides = WORK / "without-torch.txt"
        overrides.write_text("torch ; python_version < '3'\n")
        torch = ["--override", overrides]
    options += [f"--extra={extra}" for extra in extras]
    command = ["pip", "compile", "pyproject.toml", "--only-binary", ":all:", "--python-version", python]
    uv(*command, "--output-file", lock, *options, *torch)
    return dict(re.findall(r"^([\w.-]+)==([\w.+!-]+)", lock.read_text(), re.M))


def make_environment(name: str, interpreter: Path, lock: Path, torch: list[Any] | None) -> Path:
    """Make a new environment with the chosen versions and what the tests need, but not perron."""
    environment = WORK / name
    shutil.rmtree(environment, ignore_errors=True)
    uv("venv", "--python", interpreter, environment)
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    tools = [pin for pin in pins if pin.partition("==")[0] in TEST_TOOLS]
    uv(
        "pip",
        "install",
        "--python",
        environment,
        "--only-binary",
        ":all:",
        "--requirements",
        lock,
        *tools,
        *(torch or []),
    )
    return environment


def test_command(environment: Path, name: str, workers: int, *, torch: bool) -> list[Any]:
    """Return the command that runs the quick tier, or the parts that need no torch."""
    options = f"-m pytest -p no:cacheprovider -n {workers} --dist loadgroup".split()
    command = [environment / "bin" / "python", *options, "-m", TIERS]
    if not torch:
        return [*command, *WITHOUT_TORCH]
    (examples,) = environment.glob("lib/python*/site-packages/perron/examples")
    ignored = [f"--ignore={path}" for path in (*OF_THE_CHECKOUT, examples)]
    tolerated = []
    if name == "lowest":  # old and new versions together are deprecated, and old ones import more than needed
        tolerated = [f"-Wdefault::{kind}" for kind in ("DeprecationWarning", "FutureWarning")]
        tolerated += ["-k", "not test_what_is_not_imported"]
    return [*command, *tolerated, *ignored, "--pyargs", "tests", "perron"]


def clean_environment() -> dict[str, str]:
    """Return the environment without what would lead Python to the checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return kept | {"EXAMPLES": os.environ.get("EXAMPLES", "30"), "OMP_NUM_THREADS": "1"}


# ---- the demo


def demo(python: str) -> None:
    """Time the demo of the wheel without extras, from the command to the first picture."""
    interpreter, torch = find_python(python), find_torch(python)
    if interpreter is None or torch is None:
        record("demo", {"result": "not run", "why": f"no Python {python}, or no CPU build of torch for it"})
        return
    lock, folder = WORK / "demo.txt", WORK / "demo-run"
    resolve(python, "pinned", lock, torch, [])
    environment = make_environment("demo", interpreter, lock, torch)
    started = time.monotonic()
    uv("pip", "install", "--python", environment, wheel())
    installed = time.monotonic() - started
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [environment / "bin" / "perron", "demo"]
    started, picture = time.monotonic(), None
    with subprocess.Popen(command, cwd=folder, env=clean_environment(), stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if picture is None and any(folder.rglob("*.png")):
                picture = time.monotonic() - started
            time.sleep(0.1)
    whole = time.monotonic() - started
    picture = picture or whole
    result = "passed" if process.returncode == 0 and picture <= BAR else "FAILED"
    why = f"first picture after {picture:.0f} s (at most {BAR:.0f} s), done after {whole:.0f} s, installed in {installed:.1f} s"
    record("demo", {"result": result, "why": f"{why}, on {os.cpu_count()} cores", "seconds": round(whole)})


# ---- results


def load() -> dict[str, Any]:
    """Return the results for the present wheel."""
    content = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return content.get("rows", {}) if content.get("wheel") == digest() else {}


def record(key: str, row: dict[str, Any]) -> None:
    """Add a row to the results."""
    rows = load() | {key: row}
    WORK.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"wheel": digest(), "rows": rows}, indent=1))
    print(f"   {row['result']}: {row.get('why', '')}", flush=True)


def digest() -> str:
    """Return a hash of the content of the wheel."""
    with zipfile.ZipFile(wheel()) as archive:
        content = "".join(f"{one.filename} {one.CRC}\n" for one in archive.infolist())
    return hashlib.sha256(content.encode()).hexdigest()


def table() -> bool:
    """Print the table, and return whether nothing failed."""
    rows = load()
    print("\n| Python | dependencies | numpy | torch | result | seconds | |\n|---|---|---|---|---|---|---|")
    for key in sorted(rows.keys() - {"demo"}):
        python, name = key.split()
        row = {"numpy": "-", "torch": "-", "seconds": "-"} | rows[key]
        cells = [row.get("python", python), name, row["numpy"], row["torch"], row["result"], row["seconds"], row["why"]]
        print(f"| {' | '.join(map(str, cells))} |")
    print(f"\n{sizes()}")
    if "demo" in rows:
        print(f"perron demo from the wheel: {rows['demo']['result']}, {rows['demo']['why']}")
    return not any("FAILED" in row["result"] for row in rows.values())


# ---- commands


def run(command: list[Any], *, quiet: bool = False) -> None:
    """Run a command that has to succeed."""
    done = subprocess.run(command, capture_output=quiet, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"scripts/release: {' '.join(map(str, command))} failed.\n{done.stderr or ''}")


class CommandError(Exception):
    """A command that failed, with what it said."""


def output(command: list[Any], **options: Any) -> str:
    """Return what a command prints; it has to succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise CommandError(f"{' '.join(map(str, command[:4]))} ... failed: {' '.join(done.stderr.split())[:600]}")
    return done.stdout.strip()


def uv(*arguments: Any, **options: Any) -> str:
    """Return what uv prints; it has to succeed."""
    environment = {"UV_HTTP_RETRIES": "1"} | clean_environment()
    return output([TOOLS / "uv", "--quiet", *arguments], cwd=ROOT, env=environment, **options)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=["all", "build", "check", "demo", "table"], default="all")
    parser.add_argument(
        "--python", action="append", metavar="X.Y", help=f"one of {', '.join(PYTHONS)}; all if not given"
    )
    parser.add_argument("--set", action="append", choices=SETS, help="dependencies; all three if not given")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), metavar="N", help="processes for the tests")
    parser.add_argument("--again", action="store_true", help="repeat what was done for this wheel")
    options = parser.parse_args()
    if options.part in ("all", "build"):
        build()
    if options.part in ("all", "check"):
        check(options.python or PYTHONS, options.set or SETS, again=options.again, workers=options.workers)
    if options.part == "demo" or (options.part == "all" and (options.again or "demo" not in load())):
        demo((options.python or PYTHONS)[0])
    if not table():
        raise SystemExit(1)


if __name__ == "__main__":
    try:
        main()
    except CommandError as error:
        raise SystemExit(f"scripts/release: {error}") from None
