"""Takes the pictures of the report in docs/images, in a headless Chromium.

    python docs/screenshots.py results/demo [results/digits]

Give it the directories of a speedup study and, for the dark picture, of one with a heat map. It needs playwright, pillow and a
Chromium that is installed.
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from perron import report

IMAGES = Path(__file__).parent / "images"
SHOTS = {  # name: (study, width, height, colours, to which element to scroll)
    "report-desktop": (0, 1280, 1500, "light", None),
    "report-phone": (0, 390, 1500, "light", "#study-1-curves"),
    "report-dark": (-1, 1280, 1500, "dark", "#study-1-partition"),
}


def main(folders: list[str]) -> None:
    """Write the pictures, with at most 128 colours so that they stay small."""
    browser_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, (study, width, height, colours, anchor) in SHOTS.items():
            path = report.write([folders[study]], Path(place) / f"{name}.html")
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-ready=yes]", state="attached", timeout=120_000)
            if anchor:
                page.locator(anchor).evaluate("(one) => one.scrollIntoView({ behavior: 'instant' })")
            page.wait_for_timeout(500)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(128)
            picture.save(IMAGES / f"{name}.png", optimize=True)
            print(f"{IMAGES / name}.png: {(IMAGES / f'{name}.png').stat().st_size / 1e3:.0f} kB")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:] or ["results/demo", "results/digits"])
