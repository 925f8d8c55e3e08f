"""A GPT on a play as a problem: which windows a node has, gradients, losses and fingerprints."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from perron import AdamW, Mixing, PushPull, simulate, topologies
from perron._storage.tensorfile import digest
from perron.data import text
from perron.errors import PerronError
from perron.problems import language_model
from perron.random import Keyed

CONTEXT = 16


@pytest.fixture
def folder(tmp_path):
    """A folder with a play of six roles that say different letters."""
    random = torch.Generator().manual_seed(0)
    letters = torch.randint(4, (6, 40, 10), generator=random)
    speeches = [
        f"R{role}:\n" + "".join("abcdefghi"[role + int(letter)] for letter in letters[role, place]) + "\n\n"
        for place in range(40)
        for role in range(6)
    ]
    (tmp_path / "tinyshakespeare.txt").write_text("".join(speeches))
    return tmp_path


def made(folder, nodes=3, **options):
    return language_model(nodes, folder=str(folder), context=CONTEXT, width=32, depth=1, **options)


def test_windows_are_of_a_nodes_own_text_and_targets_follow(folder):
    problem, play = made(folder), text.load(folder=folder)
    split = play.split(3)
    for part, own in zip(split.parts, problem.parts, strict=True):
        windows = part.unfold(0, CONTEXT + 1, 1)
        assert torch.equal(problem.data.images[own], windows[:, :-1])
        assert torch.equal(problem.data.labels[own], windows[:, 1:])
    tested = split.validation.unfold(0, CONTEXT + 1, CONTEXT)
    assert torch.equal(problem.data.test_images, tested[:, :-1])
    assert torch.equal(problem.data.test_labels, tested[:, 1:])


def test_gradients_and_scores_are_those_of_the_model(folder):
    problem = made(folder, batch=5).to(dtype=torch.float64, device="cpu")
    random = Keyed(1, trials=2, nodes=3)
    x = problem.start().double() + 0.01 * Keyed(2, trials=2, nodes=3).normal(0, problem.dim)
    found = problem.grad(x, 4, random)
    chosen = problem.batches(4, random)
    model = made(folder).model.double()
    for trial in range(2):
        for node in range(3):
            vector_to_parameters(x[trial, node], model.parameters())
            model.zero_grad()
            windows = chosen[trial, node]
            cross_entropy(model(problem.data.images[windows]), problem.data.labels[windows]).backward()
            torch.testing.assert_close(
                found[trial, node], parameters_to_vector([one.grad for one in model.parameters()])
            )
    losses, right = problem.scores(x[:, 0], torch.full((3,), 1 / 3))
    vector_to_parameters(x[1, 0], model.parameters())
    with torch.no_grad():
        logits = model(problem.data.test_images)
    assert float(losses[1]) == pytest.approx(float(cross_entropy(logits, problem.data.test_labels)), rel=1e-12)
    assert float(right[1]) == float((logits.argmax(1) == problem.data.test_labels).double().mean())


def test_it_learns(folder):
    mixing = Mixing.random_integer(topologies.exponential(3), seed=0)
    history = simulate(
        made(folder), PushPull(order="atc", move=AdamW()), mixing, steps=40, lr=0.01, every=40,
        metrics=["test_loss", "test_accuracy", "loss_mean"], progress=False,
    )  # fmt: skip
    assert history["test_loss"][0] > 2.4
    assert history["test_loss"][-1] < 1.9
    assert history["loss_mean"][-1] < 1.9
    assert 0.3 < history["test_accuracy"][-1] < 1


def test_the_fingerprint_is_of_every_character(folder):
    first, again = made(folder).fingerprint(), made(folder).fingerprint()
    path = folder / "tinyshakespeare.txt"
    path.write_text(path.read_text().replace("abc", "abd", 1))
    assert first == again != made(folder).fingerprint()


def test_digests_of_windows_that_overlap():
    numbers = torch.arange(20)
    found = [digest([numbers[start:].unfold(0, 5, step)]) for start, step in ((0, 1), (0, 2), (1, 1), (2, 2))]
    assert len(set(found)) == 4
    assert found[0] == digest([torch.arange(20).unfold(0, 5, 1)])
    expanded = torch.arange(3.0).expand(4, 3)  # as before: by its values
    assert digest([expanded]) == digest([expanded.clone()])


def test_windows_longer_than_a_part_are_refused(folder):
    with pytest.raises(PerronError, match="less than the shortest part; got 5000"):
        language_model(3, folder=str(folder), context=5000, width=32)
