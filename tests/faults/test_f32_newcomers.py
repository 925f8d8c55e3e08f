"""A node pauses while all others are killed and restarted: it has the only model."""

import signal
import time

SECONDS = 5


def test_f32_newcomers_wait_for_the_only_model(elastic, row):
    one = elastic(steps=400, pause=0.02).start("--nodes", 3, "--restarts", 4)
    one.further(40, "0.1", "1.1", "2.1")
    paused = one.process("0.1")
    paused.send_signal(signal.SIGSTOP)
    step = one.steps("0.1")
    for name in ("1.1", "2.1"):
        one.process(name).kill()
    for name in ("1.2", "2.2"):
        one.process(name)  # it has been started
    time.sleep(SECONDS)
    paused.send_signal(signal.SIGCONT)
    codes, said = one.ended()
    assert codes == [0], said
    found = one.results()
    assert {result["step"] for result in found.values()} == {400}
    assert {found[node]["name"] for node in (1, 2)} == {"1.2", "2.2"}, said
    assert all(found[node]["began"] >= step for node in (1, 2)), (step, found)
    assert "training restarts" not in said
    row.measured(f"they waited, and continued with its model after step {step}", trials=1)
