"""The browser of this machine, if it has one."""

import shutil


def browser_here() -> str | None:
    """Where Chromium is, or None."""
    names = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)
