"""Fixtures of the browser tests: Chromium, and pages in it."""

import pytest

from .chromium import CHROMIUM, settle


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running_playwright:
        made = running_playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def opened(browser):
    """A function that opens a page and records its requests; errors of the page fail the test."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, accept_downloads=True)
    troubles = []

    def open_page(address, **options):
        page = context.new_page()
        page.on("pageerror", lambda error: troubles.append(str(error)))
        # Refusals of the Content-Security-Policy are errors of the console.
        page.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
        page.asked = []
        page.on("response", lambda answer: page.asked.append(answer))
        page.goto(address, **options)
        page.wait_for_selector("[data-shown]")
        page.wait_for_selector("[data-painted]")
        page.wait_for_function("() => document.querySelector('canvas.map').dataset.drawn > 0")
        settle(page)
        return page

    yield open_page
    context.close()
    assert troubles == []
