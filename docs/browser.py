"""A headless Chromium for the pictures and the tests of the site."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
# Without these it asks for updates and lists of hosts of its own.
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start the machine's Chromium, and end it.

    Raises:
        FileNotFoundError: if there is none.
    """
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        raise FileNotFoundError("there is no Chromium here (Debian's package is chromium)")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", *QUIET]
        )
        try:
            yield browser
        finally:
            browser.close()
