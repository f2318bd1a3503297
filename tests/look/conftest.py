"""Fixtures of the browser tests: Chromium, and pages in it."""

import pytest

from .chromium import CHROMIUM, close_pages, settle, shared_window


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running_playwright:
        made = running_playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="session")
def window(browser):
    """The window that tests share."""
    with shared_window(
        browser, viewport={"width": 1400, "height": 1000}, accept_downloads=True, reduced_motion="reduce"
    ) as context:
        yield context


@pytest.fixture
def opened(window):
    """A function that opens a page and records its requests; errors of the page fail the test."""
    troubles = []

    def open_page(address, **options):
        page = window.new_page()
        page.on("pageerror", lambda error: troubles.append(str(error)))
        # Refusals of the Content-Security-Policy are errors of the console; the server of a test ends before its page.
        ended = "ERR_CONNECTION_REFUSED"
        page.on("console", lambda one: one.type == "error" and ended not in one.text and troubles.append(one.text))
        page.asked = []
        page.on("response", lambda answer: page.asked.append(answer))
        page.goto(address, **options)
        page.wait_for_selector("[data-shown]")
        page.wait_for_selector("[data-painted]")
        page.wait_for_function("() => document.querySelector('canvas.map').dataset.drawn > 0")
        settle(page)
        return page

    yield open_page
    close_pages(window)
    assert troubles == []
