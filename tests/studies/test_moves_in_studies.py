"""Studies of algorithms with moves: how they are written, named and refused."""

import pytest

from perron import AdamW, Clipped, Momentum, PushPull, simulate
from perron.errors import PerronError
from perron.studies.run import algorithm_of
from perron.studies.runner import run_study
from perron.studies.spec import load

STUDY = """
title = "moves"
conclusion = "comparison"
topologies = ["ring"]
nodes = 4
algorithms = [
  "push_pull",
  { name = "push_pull", order = "pu", move = "momentum" },
  { name = "push_pull", move = { name = "adamw", weight_decay = 0.0, betas = [0.8, 0.9], clip = 0.5 } },
]
lr = 0.02
steps = 60
trials = 2
metrics = ["grad_norm_sq", "consensus_error_sq"]
[problem]
kind = "quadratic"
noise_std = 0.1
"""


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "moves.toml"
        path.write_text(text)
        return path

    return write


def test_runs_have_the_moves_and_the_table_names_them(written, tmp_path):
    study = load(written(STUDY))
    algorithms = [run.build()[1] for run in study.runs]
    assert algorithms == [
        PushPull(), PushPull(order="pu", move=Momentum()),
        PushPull(move=Clipped(AdamW(weight_decay=0.0, betas=(0.8, 0.9)), norm=0.5)),
    ]  # fmt: skip
    table = run_study(study, tmp_path / "results", progress=False).table
    names = [
        "push_pull", "push_pull(order=pu, move=momentum)",
        "push_pull(move=adamw(weight_decay=0.0, betas=[0.8, 0.9], clip=0.5))",
    ]  # fmt: skip
    assert sorted(table["algorithm"].unique()) == sorted(names)
    for run, algorithm, name in zip(study.runs, algorithms, names, strict=True):
        problem, _, mixing = run.build()
        history = simulate(problem, algorithm, mixing, steps=60, lr=0.02, trials=2, progress=False)
        rows = table[(table["algorithm"] == name) & (table["step"] == 60)]
        assert sorted(rows["grad_norm_sq"]) == pytest.approx(sorted(history["grad_norm_sq"][-1].tolist()), rel=1e-12)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('move = "momentum"', 'move = "momentun"', "There is no move 'momentun'; did you mean 'momentum'"),
        ("weight_decay = 0.0", "decay = 0.0", "There is no option of adamw 'decay'.*weight_decay"),
        ("clip = 0.5", "clip = -1", "finite norm > 0"),
        ("clip = 0.5", 'clip = "much"', "finite norm > 0"),
        ("betas = [0.8, 0.9]", "betas = 0.9", "betas"),
        ('move = "momentum"', "move = 3", "A move is a name or a table with a name; got 3"),
        ('name = "push_pull", order = "pu"', 'name = "extra"', "There is no option of extra 'move'"),
        ("lr = 0.02", "", r"lr: push_pull\(move=adamw.*AdamW has no default step"),
    ],
)
def test_mistakes_are_named(written, old, new, message):
    assert old in STUDY
    with pytest.raises(PerronError, match=message):
        load(written(STUDY.replace(old, new)))


def test_momentum_has_a_default_step():
    assert algorithm_of("push_pull", {"move": {"name": "momentum", "momentum": 0.5}}) == PushPull(
        move=Momentum(momentum=0.5)
    )
