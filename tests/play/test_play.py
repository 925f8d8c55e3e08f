"""The interactive page in a real browser: its numbers are the library's, and a digraph can be drawn by hand."""

import browser as browsing
import numpy as np
import pytest
import torch

import perron
from perron import play
from perron.cli import main as cli
from perron.networks import topologies

pytestmark = pytest.mark.skipif(
    browsing.browser_here() is None, reason="no Chromium on this machine (apt-get install chromium)"
)
METHODS = {"push_pull": 0.05, "push_diging": 0.05, "frost": 0.05, "dsgd": 0.05}
PRESETS = 7


@pytest.fixture(scope="module")
def browser():
    with browsing.started() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    return play.write(tmp_path_factory.mktemp("play") / "play.html").as_uri()


@pytest.fixture
def opened(browser, address):
    """Opens the page; in the end nothing may have gone wrong."""
    troubles, contexts = [], []

    def opening(width=1280, height=1000, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, **options))
        return browsing.opened(contexts[-1], address, troubles)

    yield opening
    for context in contexts:
        context.close()
    assert not troubles


def drawn(nodes, seed):
    """A strongly connected digraph with weights, as the page describes it, and its mixing."""
    rng = np.random.default_rng(seed)
    graph = topologies.random_digraph(nodes, seed=seed) if seed else topologies.ring(nodes)
    own = rng.uniform(0.2, 3, nodes)
    W = np.diag(own)
    links = []
    for source, target in graph.edges.tolist():
        if source != target:
            W[target, source] = weight = float(rng.uniform(0.1, 5))
            links.append({"from": source, "to": target, "weight": weight})
    mixing = perron.Mixing(pull=W / W.sum(1, keepdims=True), push=W / W.sum(0))
    return links, own.tolist(), mixing


@pytest.mark.parametrize(("nodes", "seed"), [(2, 0), (5, 0), (6, 1), (9, 2), (12, 3)])
def test_numbers_are_those_of_the_library(opened, nodes, seed):
    links, own, mixing = drawn(nodes, seed)
    found = opened().evaluate(
        """([n, links, own]) => {
            const {A, B} = mathematics.matrices(n, links, own), {pull, push} = mathematics.perron(A, B);
            const second = [mathematics.second(A), mathematics.second(B)];
            return {A, B, pull, push, c: mathematics.alignment(pull, push), second};
        }""",
        [nodes, links, own],
    )
    network = perron.Network(mixing)
    expected = {
        "A": mixing.pull, "B": mixing.push, "pull": network.pull_perron, "push": network.push_perron, "c": network.alignment,
        "second": [np.abs(network.pull_spectrum).max(), np.abs(network.push_spectrum).max()],
    }  # fmt: skip
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("nodes", "seed"), [(4, 0), (7, 1)])
def test_methods_are_those_of_the_library(opened, name, nodes, seed):
    """40 steps of each. D-SGD of the library asks for doubly stochastic weights; with others it is a recursion of one line."""
    links, own, mixing = drawn(nodes, seed)
    target = np.random.default_rng(seed).uniform(-5, 5, nodes)
    found = opened().evaluate(
        """([name, n, links, own, target, lr]) => {
            const network = mathematics.matrices(n, links, own), method = mathematics.methods[name];
            let state = method.start([...target]);
            const path = [state.x];
            for (let k = 0; k < 40; k++) { state = method.step(state, network, target, lr); path.push(state.x); }
            return path;
        }""",
        [name, nodes, links, own, target.tolist(), 0.05],
    )
    lr = 0.05 / nodes if name == "frost" else 0.05
    if name == "dsgd":
        expected = [target]
        for _ in range(40):
            expected.append(mixing.pull @ expected[-1] - lr * (expected[-1] - target))
    else:
        problem = perron.problems.Quadratic(torch.ones(nodes, 1, dtype=torch.float64), target[:, None])
        run = perron.Simulation(problem=problem, algorithm=name, mixing=mixing, lr=lr, start=target[:, None])
        expected = [snapshot.state.x[0, :, 0] for snapshot in run.iterates(40)]
    np.testing.assert_allclose(found, np.stack(expected), atol=1e-11)


def steps(page, count):
    for _ in range(count):
        page.evaluate("document.getElementById('step').click()")


def errors(page):
    """The largest distance of a node to the optimum, of each method."""
    texts = page.locator(".error").all_inner_texts()
    return [float(text.rpartition(" ")[2]) for text in texts]


