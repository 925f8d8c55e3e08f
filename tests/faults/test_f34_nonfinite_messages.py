"""Numbers that are not finite between nodes: the sender is named; a state that is not finite is neither saved nor loaded."""

import random
import re

import torch
from trainings import NODES, unfaulted

from perron._storage import tensorfile

STEPS = 40
KINDS = ["nan", "inf", "-inf"]


def resumed(one):
    """Whether the training, started again without its fault, ends as if there had been none."""
    one.options.pop("odd", None)
    code, said = one.start(wait=False).ended()
    assert code == 0, said
    return one.result() == unfaulted(steps=STEPS), said


def test_f34_a_message_before_a_save(training, row, trials):
    many, dice = trials(2, 10), random.Random(3)
    for trial in range(many):
        node, step, kind = dice.randrange(NODES), 19 - trial % 2, KINDS[trial % 3]
        one = training(steps=STEPS, odd={str(node): {"corrupt": [step, kind]}})
        code, said = one.start(wait=False).ended()
        assert code == 3, said
        named = re.search(
            rf"Node (\d) received numbers that are not finite from node {node} in step {step} "
            rf"\(edge node {node} -> node (\d), p\w+ of \d+ numbers\)",
            said,
        )
        assert named, said
        assert named[1] == named[2] != str(node)
        assert one.saved()[-1] == 10
        assert resumed(one)[0]
    row.measured(f"{many} of {many} named with sender, edge and step; resumed from step 10 bit for bit", trials=many)


def test_f34_a_state_is_not_saved(training, row, trials):
    names = ["y", "x"][: trials(1, 2)]
    for node, name in enumerate(names):
        one = training(steps=STEPS, odd={str(node): {"spoil": [20, name, "nan"]}})
        code, said = one.start(wait=False).ended()
        assert code == 3, said
        assert f"Node {node} has diverged: after step 20, it is not finite in state.{name} (NaN)." in said
        assert one.saved() == [10]
        assert resumed(one)[0]
    row.measured(
        f"{len(names)} states not saved, tensor and step named; resumed from step 10 bit for bit", trials=len(names)
    )


def test_f34_a_checkpoint_is_not_loaded(training, row):
    """One that an earlier version saved."""
    one = training(steps=20)
    code, said = one.start(wait=False).ended()
    assert code == 0, said
    (path,) = one.folder.glob("checkpoints/*/step-*20/node-1.safetensors")
    tensors, facts = tensorfile.read(path)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    tensors["state.x"][4] = torch.inf
    tensorfile.write(path, tensors, facts)
    content = path.read_bytes()
    one.options["steps"] = STEPS
    same, said = resumed(one)
    assert same
    assert f"{path} was saved after the training had diverged: it is not finite in state.x (infinity)." in said
    assert path.read_bytes() == content
    row.measured("a checkpoint with infinity passed over by name, and kept; resumed from step 10 bit for bit", trials=1)


def test_f34_an_elastic_training_ends_for_all(training, row, trials):
    """The receiver of a message, or the node whose state is not finite, is not just lost: the others would go on with it."""
    faults = [{"corrupt": [19, "nan"]}, {"spoil": [20, "y", "inf"]}][: trials(1, 2)]
    for fault in faults:
        one = training("--elastic", "--restarts", "2", steps=STEPS, odd={"1": fault})
        code, said = one.start(wait=False).ended()
        assert code == 3, said
        assert re.search(r"not finite (from node 1 in step 19|in state\.y)", said), said
        assert "restarting" not in said
        assert one.saved()[-1] == 10
        assert max(one.step(node) for node in range(NODES)) < STEPS
        one.options.pop("odd")
        code, said = one.start(wait=False).ended()
        assert code == 0, said
    row.measured(f"elastic: ended on all nodes with the reason, {len(faults)} of {len(faults)}", trials=len(faults))
