"""Opens an address in a real browser, headless; tests that need it are skipped without one.

Playwright drives the Chromium that the system has; it downloads none.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def installed() -> str | None:
    """The path of a browser, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def opened(address: str, width: int, *, scheme: str = "light", height: int = 900) -> Iterator[tuple[Any, list[str]]]:
    """The address in a window of that width: the page as Playwright sees it, and every complaint on its console or
    request beyond the first.
    """
    sync_api = pytest.importorskip("playwright.sync_api")
    path = installed()
    if path is None:
        pytest.skip("no Chromium is installed")
    complaints: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
            page.on("request", lambda request: complaints.append(f"fetched {request.url}"))
            page.goto(address)
            complaints[:] = [each for each in complaints if each not in (f"fetched {address}", "fetched data:,")]
            yield page, complaints
        finally:
            browser.close()
