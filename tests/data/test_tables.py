"""Files of samples: what is read, and which line is named if it cannot be."""

import bz2
import gzip
import lzma
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from perron.data import load_table, read_table, tables
from perron.errors import FileError, PerronError

FEATURES = np.array([[1.0, 0.0, -2.5], [0.0, 0.25, 0.0], [3.0, 0.0, 1e-3]])
LABELS = np.array([1.0, -1.0, 1.0])
LIBSVM = "+1 1:1 3:-2.5\n# a remark\n-1 2:0.25 # and another\n\n1 1:3 3:1e-3\n"


def check(table, labels=LABELS):
    np.testing.assert_array_equal(table.features.numpy(), FEATURES)
    assert table.features.dtype == torch.float64
    assert list(table.targets) == list(labels)


@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_libsvm(tmp_path, suffix, pack):
    path = tmp_path / f"data.txt{suffix}"
    path.write_bytes(pack(LIBSVM.encode()))
    check(read_table(path))
    path.write_bytes(pack(LIBSVM.replace("\n", "\r\n").encode()))
    check(read_table(path))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1 0:2", "index 0 after 0"),
        ("1 2:1 2:1", "index 2 after 2"),
        ("1 3:1 2:1", "index 2 after 3"),
        ("1 1:nan", "finite"),
        ("inf 1:2", "finite"),
        ("1 1:2 3", "could not convert|invalid"),
        ("1:2 3", "could not convert"),
        ("1 qid:3 1:2", "invalid literal"),
        ("1,2,3", "could not convert"),
        ("1 99999999999999999999:1", "too large|too big"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, reason):
    path = tmp_path / "data"
    path.write_text(f"1 1:2\n# remark\n{line}\n")
    with pytest.raises(FileError, match=rf"data, line 3: .*{reason}"):
        read_table(path)


def test_csv(tmp_path):
    path = tmp_path / "data.csv"
    rows = [f"{row[0]},{label},{row[1]},{row[2]}" for row, label in zip(FEATURES, LABELS, strict=True)]
    path.write_text("\n".join(["a,label,b,c", *rows]) + "\n")
    check(read_table(path))
    path.write_text("\n".join(rows).replace(",", ";"))
    check(read_table(path, target=1))
    with pytest.raises(FileError, match=r"no column is called target.*0, 1, 2, 3"):
        read_table(path)
    with pytest.raises(PerronError, match=r"no column of data\.csv 'b'"):
        read_table(path, target="b")


def test_columns_of_nodes_and_classes_as_text(tmp_path):
    frame = pd.DataFrame(FEATURES, columns=list("abc")).assign(
        site=["oslo", "rome", "oslo"], Class=["ill", "well", "ill"]
    )
    frame.to_csv(tmp_path / "data.csv", index=False)
    frame.to_parquet(tmp_path / "data.parquet")
    arrays = {"X": FEATURES, "y": np.array(["ill", "well", "ill"]), "site": np.array(["oslo", "rome", "oslo"])}
    np.savez(tmp_path / "data.npz", **arrays)
    for name in ("data.csv", "data.parquet", "data.npz"):
        table = read_table(tmp_path / name, nodes="site")
        check(table, ["ill", "well", "ill"])
        assert list(table.nodes) == ["oslo", "rome", "oslo"]
    check(read_table(tmp_path / "data.csv", drop=["site"]), ["ill", "well", "ill"])
    with pytest.raises(PerronError, match=r"no column of data\.csv 'town'"):
        read_table(tmp_path / "data.csv", drop=["town"])
    for name in ("data.csv", "data.parquet"):
        with pytest.raises(FileError, match=r"(line 2|row 0): column 'site' holds 'oslo', not a finite number"):
            read_table(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,y\n1,2\n,3\n", "line 3: column 'a' is empty or not a number"),
        ("a,y\n1,2\n\n4,3\n", "line 3: column 'y' is empty"),
        ("a,y\n1,2\n5,\n", "line 3: column 'y' is empty"),
        ("a,y\n1,2\n5\n", "line 3: column 'y' is empty"),
        ("a,y\n1,2\n5,6,7\n", "line 3, saw 3"),
        ("a,y\n1,2\ntwo,3\n", "line 3: column 'a' holds 'two'"),
        ("a,y\n1,2\ninf,3\n", "line 3: column 'a' holds .*inf"),
        ("a,y\n1,2\n3,inf\n", "line 3: a target is inf"),
        ("y,label\n1,2\n", "columns y, label could be the target"),
        ("y\n1\n", "1 samples with 0 features"),
        ("a,y\n", "0 samples"),
    ],
)
def test_a_malformed_cell_is_named(tmp_path, text, message):
    (tmp_path / "data.csv").write_text(text)
    with pytest.raises(FileError, match=message):
        read_table(tmp_path / "data.csv")


