"""The report in a real browser: no errors, no requests, and everything that can be pressed does what it says."""

from io import StringIO
from itertools import pairwise
from pathlib import Path

import browser as browsing
import numpy as np
import pandas as pd
import pytest
from reports import OTHERS, SPEEDUP, TRAINING, run_here

from perron import report
from perron.studies.conclusions import conclude
from perron.studies.runner import read_study

EVIL = "<script>document.title = 'hacked'</script><img src=x onerror=\"document.title='hacked'\">"
BROWSER = browsing.browser_here()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (apt-get install chromium)")
DRAWN = """() => [...document.querySelectorAll('[data-chart="curves"] .chart')[0].data]
    .filter((trace) => trace.meta === "main")
    .map((trace) => ({name: trace.name, y: [...trace.y], x: [...trace.x], on: trace.xaxis}))"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return read_study(run_here(SPEEDUP | {"title": EVIL}, tmp_path_factory.mktemp("small")))


@pytest.fixture(scope="module")
def address(outcome, tmp_path_factory):
    training = run_here(TRAINING, tmp_path_factory.mktemp("digits"))
    compared = run_here(OTHERS["comparison"], tmp_path_factory.mktemp("compared"))
    return report.write([outcome, training, compared], tmp_path_factory.mktemp("page") / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser():
    with browsing.started() as browser:
        yield browser


@pytest.fixture
def opened(browser, address):
    """Opens the page; in the end nothing may have gone wrong."""
    troubles, contexts = [], []

    def opening(width=1280, height=900, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, **options))
        page = browsing.opened(contexts[-1], address, troubles)
        page.wait_for_selector("html[data-ready=yes]", state="attached")
        return page

    yield opening
    for context in contexts:
        context.close()
    assert not troubles


def first(page):
    return page.locator('[data-chart="curves"]').first


def test_it_opens_from_disk_and_draws_every_chart(opened):
    page = opened()
    assert page.locator("[data-chart]").count() == page.locator("[data-chart] .main-svg").locator(
        "xpath=.."
    ).evaluate_all("(all) => new Set(all.map((one) => one.closest('[data-chart]'))).size")
    assert len(page.evaluate(DRAWN)) == 6
    assert page.title() != "hacked"
    assert EVIL in page.locator("#study-1 h2").first.inner_text()


def test_numbers_on_the_page_are_the_tables(opened, outcome):
    page = opened()
    expected = conclude(outcome).tables["Slopes"]
    cells = page.locator("#study-1-table-1 tbody tr").evaluate_all(
        "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    assert cells == expected.to_numpy().tolist()
    drawn = {(trace["on"], trace["name"]): trace for trace in page.evaluate(DRAWN)}
    ring = outcome.table[(outcome.table.topology == "ring") & (outcome.table.nodes == 8)]
    np.testing.assert_allclose(drawn["x", "n = 8"]["y"], ring.groupby("step").grad_norm_sq.mean(), rtol=5.1e-5)
    first(page).locator("summary").click()
    row = first(page).locator("tbody tr", has_text="ring: n = 8").locator("td").all_inner_texts()
    assert float(row[1]) == pytest.approx(ring[ring.step == 600].grad_norm_sq.mean(), rel=1e-3)


def test_checkbox_hides_and_shows_curves(opened):
    page = opened()
    box = first(page).get_by_label("n = 4", exact=True)
    box.uncheck()
    assert [trace["name"] for trace in page.evaluate(DRAWN)] == ["n = 2", "n = 8", "n = 2", "n = 8"]
    assert "4 curves" in first(page).locator(".summary").inner_text()
    box.check()
    assert len(page.evaluate(DRAWN)) == 6
    first(page).get_by_label("ring", exact=True).uncheck()
    assert first(page).locator(".main-svg .scatterlayer .trace").count() > 0
    assert len(page.evaluate(DRAWN)) == 3
    levels = page.locator('[data-chart="lines"]').first
    assert levels.locator(".subplot.xy, .subplot.x2y2").count() == 2
    levels.get_by_label("exponential", exact=True).uncheck()
    assert levels.locator(".subplot.x2y2").count() == 0


def test_keyboard_toggles_a_curve(opened):
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(
            "document.activeElement.type === 'checkbox' && document.activeElement.closest('label').textContent === 'n = 2'"
        ):
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Space")
    assert "n = 2" not in [trace["name"] for trace in page.evaluate(DRAWN)]
    page.keyboard.press("Space")
    assert len(page.evaluate(DRAWN)) == 6


def test_metric_axes_panels_and_bands(opened, outcome):
    page = opened()
    chart = "document.querySelector('[data-chart=\"curves\"] .chart')"
    first(page).get_by_label("Show", exact=True).select_option(label="consensus error, squared")
    ring = outcome.table[(outcome.table.topology == "ring") & (outcome.table.nodes == 8)]
    drawn = {(trace["on"], trace["name"]): trace for trace in page.evaluate(DRAWN)}
    assert drawn["x", "n = 8"]["y"][0] is None  # all nodes start from one point, and a logarithmic axis has no zero
    expected = ring.groupby("step").consensus_error_sq.mean().iloc[1:]
    np.testing.assert_allclose(drawn["x", "n = 8"]["y"][1:], expected, rtol=5.1e-5)
    first(page).get_by_label("Over", exact=True).select_option("bytes")
    drawn = {(trace["on"], trace["name"]): trace for trace in page.evaluate(DRAWN)}
    assert drawn["x", "n = 8"]["x"][-1] == ring.bytes_sent.max()
    assert (
        page.evaluate(f"{chart}.layout.xaxis.title.text || {chart}.layout.xaxis2.title.text")
        == "bytes sent over all links"
    )
    assert page.evaluate(f"{chart}._fullLayout.yaxis.type") == "log"
    first(page).get_by_label("log y axis", exact=True).uncheck()
    assert page.evaluate(f"{chart}._fullLayout.yaxis.type") == "linear"
    first(page).get_by_label("log x axis", exact=True).check()
    assert page.evaluate(f"{chart}._fullLayout.xaxis.type") == "log"
    first(page).get_by_label("Panels", exact=True).select_option("-1")
    assert {trace["on"] for trace in page.evaluate(DRAWN)} == {"x"}
    bands = f"{chart}.data.filter((trace) => trace.meta === 'band').length"
    assert page.evaluate(bands) == 6
    first(page).get_by_label("Band", exact=True).select_option("none")
    assert page.evaluate(bands) == 0
    first(page).get_by_label("Show", exact=True).select_option(label="squared gradient norm")
    floors = f"{chart}.data.filter((trace) => trace.meta === 'floor').length"
    assert page.evaluate(floors) == 6
    first(page).get_by_label("predicted floor (dotted)", exact=True).uncheck()
    assert page.evaluate(floors) == 0


def test_networks_can_be_chosen(opened):
    page = opened()
    drawing = page.locator('#study-1 [data-chart="network"]')
    drawing.get_by_label("Network", exact=True).select_option(label="ring, n = 4")
    assert "ring, n = 4" in drawing.locator(".summary").inner_text()
    marked = page.evaluate("""document.querySelector('#study-1 [data-chart="network"] .chart')
        .data.filter((trace) => trace.meta === 'pi_A')""")
    assert len(marked[0]["marker"]["size"]) == 4
    assert "counts most" in drawing.locator(".chart").get_attribute("aria-label")


def test_downloads_are_the_data(opened, outcome):
    page = opened(accept_downloads=True)

    def saved(button):
        with page.expect_download() as caught:
            button.click()
        return caught.value.suggested_filename, caught.value.path().read_text()

    study = page.locator("#study-1")
    name, text = saved(study.get_by_role("button", name="Curves as CSV"))
    assert name == "small-curves.csv"
    curves = pd.read_csv(StringIO(text))
    assert len(curves) == 6 * 61
    for (nodes, topology), part in curves.groupby(["nodes", "topology"]):
        own = outcome.table[
            (outcome.table.nodes == int(nodes.removeprefix("n = "))) & (outcome.table.topology == topology)
        ]
        np.testing.assert_allclose(part.grad_norm_sq_mean, own.groupby("step").grad_norm_sq.mean(), rtol=5.1e-5)
        np.testing.assert_allclose(part.bytes, own.groupby("step").bytes_sent.first())
    name, text = saved(study.get_by_role("button", name="Complete table as CSV"))
    assert name == "small.csv"
    back = pd.read_csv(StringIO(text), dtype=str)
    assert list(back.columns) == list(outcome.table.columns)
    for column in ("run", "nodes", "topology", "step", "trial"):
        assert back[column].tolist() == outcome.table[column].map(str).tolist(), column
    for column in ("grad_norm_sq", "consensus_error_sq", "predicted"):  # to the last bit
        assert [float(value) for value in back[column]] == outcome.table[column].tolist(), column
    _, text = saved(study.get_by_role("button", name="Slopes"))
    assert (
        pd.read_csv(StringIO(text), dtype=str).to_numpy().tolist()
        == conclude(outcome).tables["Slopes"].to_numpy().tolist()
    )
    _, text = saved(study.get_by_role("button", name="Study file"))
    assert 'conclusion = "speedup"' in text


@pytest.mark.parametrize("width", [360, 768])
def test_small_screens_scroll_one_way_only(opened, width):
    page = opened(width=width, height=740)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = page.evaluate("[...document.querySelectorAll('.main-svg')].map((one) => one.getBoundingClientRect().right)")
    assert max(wide) <= width
    small = page.evaluate("""[...document.querySelectorAll('button, select, input')].filter((one) => {
        const box = (one.closest('label') || one).getBoundingClientRect(); return box.width && box.height < 24 }).length""")
    assert small == 0  # to be hit with a finger


def test_dark_mode_and_its_button(opened):
    colours = (
        "[getComputedStyle(document.body).backgroundColor, document.querySelector('.chart')._fullLayout.font.color]"
    )
    light, dark = opened(color_scheme="light"), opened(color_scheme="dark")
    assert light.evaluate(colours) == ["rgb(255, 255, 255)", "#1b1f24"]
    assert dark.evaluate(colours) == ["rgb(20, 24, 29)", "#e8ecf0"]
    button = dark.get_by_role("button", name="Dark colors")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert dark.evaluate(colours) == light.evaluate(colours)
    assert button.get_attribute("aria-pressed") == "false"
    light.emulate_media(color_scheme="dark")
    light.wait_for_selector("html[data-theme=dark]", state="attached")
    assert light.evaluate(colours)[1] == "#e8ecf0"


def test_prints_light_and_complete(opened):
    page = opened(color_scheme="dark")
    page.evaluate("""() => { window.seen = null; addEventListener('beforeprint', () => { window.seen = {
        theme: document.documentElement.dataset.theme,
        wide: Math.max(...[...document.querySelectorAll('.main-svg')].map((one) => one.clientWidth)),
        closed: document.querySelectorAll('details:not(.extra):not([open])').length } }) }""")
    content = page.pdf(format="A4")
    assert content.startswith(b"%PDF")
    assert page.evaluate("seen") == {"theme": "light", "wide": 660, "closed": 0}
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_screen_readers_find_names_for_everything(opened):
    page = opened()
    unnamed = page.evaluate("""[...document.querySelectorAll('input, select, button')]
        .filter((one) => !(one.labels && one.labels.length && one.labels[0].textContent.trim()))
        .filter((one) => !one.textContent.trim() && !one.ariaLabel)
        .map((one) => one.outerHTML)""")
    assert unnamed == []
    charts = page.locator(".chart[role=img]")
    names = [chart.get_attribute("aria-label") for chart in charts.all()]
    assert len(names) >= 7
    assert all(len(name) > 30 for name in names)
    assert (
        page.evaluate(
            "[...document.querySelectorAll('svg')].filter((one) => !one.closest('[role=img], [aria-hidden=true]')).length"
        )
        == 0
    )
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((one) => Number(one.tagName[1]))")
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert (
        page.evaluate(
            "[...document.querySelectorAll('table')].filter((one) => !one.caption || !one.querySelector('th[scope=col]')).length"
        )
        == 0
    )
    assert page.evaluate("['header', 'main', 'nav', 'footer'].every((one) => document.querySelector(one))")
    assert page.evaluate("[...document.querySelectorAll('fieldset')].every((one) => one.querySelector('legend'))")
    assert page.evaluate("document.querySelectorAll('[role=status]').length") >= 3
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    assert page.evaluate("document.documentElement.lang") == "en"


def test_a_script_that_is_not_ours_does_not_run(browser, address, tmp_path):
    """The policy really holds: a page into which somebody wrote a script does not run it."""
    changed = tmp_path / "changed.html"
    text = Path(address.removeprefix("file://")).read_text()
    changed.write_text(text.replace("</main>", "<script>document.title = 'hacked'</script></main>", 1))
    page = browser.new_page()
    page.goto(changed.as_uri())
    page.wait_for_selector("html[data-ready=yes]", state="attached", timeout=600_000)
    assert page.title() != "hacked"
    page.close()
