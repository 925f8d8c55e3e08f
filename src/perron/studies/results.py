"""The results in a study's directory: reading them, and replacing them without losing others.

    runs/KEY-CODE.parquet   the table of one finished run: KEY is a hash of its parameters, CODE of the code that computed it
    runs/KEY-CODE.json      its parameters, its duration, and warnings
    results.parquet         all runs of the study: a row for each run, recorded step and trial; each parameter a column
    manifest.json           version, commit, seeds, machine, duration, how each run ended, and the SHA-256 of the table
    manifest.next.json      the manifest of a table that is just being written
    earlier/CODE-DIGEST/    a table that results.parquet does not contain, with its manifest, report and figures: a study's
                            directory like any other

`replace_table` is the only function that writes a table. It replaces a table only by one with at least its runs, computed by the
same code; any other one is kept in ``earlier`` first. An empty table replaces nothing.
"""

from __future__ import annotations

import io
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

from perron._storage.atomic import keep_file, make_own_directory, write_bytes
from perron.errors import FileError, listed
from perron.studies.provenance import code as own_code
from perron.studies.run import Run
from perron.studies.spec import READING, Study

if TYPE_CHECKING:
    import pandas as pd

RUNS, TABLE, MANIFEST, NEXT, EARLIER = "runs", "results.parquet", "manifest.json", "manifest.next.json", "earlier"
PRODUCTS = ("report.html", "report.md", "summary.json", "*.png", "*.pdf", "table-*.*")  # files made from a table
FORMAT = 1  # of the directory; a reader refuses higher ones
COLUMNS = ("run", "topology", "nodes", "weights", "algorithm", "lr", "step", "trial")  # of every table of results
CODE = re.compile(r"\w{1,40}", re.ASCII)  # a hash of code
RUN_FILE = re.compile(rf"([0-9a-f]{{16}})-({CODE.pattern})\.parquet", re.ASCII)
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Manifest(BaseModel):
    """The content of manifest.json: how a study was run, on which machine, and how each run ended."""

    format: Annotated[int, Field(ge=1, le=FORMAT)] = 1
    study: dict[str, Any]
    perron: str = ""
    commit: str | None = None
    code: str = ""
    seeds: list[int] = []
    machine: dict[str, str | int] = {}
    started: datetime | None = None
    seconds: Seconds
    core_seconds: Seconds = 0.0
    runs: dict[str, Seconds] = {}
    reused: NonNegativeInt
    failed: dict[str, str]
    warned: dict[str, str] = {}
    sha256: str = ""  # of results.parquet


class RunFacts(BaseModel):
    """The content of the JSON file beside the table of a run."""

    seconds: Seconds
    warnings: list[str]
    sha256: str = ""  # of the table


@dataclass(repr=False)
class Outcome:
    """The results of a study.

    Attributes:
        study: the study.
        folder: its directory.
        table: a pandas table: a row for each run, recorded step and trial.
        seconds: how long it took.
        reused: the number of runs whose results were there before.
        failed, warned: a message for each run that failed or gave warnings, by key.
        other_code: the number of runs that only have results of other code, by the hash of that code; they were run again.
        kept: where the table is that was in the directory before, if the new one does not contain it.
        written: whether the table is in the directory; an empty one does not replace another.
        manifest: how the study was run.
    """

    study: Study
    folder: Path
    table: Any  # a pandas table, of which the type checker knows too little
    seconds: float
    reused: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    warned: dict[str, str] = field(default_factory=dict)
    other_code: dict[str, int] = field(default_factory=dict)
    kept: Path | None = None
    written: bool = True
    manifest: Manifest | None = None

    def __repr__(self) -> str:
        return f"<Outcome of {self.study.name!r}: {self.done} of {len(self.study.runs)} runs, in {self.folder}>"

    @property
    def finished(self) -> bool:
        """Whether all runs have results."""
        return not self.failed and self.done == len(self.study.runs)

    @property
    def done(self) -> int:
        """The number of runs that have results."""
        return 0 if self.table.empty else int(self.table["run"].nunique())


# ---- reading


def read_study(folder: str | Path, *, code: str | None = None) -> Outcome:
    """Read the results of a study from its directory, even if it is not complete.

    Args:
        folder: the study's directory.
        code: the hash of the code that computed the results, one of `results_by_code`; by default that of results.parquet.
    """
    folder = Path(folder)
    if code is not None:
        return _read_code(folder, code)
    manifest, table = _read_pair(folder)
    try:
        study = Study.model_validate(manifest.study, context=READING)
    except ValidationError as error:
        raise _no_results(folder, str(error)) from None
    return Outcome(
        study, folder, table, manifest.seconds, manifest.reused, manifest.failed, manifest.warned, manifest=manifest
    )