def test_other_files_are_refused(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", X=FEATURES, y=LABELS[:2])
    with pytest.raises(FileError, match=r"X has 3 rows, but y the shape \(2,\)"):
        read_table(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", data=FEATURES)
    with pytest.raises(FileError, match="no array X or features; it has data"):
        read_table(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", X=np.where(FEATURES == 3, np.nan, FEATURES), y=LABELS)
    with pytest.raises(FileError, match="row 2: a feature is nan"):
        read_table(tmp_path / "c.npz")
    for name in ("x.csv", "x.parquet", "x.npz", "x"):
        (tmp_path / name).write_bytes(b"\xff\xfe\0\1")
        with pytest.raises(FileError, match=name):
            read_table(tmp_path / name)
        with pytest.raises(FileError, match="Cannot read"):
            read_table(tmp_path / "none" / name)
    (tmp_path / "half.gz").write_bytes(gzip.compress(LIBSVM.encode())[:-12])
    with pytest.raises(FileError, match=r"half\.gz cannot be read"):
        read_table(tmp_path / "half.gz")
    (tmp_path / "data").write_text(LIBSVM)
    with pytest.raises(FileError, match="no columns price"):
        read_table(tmp_path / "data", target="price")
    monkeypatch.setattr(tables, "LARGEST", 8)
    (tmp_path / "wide").write_text("1 1:1 1000:1\n")
    with pytest.raises(FileError, match="1 samples with 1,000 features"):
        read_table(tmp_path / "wide")


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "data"
    path.write_text("1 1:2\n")
    assert read_table(path).features.tolist() == [[2.0]]
    path.write_text("1 1:3\n")
    os.utime(path, ns=(1, 1))
    assert read_table(path).features.tolist() == [[3.0]]


def test_names(tmp_path, monkeypatch):
    monkeypatch.setenv("PERRON_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(FileError, match="perron data fetch a9a"):
        load_table("a9a")
    with pytest.raises(PerronError, match="did you mean 'mushrooms'"):
        load_table("mushroom")
    (tmp_path / "libsvm").mkdir()
    (tmp_path / "libsvm" / "a9a.bz2").write_bytes(bz2.compress(LIBSVM.encode()))
    training, test = load_table("a9a")
    check(training)
    assert test is None
    (tmp_path / "libsvm" / "a9a.t").write_text("1 1:1\n")
    assert load_table("a9a")[1].features.shape == (1, 1)
    training, test = load_table("digits")
    assert (training.features.shape, test.features.shape) == ((1500, 64), (297, 64))
    assert float(training.features.max()) == 1


def test_the_real_a9a():
    if not Path(os.environ.get("PERRON_DATA", ""), "libsvm", "a9a.gz").is_file():
        pytest.skip("a9a is not here")
    training, test = load_table("a9a")
    assert (training.features.shape, test.features.shape) == ((32_561, 123), (16_281, 122))
    assert np.unique(training.targets, return_counts=True)[1].tolist() == [24_720, 7_841]
    assert int(training.features.sum()) == training.features.count_nonzero() == 451_592