def test_a_row_stochastic_matrix_leads_to_the_wrong_point(opened):
    page = opened()
    page.locator("#lr").evaluate("(slider) => { slider.value = -1.5; slider.dispatchEvent(new Event('input')); }")
    steps(page, 1500)
    exact, dsgd = errors(page)[:3], errors(page)[3]
    assert max(exact) < 1e-3
    assert dsgd > 0.3
    assert page.locator("#count").inner_text() == "1500"


def test_every_preset_runs(opened):
    page = opened()
    names = page.locator("#preset option").all_inner_texts()
    assert len(names) == PRESETS
    for name in names[:-1]:
        page.select_option("#preset", name)
        assert page.locator("#warning").is_hidden()
        before = errors(page) if page.locator(".error").first.inner_text() else [9.0] * 4
        steps(page, 300)
        assert all(after < start for after, start in zip(errors(page), before, strict=True)), name
    page.select_option("#preset", names[-1])
    assert "no nodes" in page.locator("#warning").inner_text()


def middle(page, selector):
    box = page.locator(selector).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def dragged(page, start, end):
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=5)
    page.mouse.up()


def test_drawing_by_hand(opened):
    page = opened()
    page.select_option("#preset", "nothing: draw your own")
    box = page.locator("#graph").bounding_box()
    for place in ((0.2, 0.2), (0.8, 0.3), (0.5, 0.8)):
        page.mouse.click(box["x"] + place[0] * box["width"], box["y"] + place[1] * box["height"])
    assert page.locator("[data-node]").count() == 3
    assert "Not every node" in page.locator("#warning").inner_text()
    for source, target in ((0, 1), (1, 2), (2, 0)):
        dragged(page, middle(page, f'[data-node="{source}"]'), middle(page, f'[data-node="{target}"]'))
    assert page.locator("[data-link]").count() == 3
    assert page.locator("#warning").is_hidden()
    assert page.locator("#alignment").inner_text() == "1.000"
    # The last link is chosen: with three times its weight, node 0 takes 3/4 of what node 2 sends.
    page.locator("#selected input").evaluate(
        "(slider) => { slider.value = 3; slider.dispatchEvent(new Event('input')); }"
    )
    assert page.locator("#graph .weight", has_text="0.75").count() == 1
    heard = page.locator("#vectors tr").evaluate_all("(rows) => rows.map((row) => Number(row.cells[2].textContent))")
    pull = np.array([[0.25, 0, 0.75], [0.5, 0.5, 0], [0, 0.5, 0.5]])
    np.testing.assert_allclose(heard, perron.networks.spectral.perron(pull), atol=5.1e-4)
    # Moved nodes keep their links; a removed one takes its links along.
    page.get_by_label("move nodes").check()
    before = middle(page, '[data-node="1"]')
    dragged(page, before, (before[0] - 60, before[1] + 40))
    assert middle(page, '[data-node="1"]') == pytest.approx((before[0] - 60, before[1] + 40), abs=2)
    assert page.locator("[data-link]").count() == 3
    page.mouse.click(*middle(page, '[data-node="1"]'))
    page.locator("#remove").click()
    assert (page.locator("[data-node]").count(), page.locator("[data-link]").count()) == (2, 1)


def test_a_running_page_can_be_paused(opened):
    page = opened()
    page.locator("#run").click()
    while int(page.locator("#count").inner_text()) < 3:
        page.wait_for_timeout(50)
    page.locator("#run").click()
    assert page.locator("#run").inner_text() == "Run"
    count = page.locator("#count").inner_text()
    page.wait_for_timeout(200)
    assert page.locator("#count").inner_text() == count
    page.locator("#reset").click()
    assert page.locator("#count").inner_text() == "0"


def test_the_command_writes_the_page(tmp_path, capsys):
    assert cli._run(["play", "--out", str(tmp_path / "page.html")], debug=False) == 0
    assert (tmp_path / "page.html").read_text() == play.page()
    assert str(tmp_path / "page.html") in capsys.readouterr().out.replace("\n", "")


def test_it_fits_a_phone(opened):
    page = opened(390, 844, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator("#graph").bounding_box()
    page.touchscreen.tap(box["x"] + 0.06 * box["width"], box["y"] + 0.1 * box["height"])
    assert page.locator("[data-node]").count() == 7