def read_manifest(folder: Path, name: str = MANIFEST) -> Manifest:
    """Read how the study in a directory was run."""
    try:
        return Manifest.model_validate_json((folder / name).read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] == ("format",) and first["type"] == "less_than_equal":
            raise FileError(
                f"{folder / name} has the format {first['input']}, and this version of perron reads up to {FORMAT}; "
                "use the version that wrote it, or a newer one."
            ) from None
        where = ".".join(map(str, (name, *first["loc"])))
        raise _no_results(folder, f"{where}: {first['msg']}") from None
    except OSError as error:
        raise _no_results(folder, str(error)) from None


def read_table(path: Path, digest: str) -> pd.DataFrame:
    """Read a table; refuse one that lacks columns or has another SHA-256 (any if ``digest`` is empty: older tables)."""
    import pandas as pd
    from pyarrow import ArrowException

    try:
        content = path.read_bytes()
        if digest and digest != (own := sha256(content).hexdigest()):
            raise FileError(f"{path.name} is damaged: its SHA-256 is {own[:16]}... instead of {digest[:16]}...")
        table = pd.read_parquet(io.BytesIO(content))
    except FileError:
        raise
    except (OSError, ValueError, KeyError, TypeError, ArrowException) as error:  # also of a newer version of Parquet
        raise FileError(f"{path.name} cannot be read: {' '.join(str(error).split())[:200]}") from None
    lacking = sorted(set(COLUMNS) - set(table.columns))
    if lacking and len(table.columns):  # a study of which no run is finished has a table without columns
        raise FileError(f"{path.name} has no column {', '.join(lacking)}")
    return table


def results_by_code(folder: str | Path) -> dict[str, int]:
    """Return how many finished runs a study's directory holds, by the hash of the code that computed them."""
    folder = Path(folder)
    found: dict[str, set[str]] = {}
    for path in (folder / RUNS).glob("*.parquet"):
        if match := RUN_FILE.fullmatch(path.name):
            found.setdefault(match[2], set()).add(match[1])
    for place in (folder, *earlier_results(folder)):
        with suppress(FileError):
            manifest = read_manifest(place)
            found.setdefault(manifest.code, set()).update(manifest.runs)
    return {code: len(keys) for code, keys in found.items() if code and keys}


def earlier_results(folder: str | Path) -> list[Path]:
    """Return the directories of tables that were kept when another one took their place."""
    return sorted(path.parent for path in (Path(folder) / EARLIER).glob(f"*/{TABLE}"))


def run_name(run: Run, code: str | None = None) -> str:
    """Return the name of a run's files, without suffix, for the present code or another."""
    return f"{run.key}-{code or own_code()}"


def read_run(folder: Path, run: Run, code: str | None = None) -> tuple[RunFacts, pd.DataFrame] | None:
    """Return the facts and the table of a finished run; None if a file is missing or damaged."""
    path = folder / RUNS / f"{run_name(run, code)}.parquet"
    try:
        facts = RunFacts.model_validate_json(path.with_suffix(".json").read_bytes())
        return facts, read_table(path, facts.sha256)
    except (OSError, ValueError):
        return None


def join_runs(
    folder: Path, study: Study, code: str | None = None
) -> tuple[pd.DataFrame, dict[str, float], dict[str, str]]:
    """Join the tables of all finished runs; return it with the seconds and the warnings of each run that has any."""
    import pandas as pd

    found = {run.key: (run, *files) for run in study.runs if (files := read_run(folder, run, code)) is not None}
    table = pd.concat([own for _, _, own in found.values()], ignore_index=True) if found else pd.DataFrame()
    warned = {key: f"{run}: {'; '.join(facts.warnings)}" for key, (run, facts, _) in found.items() if facts.warnings}
    return table, {key: facts.seconds for key, (_, facts, _) in found.items()}, warned


def _read_pair(folder: Path) -> tuple[Manifest, pd.DataFrame]:
    """Return the manifest and the table, also while another process replaces both, or if it was killed in between."""
    manifest = read_manifest(folder)
    try:
        return manifest, read_table(folder / TABLE, manifest.sha256)
    except FileError as error:
        with suppress(FileError):
            following = read_manifest(folder, NEXT)
            return following, read_table(folder / TABLE, following.sha256)
        if read_manifest(folder) != manifest:
            return _read_pair(folder)
        raise _no_results(folder, str(error)) from None


