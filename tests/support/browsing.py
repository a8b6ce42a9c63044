"""A real Chromium for tests and pictures: Debian's own, without a sandbox because tests may run as root."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
# Machines that run tests are busy.
MOST_MS = 30_000


@contextmanager
def chromium(*flags: str) -> Iterator["Browser"]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=MOST_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(browser: "Browser", *, complaints: list[str] | None = None, **options: Any) -> Iterator["Page"]:
    """A page in a context of its own. What the browser complains about is collected."""
    context = browser.new_context(
        **{"timezone_id": "UTC", "locale": "en-GB", "viewport": {"width": 1440, "height": 900}} | options
    )
    page = context.new_page()
    page.set_default_timeout(MOST_MS)
    if complaints is not None:
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    try:
        yield page
    finally:
        context.close()
