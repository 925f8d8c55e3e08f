"""The built documentation (scripts/docs runs this after the build): it needs no network, and works from the disk.

.venv/bin/python -m pytest tests/built_site.py
"""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser import browser_here
from playwright.sync_api import Page, sync_playwright

SITE = Path(__file__).parents[2] / "build" / "docs" / "html"
PAGES = sorted(path for path in SITE.rglob("*.html") if "_static" not in path.parts)
# What a browser fetches by itself, unlike a link that a reader may follow.
LOADS = re.compile(
    r"""<(?:script|img|iframe|source|link|video|audio|embed|object)\b[^>]*?\b(?:src|href|data)=["']([^"']+)"""
)
CHROMIUM = browser_here()


def test_no_page_loads_anything_from_the_network():
    assert len(PAGES) > 50
    for page in PAGES:
        for target in LOADS.findall(page.read_text()):
            assert not re.match(r"(https?:)?//", target), f"{page.relative_to(SITE)} loads {target}"
            if not target.startswith("data:"):
                file = unquote(target.split("#")[0].split("?")[0])
                assert (page.parent / file).exists(), f"{page.relative_to(SITE)} lacks {target}"
    for style in SITE.rglob("*.css"):
        assert not re.search(r"""(@import|url\()\s*["']?(https?:)?//""", style.read_text()), style.name


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        pytest.skip("Chromium is not installed")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(params=[(1280, 900), (390, 844)], ids=["desktop", "phone"])
def page(browser, request) -> Iterator[Page]:
    """A page that fails on errors in its console, and on every request but for files."""
    context = browser.new_context(viewport={"width": request.param[0], "height": request.param[1]})
    opened, wrong = context.new_page(), []
    opened.set_default_timeout(300_000)
    opened.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", lambda asked: wrong.append(asked.url) if asked.url.startswith("http") else None)
    yield opened
    context.close()
    assert not wrong


@pytest.mark.parametrize("name", ["index", "algorithms/push_pull", "reference/graphs", "studies/digits", "figures"])
def test_page_fits_the_screen(page, name):
    page.goto((SITE / f"{name}.html").as_uri())
    page.wait_for_load_state()
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{name} is {wide} pixels too wide"


def test_formulas_are_typeset(page):
    page.goto((SITE / "algorithms" / "push_pull.html").as_uri())
    page.wait_for_selector("mjx-container svg")
    assert page.locator("mjx-container").count() >= 1
    assert page.locator("mjx-merror").count() == 0


def test_search_finds(page):
    page.goto((SITE / "search.html").as_uri() + "?q=kappa")
    page.wait_for_selector("ul.search li a", timeout=300_000)
    assert page.locator("ul.search li a").count() >= 3
