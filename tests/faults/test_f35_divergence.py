"""The learning rate of an elastic training is too large: divergence on one node ends all."""


def test_f35_divergence_ends_all(elastic, row, trials):
    many = trials(1, 5)
    for _ in range(many):
        one = elastic(steps=100_000, lr=40.0, pause=0.001).start("--nodes", 3, "--restarts", 2)
        codes, said = one.ended()
        assert codes == [3], said
        assert "is not finite" in said
        assert "Lower lr" in said
        assert "restarting" not in said
        assert one.results() == {}
        assert "Traceback" not in said
    row.measured(f"ended on all nodes {many} of {many} times, with the reason; code 3, no restart", trials=many)
