"""Texts: the real tiny-shakespeare where it is found, and small plays."""

import gzip
import hashlib
import re
from collections import Counter
from itertools import pairwise

import pytest
import torch

from perron.data import datasets, text
from perron.errors import FileError, PerronError

SMALL = "A:\none\n\nB:\ntwo: three\n\nA:\nfour\n\n\nfive\n\nC:\n\nB:\nsix\n"


@pytest.fixture(scope="module")
def play():
    if datasets.find("tinyshakespeare") is None:
        pytest.skip("tiny-shakespeare is not here: perron data fetch tinyshakespeare")
    return text.load()


def naive_roles(content):
    """Characters of each role, line by line: a role is named by a line with a colon at its end after an empty line."""
    found, role, last = Counter(), "", ""
    for line in content.splitlines(keepends=True):
        if not last.strip() and re.fullmatch(r"[^:]+:\n", line):
            role = line[:-2]
        found[role] += len(line)
        last = line
    return found


def test_the_real_text(play):
    assert hashlib.sha256(play.text.encode()).hexdigest().startswith("86c4e6aa")
    assert len(play.text) == 1_115_394
    assert play.vocabulary == "\n !$&',-.3:;?" + "".join(map(chr, [*range(65, 91), *range(97, 123)]))
    roles = play.by_role()
    assert {role: len(lines) for role, lines in roles.items()} == naive_roles(play.text)
    assert next(iter(roles)) == "First Citizen"
    assert roles["First Citizen"].startswith(
        "First Citizen:\nBefore we proceed any further, hear me speak.\n\nFirst Citizen:\nYou"
    )
    assert sum(lines.count("\n\n") for lines in roles.values()) == play.text.count("\n\n")
    assert play.decode(play.encode(play.text)) == play.text


@pytest.mark.parametrize("nodes", [1, 4, 8, 16])
def test_nodes_have_roles_of_their_own_and_equal_shares(play, nodes):
    split, roles = play.split(nodes), play.by_role()
    sizes = [len(part) for part in split.parts]
    assert len(sizes) == nodes
    assert max(sizes) - min(sizes) < 0.001 * sum(sizes)
    assert Counter(torch.cat([*split.parts, split.validation]).tolist()) == Counter(play.encode(play.text).tolist())
    where, texts = {}, [play.decode(part) for part in split.parts]
    for role, lines in roles.items():
        kept = lines[: len(lines) * 8 // 10]
        where[role] = {node for node, part in enumerate(texts) if kept in part}
    assert all(where.values())
    assert all(len(where[role]) == 1 for role in roles if len(roles[role]) > 200)  # short ones may occur by chance
    again = play.split(nodes)
    assert all(torch.equal(one, other) for one, other in zip(split.parts, again.parts, strict=True))


def test_the_held_out_part_covers_all_roles(play):
    roles, validation = play.by_role(), play.decode(play.split(8).validation)
    assert abs(len(validation) / len(play.text) - 0.1) < 0.001
    start = 0
    for lines in roles.values():  # in the order of the play: a tenth of each
        size = max(1, round(len(lines) / 10))
        assert validation[start : start + size] == lines[-size:]
        start += size
    assert start == len(validation)
    assert len(play.split(8, held_out=0.3).validation) > 2.9 * len(validation)


def test_nodes_differ(play):
    """Frequencies of words differ more between nodes than between halves of the same size of the same node."""

    def distance(one, other):
        first, second = (Counter(re.findall(r"\w+", part)) for part in (one, other))
        words = first | second
        return sum(abs(first[word] / first.total() - second[word] / second.total()) for word in words) / 2

    def shuffled(part):
        lines = part.splitlines()
        return "\n".join(lines[::2]), "\n".join(lines[1::2])

    texts = [play.decode(part) for part in play.split(8).parts]
    within = [distance(*shuffled(one + other)) for one, other in pairwise(texts)]
    between = [distance(one, other) for one, other in pairwise(texts)]
    assert min(between) > 1.2 * max(within)


def test_a_small_play():
    play = text.Play(SMALL)
    assert play.by_role() == {
        "A": "A:\none\n\nA:\nfour\n\n\nfive\n\n",
        "B": "B:\ntwo: three\n\nB:\nsix\n",
        "C": "C:\n\n",
    }
    split = play.split(3, held_out=0.99)
    assert sorted(play.decode(part) for part in split.parts) == ["A", "B", "C"]
    assert play.encode("one").dtype == torch.int64


def test_what_cannot_be_split():
    play = text.Play(SMALL)
    for nodes in (0, 4):
        with pytest.raises(PerronError, match=f"3 roles cannot be dealt out to {nodes} nodes"):
            play.split(nodes)
    for part in (0.0, 1.0, float("nan")):
        with pytest.raises(PerronError, match="held_out is the part of each role"):
            play.split(2, held_out=part)
    with pytest.raises(PerronError, match=r"does not contain \['é'\]"):
        play.encode("é")


def test_where_a_text_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PERRON_DATA", str(tmp_path))
    with pytest.raises(FileError, match=r"tiny-shakespeare was not found.*perron data fetch tinyshakespeare"):
        text.load()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "tinyshakespeare.txt.gz").write_bytes(gzip.compress(SMALL.encode()))
    assert text.load().text == text.load("tinyshakespeare", tmp_path / "text").text == SMALL
    (tmp_path / "text" / "tinyshakespeare.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match=r"tinyshakespeare\.txt is not a play: .*utf-8"):
        text.load()
    with pytest.raises(PerronError, match="no text 'shakespeare'"):
        text.load("shakespeare")
    with pytest.raises(PerronError, match="no dataset of images 'tinyshakespeare'"):
        datasets.load("tinyshakespeare")
