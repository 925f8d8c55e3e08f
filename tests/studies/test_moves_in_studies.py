"""Studies of algorithms with moves: how they are written, named and refused."""

import pytest

from perron import AdamW, Clipped, Momentum, PushPull, simulate
from perron.errors import PerronError
from perron.schedules import cosine, warmup
from perron.studies.conclusions import conclude
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


COUNTED = """
title = "gradients"
conclusion = "curves"
topologies = ["exponential"]
nodes = 4
algorithms = ["push_pull", { name = "local_push_pull", local_steps = 8 }, { name = "diloco", local_steps = 5 }]
lr = 0.02
count = "gradients"
steps = 80
every = 16
warmup = 12
decay = "cosine"
trials = 1
metrics = ["grad_norm_sq"]
figure = { x = "bytes", log_x = true }
[problem]
kind = "quadratic"
noise_std = 0.1
"""


def test_steps_that_count_gradients(written, tmp_path):
    """All methods get the same number of gradients, records and warm-up; one with local steps has fewer steps."""
    study = load(written(COUNTED))
    outcome = run_study(study, tmp_path / "results", progress=False)
    for run, expected in zip(study.runs, [(80, 16, 12), (10, 2, 2), (16, 3, 3)], strict=True):
        rows = outcome.table[outcome.table["run"] == run.key]
        problem, algorithm, mixing = run.build()
        steps, every, warm = expected
        rate = warmup(cosine(0.02, steps=steps), warm)
        history = simulate(problem, algorithm, mixing, steps=steps, every=every, lr=rate, progress=False)
        assert rows["step"].tolist() == history.steps.tolist()
        assert rows["grad_norm_sq"].tolist() == history["grad_norm_sq"][:, 0].tolist()
        assert rows["gradients"].max() == 80
        assert set(rows["steps"]) == {steps}
    chart = conclude(outcome).figures["curves"]
    assert chart.log_x
    assert all(min(line.x) > 0 for panel in chart.panels for line in panel.lines)
    uneven = COUNTED.replace('{ name = "diloco", local_steps = 5 }', '{ name = "diloco", local_steps = [1, 2, 3, 4] }')
    outcome = run_study(load(written(uneven)), tmp_path / "uneven", progress=False)
    assert [text for text in outcome.failed.values() if "Count steps instead" in text]


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
