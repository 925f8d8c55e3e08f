"""The browser of this machine, if it has one."""

import os
import shutil
from contextlib import contextmanager

VIOLATIONS = (
    "addEventListener('securitypolicyviolation', (e) => console.error(`CSP: ${e.violatedDirective} ${e.blockedURI}`))"
)


def browser_here() -> str | None:
    """Where Chromium is, or None."""
    names = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@contextmanager
def started():
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=browser_here(), args=arguments, timeout=600_000)
        yield browser
        browser.close()


def opened(context, address, troubles):
    """A page at an address; errors, warnings, violated policies and requests for anything else are added to troubles."""
    page = context.new_page()
    page.set_default_timeout(300_000)
    page.add_init_script(VIOLATIONS)

    def console(message):
        if message.type in ("error", "warning"):
            troubles.append(f"console: {message.text}")

    def request(sent):
        if sent.url != address and not sent.url.startswith(("data:", "blob:")):
            troubles.append(f"request: {sent.url}")

    page.on("console", console)
    page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
    page.on("request", request)
    page.goto(address)
    return page
