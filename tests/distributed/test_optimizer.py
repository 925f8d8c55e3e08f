"""The optimizer in plain PyTorch code, in real processes."""

import json

from processes import launched


def test_the_optimizer(tmp_path):
    n = 4
    outputs = launched("worker_training.py", n, tmp_path)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(n)]
    wrong = {f"{check}, rank {rank}": said for rank in range(n) for check, said in found[rank].items() if said}
    assert not wrong, "\n".join(f"{where}:\n{said}" for where, said in wrong.items())
    assert len(found[0]) >= 17, outputs


def test_checkpoints_resume_survive_damage_and_other_numbers_of_nodes(tmp_path):
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    for folder, n, part in ((whole, 3, "resuming"), (whole, 2, "another"), (whole, 3, "mix"), (damaged, 3, "damage")):
        folder.mkdir(exist_ok=True)
        for _, error, code in launched("worker_checkpoints.py", n, folder, part):
            assert code == 0, error
