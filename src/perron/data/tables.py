"""Tables of samples: features and targets from LIBSVM, CSV, NPZ and Parquet files, or of a dataset by name.

Files may be compressed with gzip, bzip2 or xz. A line or cell that cannot be read is named; nothing is guessed, skipped or
unpickled. The datasets by name are from the LIBSVM collection (C.-C. Chang, C.-J. Lin 2011), which `perron.data.fetch` downloads,
and images, as rows of pixels in [0, 1].
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Sequence
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from perron._registry import lookup, public_dir, unknown
from perron._storage import npz
from perron.data import datasets
from perron.errors import FileError, listed

if TYPE_CHECKING:
    import pandas as pd

NAMES = ("digits", *datasets.TABLES, *datasets.IMAGES)
TARGETS = (
    "target",
    "targets",
    "label",
    "labels",
    "class",
    "y",
)  # of these, one is the column of targets unless it is given
FEATURES = ("X", "features")  # names of the array in an .npz file
LARGEST = 2**33  # bytes of features


class Table(NamedTuple):
    """Samples: features ``(N, d)``, float64; targets ``(N,)``, numbers or text; the node of each sample, if a column says it."""

    features: Tensor
    targets: NDArray[Any]
    nodes: NDArray[Any] | None = None


def load_table(name: str, folder: str | Path | None = None) -> tuple[Table, Table | None]:
    """Load a dataset by name: training samples, and test samples where there are some."""
    if name not in NAMES:
        raise unknown(name, NAMES, "dataset of samples")
    if name not in datasets.TABLES:
        data = datasets.load(name, folder)
        return _pixels(data.images, data.labels), _pixels(data.test_images, data.test_labels)
    where = datasets.locate(name, folder)
    training = read_table(datasets.path_of(where, name))
    test = f"{name}.t"
    return training, read_table(datasets.path_of(where, test)) if not datasets.lacks(where, test) else None


def read_table(
    path: str | Path, *, target: str | int | None = None, nodes: str | int | None = None, drop: Sequence[str] = ()
) -> Table:
    """Read a file of samples.

    Args:
        path: ``.csv`` or ``.tsv``, with a header or without; ``.parquet``; ``.npz`` with arrays X and y (or features, and labels
            or targets); any other name for LIBSVM's format, ``label index:value index:value ...`` with indices from 1.
        target: the column of the targets; by default the one that is called target, label, class or y. Columns without a header
            are numbered from 0.
        nodes: a column that names the node of each sample.
        drop: columns that are not used, such as ids; all others are features.
    """
    path = Path(path)
    try:
        facts = path.stat()
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror}.") from None
    return _read(path, target, nodes, tuple(map(str, drop)), facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=4)  # the runs of a study read the same files
def _read(path: Path, target: str | int | None, nodes: str | int | None, drop: tuple[str, ...], *_: int) -> Table:
    suffix = path.with_suffix("").suffix if path.suffix in datasets.PACKED else path.suffix
    if suffix == ".npz":
        return _from_arrays(path, npz.read(path), target, nodes)
    raw = datasets.read_file(path)
    if suffix == ".parquet":
        import pandas as pd

        try:
            return _from_frame(path, pd.read_parquet(io.BytesIO(raw)), target, nodes, drop, "row", 0)
        except (OSError, ValueError) as error:  # pyarrow's errors are of these types
            raise FileError(f"{path} is not a Parquet file that can be read: {error}.") from None
    if suffix in (".csv", ".tsv"):
        return _from_csv(path, raw, target, nodes, drop)
    if named := [column for column in (target, nodes, *drop) if column is not None]:
        raise FileError(
            f"{path} is read as a LIBSVM file, which has no columns {listed(named)}; name columns of .csv, .npz and .parquet "
            "files only."
        )
    return parse_libsvm(path, raw)


def parse_libsvm(path: Path, raw: bytes) -> Table:
    """Return the samples of a text in LIBSVM's format; ``path`` is for errors."""
    labels, counts, columns, values = array("d"), array("q"), array("q"), array("d")
    for number, line in enumerate(raw.split(b"\n"), 1):
        words = line.partition(b"#")[0].split()
        if not words:
            continue
        try:
            labels.append(float(words[0]))
            if not isfinite(labels[-1]):
                raise ValueError("labels are finite numbers")
            before = 0
            for word in words[1:]:
                index, _, value = word.partition(b":")
                columns.append(int(index))
                values.append(float(value))
                if not isfinite(values[-1]):
                    raise ValueError("values are finite numbers")
                if columns[-1] <= before:
                    raise ValueError(f"index {columns[-1]} after {before}; they increase, from 1")
                before = columns[-1]
        except (ValueError, OverflowError) as error:
            shown = line.decode("utf-8", errors="replace").strip()
            raise FileError(f"{path}, line {number}: {shown[:80]!r} is not 'label index:value ...': {error}.") from None
        counts.append(len(words) - 1)
    if not labels:
        raise FileError(f"{path} has no samples.")
    count, width = len(labels), max(columns, default=0)
    _check_size(path, count, width)
    features = np.zeros((count, width))
    rows = np.repeat(np.arange(count), np.frombuffer(counts, np.int64))
    features[rows, np.frombuffer(columns, np.int64) - 1] = np.frombuffer(values)
    return _checked(path, features, np.frombuffer(labels).copy(), None, "sample", 0)


