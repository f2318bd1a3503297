"""Fixtures of the browser tests: Chromium, and pages in it."""

import socket
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from .chromium import CHROMIUM, close_pages, shared_window, visit, wait_until_drawn

SIZE = {"width": 1400, "height": 1000}


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
    with shared_window(browser, viewport=SIZE, accept_downloads=True, reduced_motion="reduce") as context:
        yield context


@pytest.fixture(scope="module")
def idle_pages(window):
    """Pages that earlier tests of a module have opened, by address, with a list of their errors."""
    pages = {}
    yield pages
    close_pages(window)


@pytest.fixture
def opened(window, idle_pages):
    """A function that opens a page; errors of the page fail the test.

    A page that an earlier test has opened follows the link, unless it is a file or `asked`, a list of all responses,
    is given: the server of the module stays, and opening a page takes a second.
    """
    used = []

    def open_page(address, asked=None, **options):
        base, _, link = address.partition("#")
        page, troubles = idle_pages.pop(base, (None, [])) if asked is None else (None, [])
        reused = page is not None and not page.is_closed()
        if not reused:
            page = window.new_page()
            page.on("pageerror", lambda error: troubles.append(str(error)))
            # Refusals by the policy are errors of the console; the server of a test ends before its page.
            ended = "ERR_CONNECTION_REFUSED"
            page.on("console", lambda one: one.type == "error" and ended not in one.text and troubles.append(one.text))
            if asked is not None:
                page.on("response", lambda answer: asked.append(answer))
            page.goto(address, **options)
            wait_until_drawn(page)
        else:
            page.set_viewport_size(SIZE)
            visit(page, link)
        used.append((base, page, troubles))
        return page

    yield open_page
    found = []
    for base, page, troubles in used:
        found += troubles
        troubles.clear()
        if base not in idle_pages and not page.is_closed() and is_served(base):
            idle_pages[base] = page, troubles
        else:
            page.close()
    assert found == []


def is_served(base):
    """Whether a server still answers at an address."""
    address = urlsplit(base)
    with closing(socket.socket()) as client:
        return bool(address.port) and client.connect_ex((address.hostname, address.port)) == 0
