"""Single bits that flip in checkpoints: every one is noticed."""

import random

from test_f09_truncated import kept  # noqa: F401

from perron._storage import tensorfile as saved


def parts(path):
    """The places in a file that a bit is taken from: header and data alike."""
    head = 8 + saved.header_of(path)[0]
    return [range(head), range(head, path.stat().st_size)]


def test_f10_bit_rot(kept, row, trials):  # noqa: F811
    many, dice = trials(12, 200), random.Random(1)
    path, places = kept.newest, parts(kept.newest)
    for trial in range(many):
        content, at = path.read_bytes(), dice.choice(places[trial % len(places)])
        before = saved.before(path).read_bytes() if saved.before(path).exists() else b""
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << dice.randrange(8)]) + content[at + 1 :])
        step, said = kept.load()
        assert step == 2, (path, at)
        assert f"{path} is damaged: it has" in said, said
        path.write_bytes(content)
        if before:
            saved.before(path).write_bytes(before)
    assert kept.load() == (3, "")
    row.measured(f"{kept.name}: noticed {many} of {many}", trials=many)