def _from_csv(
    path: Path, raw: bytes, target: str | int | None, nodes: str | int | None, drop: tuple[str, ...]
) -> Table:
    import pandas as pd

    try:
        text = raw.decode("utf-8-sig").rstrip()
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not text in UTF-8: {error}.") from None
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    header = None if all(_is_number(cell) for cell in first.split(separator)) else 0
    try:
        frame = pd.read_csv(
            io.StringIO(text), sep=separator, header=header, skip_blank_lines=False, skipinitialspace=True
        )
    except (ValueError, pd.errors.ParserError) as error:
        raise FileError(f"{path} is not a CSV file that can be read: {str(error).strip()}.") from None
    return _from_frame(path, frame, target, nodes, drop, "line", 1 if header is None else 2)


def _from_frame(
    path: Path,
    frame: pd.DataFrame,
    target: str | int | None,
    nodes: str | int | None,
    drop: tuple[str, ...],
    unit: str,
    first: int,
) -> Table:
    import pandas as pd

    frame.columns = [str(name) for name in frame.columns]
    group = [] if nodes is None else [str(nodes)]
    for column in (*group, *drop):
        lookup(column, dict.fromkeys(frame.columns), f"column of {path.name}")
    named = _target_name(path, [column for column in frame.columns if column not in drop], target)
    for column in (named, *group):
        if frame[column].isna().any():
            place = first + int(frame[column].isna().to_numpy().argmax())
            raise FileError(f"{path}, {unit} {place}: column {column!r} is empty.")
    features = frame.drop(columns=list({named, *group, *drop}))
    _check_size(path, len(features), len(features.columns))
    numbers = np.array(features.apply(pd.to_numeric, errors="coerce"), dtype=np.float64)
    if not np.isfinite(numbers).all():
        row, column = np.argwhere(~np.isfinite(numbers))[0]
        cell = features.iloc[row, column]
        shown = "is empty or not a number" if pd.isna(cell) else f"holds {str(cell)!r}, not a finite number"
        raise FileError(
            f"{path}, {unit} {first + row}: column {features.columns[column]!r} {shown}. Encode text as numbers, fill in what is "
            "missing, or drop the column."
        )
    return _checked(path, numbers, _plain(frame[named]), _plain(frame[group[0]]) if group else None, unit, first)


def _from_arrays(path: Path, arrays: dict[str, Any], target: str | int | None, nodes: str | int | None) -> Table:
    named = next((name for name in FEATURES if name in arrays), None)
    if named is None:
        raise FileError(f"{path} has no array {' or '.join(FEATURES)}; it has {listed(list(arrays))}.")
    where = _target_name(path, [name for name in arrays if name != named], target)
    if nodes is not None and str(nodes) not in arrays:
        raise unknown(nodes, arrays, f"array of {path.name}")
    features, targets = arrays[named], arrays[where]
    groups = None if nodes is None else arrays[str(nodes)]
    if features.ndim != 2 or features.dtype.kind not in "fiub":
        raise FileError(f"{path}: {named} is an array (N, d) of numbers; got {features.shape} of {features.dtype}.")
    for name, column in ((where, targets), (nodes, groups)):
        if column is not None and column.shape != features.shape[:1]:
            raise FileError(f"{path}: {named} has {len(features)} rows, but {name} the shape {column.shape}.")
    return _checked(path, features.astype(np.float64), targets, groups, "row", 0)


def _checked(
    path: Path, features: NDArray[Any], targets: NDArray[Any], nodes: NDArray[Any] | None, unit: str, first: int
) -> Table:
    if not features.size:
        raise FileError(
            f"{path} has {features.shape[0]} samples with {features.shape[1]} features; it needs some of both."
        )
    for what, numbers in (("feature", features), ("target", targets)):
        if numbers.dtype.kind == "f" and not np.isfinite(numbers).all():
            place = np.argwhere(~np.isfinite(numbers))[0]
            raise FileError(
                f"{path}, {unit} {first + place[0]}: a {what} is {numbers[tuple(place)]}, not a finite number."
            )
    return Table(torch.from_numpy(features), targets, nodes)


def _target_name(path: Path, columns: list[str], target: str | int | None) -> str:
    if target is not None:
        if str(target) not in columns:
            raise unknown(target, columns, f"column of {path.name}")
        return str(target)
    found = [name for name in columns if name.lower() in TARGETS]
    if len(found) != 1:
        reason = (
            f"the columns {listed(found)} could be the target"
            if found
            else "no column is called target, label, class or y"
        )
        raise FileError(f"{path}: {reason}; set target to one of {listed(columns[:20])}.")
    return found[0]


def _pixels(images: Tensor, labels: Tensor) -> Table:
    return Table(images.flatten(1).double() / 255, labels.numpy())


def _plain(column: pd.Series[Any]) -> NDArray[Any]:
    """A column as numbers or as text."""
    return column.to_numpy() if column.dtype.kind in "fiub" else column.astype(str).to_numpy(dtype=np.str_)


def _check_size(path: Path, count: int, width: int) -> None:
    if (size := 8 * count * width) > LARGEST:
        raise FileError(
            f"{path} has {count:,} samples with {width:,} features: {size / 2**30:.0f} GiB as a dense array, more than "
            f"{LARGEST / 2**30:.0f}. Choose fewer features."
        )


def _is_number(text: str) -> bool:
    try:
        float(text.strip().strip('"'))
    except ValueError:
        return False
    return True


__dir__ = public_dir(__name__)