def _read_code(folder: Path, code: str) -> Outcome:
    """Return the results of some code: of the tables in the directory or the join of its runs, the one with the most runs."""
    if not CODE.fullmatch(code):
        raise FileError(f"The hash of code has letters and digits, as 3fa2c1aa; got {code!r:.80}.")
    found = []
    for place in (folder, *earlier_results(folder)):
        with suppress(FileError):
            outcome = read_study(place)
            found += [outcome] if outcome.manifest and outcome.manifest.code == code else []
    with suppress(FileError, ValidationError):
        manifest = read_manifest(folder)
        study = Study.model_validate(manifest.study, context=READING)
        table, seconds, warned = join_runs(folder, study, code)
        joined = manifest.model_copy(
            update={"code": code, "commit": None, "perron": "", "started": None, "runs": seconds, "sha256": ""}
        )
        found.append(Outcome(study, folder, table, sum(seconds.values()), len(seconds), {}, warned, manifest=joined))
    best = max(found, key=lambda outcome: outcome.done, default=None)
    if best is None or not best.done:
        known = results_by_code(folder)
        there = listed([f"{name} ({count} runs)" for name, count in known.items()]) if known else "none"
        raise FileError(f"{folder} holds no results of the code {code!r} for its study; there are results of: {there}.")
    return best


def _no_results(folder: Path, why: str) -> FileError:
    return FileError(
        f"{folder} holds no results of a study ({' '.join(why.split())[:200]}); perron study run makes them."
    )


# ---- writing


class Replacement(NamedTuple):
    """Whether a table was written, and where the one before it is kept; None if the new one contains it."""

    written: bool
    kept: Path | None


def replace_table(folder: Path, table: pd.DataFrame, manifest: Manifest) -> Replacement:
    """Write a table and its manifest, unless the table is empty and there is another; keep the one that was there.

    A table contains another, which is then not kept, if the same code computed both and it has all its runs. A table that
    cannot be read, such as one of a newer version, is kept, too. The new manifest is written under another name first, so
    that at every moment the table has a manifest with its checksum.
    """
    kept = None
    if (folder / TABLE).exists() and not _contains(table, manifest.code, folder):
        if table.empty:
            return Replacement(written=False, kept=None)
        kept = _keep(folder)
    content = table.to_parquet(index=False)
    fields = manifest.model_dump(mode="json") | {"sha256": sha256(content).hexdigest()}
    if manifest.started is not None:
        fields["started"] = manifest.started.isoformat(timespec="seconds")
    text = (json.dumps(fields, indent=2) + "\n").encode()
    write_bytes(folder / NEXT, text)
    write_bytes(folder / TABLE, content)
    write_bytes(folder / MANIFEST, text)
    (folder / NEXT).unlink(missing_ok=True)
    return Replacement(written=True, kept=kept)


def set_aside(path: Path) -> Path | None:
    """Give a file that is about to be replaced a second name with a hash of its content; None if there is no file."""
    try:
        digest = sha256(path.read_bytes()).hexdigest()[:8]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from None
    return keep_file(path, path.with_name(f"{path.name}.{digest}.unread"))


def _contains(table: pd.DataFrame, code: str, folder: Path) -> bool:
    try:
        old, own = _read_pair(folder)
    except FileError:
        return False
    return own.empty or (not table.empty and old.code == code and set(own["run"]) <= set(table["run"]))


def _keep(folder: Path) -> Path:
    """Give the table of a directory, its manifest, report and figures second names in ``earlier``; the table last."""
    code, manifest = "unknown", folder / MANIFEST
    with suppress(FileError):
        pair, _ = _read_pair(folder)
        code = pair.code if CODE.fullmatch(pair.code) else code
        manifest = folder / NEXT if pair != read_manifest(folder) else manifest
    try:
        digest = sha256((folder / TABLE).read_bytes()).hexdigest()[:8]
    except OSError as error:
        raise FileError(f"Cannot read {folder / TABLE}: {error.strerror or error}.") from None
    make_own_directory(folder / EARLIER)
    target = folder / EARLIER / f"{code}-{digest}"
    make_own_directory(target)
    for pattern in PRODUCTS:
        for path in folder.glob(pattern):
            if path.is_file() and not path.is_symlink():
                keep_file(path, target / path.name)
    if manifest.exists():
        keep_file(manifest, target / MANIFEST)
    keep_file(folder / TABLE, target / TABLE)
    return target
