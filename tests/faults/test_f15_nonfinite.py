"""A gradient that is not finite stays where it is."""

from trainings import NODES, unfaulted

from perron._storage import tensorfile

STEPS = 40


def test_f15_a_gradient_that_is_not_finite(training, row, trials):
    kinds = ["nan", "inf", "-inf", "nan", "inf"][: trials(1, 5)]
    for trial, kind in enumerate(kinds):
        node, step = trial % NODES, 13 + trial
        one = training(steps=STEPS, odd={str(node): {"bad": [step, kind]}})
        code, said = one.start(wait=False).ended()
        assert code == 3, said
        what = "NaN" if kind == "nan" else "infinity"
        assert f"Node {node}: the gradient of step {step} is not finite in 0.bias ({what})." in said
        assert one.step(node) == step
        lost = one.lost()
        assert lost, "no other node noticed"
        assert {other for other, *_ in lost} <= set(range(NODES)) - {node}
        assert all(finite for _, _, finite, _ in lost)
        assert one.saved()[-1] == 10
        one.options.pop("odd")
        code, said = one.start(wait=False).ended()
        assert code == 0, said
        assert one.result() == unfaulted(steps=STEPS)
    row.measured(
        f"{len(kinds)} stopped at once with node, step, parameter; resumed from step 10 bit for bit",
        trials=len(kinds),
    )


def test_f15_skipping_is_counted(training, row):
    one = training(steps=STEPS, nonfinite="skip", odd={"1": {"bad": [13, "nan"]}})
    code, said = one.start(wait=False).ended()
    assert code == 0, said
    skipped = [int((one.folder / f"{node}.skipped").read_text()) for node in range(NODES)]
    assert skipped == [int(node == 1) for node in range(NODES)]
    files = sorted(one.folder.glob("checkpoints/*/step-*40/node-*.safetensors"))
    assert [tensorfile.read(path)[1]["step"] for path in files] == [STEPS] * NODES
    row.measured("skip: 1 gradient counted on node 1, trained to the end", trials=1)
