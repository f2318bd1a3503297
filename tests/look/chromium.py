"""Chromium, and helpers that read the map of a page."""

import importlib.util
import shutil
from contextlib import contextmanager

import pytest

from tests.effort import LONG

__all__ = [
    "CHROMIUM",
    "DARKEST",
    "PAPER",
    "axe_violations",
    "close_pages",
    "needs_chromium",
    "open_settings",
    "part",
    "redrawn",
    "resize",
    "settle",
    "shared_window",
    "spot",
    "visit",
    "wait_until_drawn",
]

_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, _PROGRAMS)), None)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="there is no Chromium on this machine, or playwright is not installed",
)
DARKEST, PAPER = [3, 28, 82], [255, 255, 255]


@contextmanager
def shared_window(browser, **options):
    """Yield a window whose pages share a process, which an empty page keeps: a process takes as long as a test."""
    window = browser.new_context(**options)
    window.set_default_timeout(120_000)  # of a busy machine
    open_settings(window)
    kept = window.new_page()
    kept.route("**/*", lambda route: route.fulfill(content_type="text/html", body="<title>empty</title>"))
    kept.goto("http://127.0.0.1/")
    yield window
    window.close()


def open_settings(window):
    """Let the pages of a window open with their settings shown. Empty pages have no storage."""
    window.add_init_script("try { localStorage['qkv-look-settings'] = 'open'; } catch {}")


def close_pages(window):
    """Close all pages of a shared window but the empty one."""
    for page in window.pages[1:]:
        page.close()


def wait_until_drawn(page):
    """Wait until the page shows a head and has drawn the grid and the map."""
    page.wait_for_function(
        """() => ["[data-shown]", "[data-painted]", "canvas.map:not([data-drawn='0'])[data-drawn]"]
            .every((selector) => document.querySelector(selector))"""
    )
    settle(page)


def visit(page, link):
    """Enter another link into the address of an open page, which then shows nothing of its earlier state."""
    page.mouse.move(0, 0)
    page.emulate_media(media="null", color_scheme="null", reduced_motion="null")
    page.evaluate(
        """async (link) => {
            if (document.fullscreenElement) await document.exitFullscreen();
            localStorage["qkv-look-settings"] = "open";
            document.querySelectorAll("iframe.printed").forEach((frame) => frame.remove());
            delete document.querySelector(".qkv-look").dataset.shown;
            history.replaceState(null, "", "#of=another");
            await new Promise((done) => {
                addEventListener("hashchange", done, { once: true });
                location.hash = link;
            });
            scrollTo(0, 0);
        }""",
        link,
    )
    wait_until_drawn(page)


def axe_violations(page, dark):
    """Return what axe finds; of the dark page, which differs in its colours alone, only contrasts in short runs."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    rules = {"runOnly": {"type": "rule", "values": ["color-contrast"]}} if dark and not LONG else {}
    return axe.Axe().run(page, options={"resultTypes": ["violations"], **rules}).response["violations"]


def spot(page, row, column, rows=7, columns=7):
    """Return the colour at the centre of a cell of the map."""
    return page.evaluate(
        """([row, column, rows, columns]) => {
            const canvas = document.querySelector("canvas.map");
            const ratio = canvas.width / canvas.clientWidth;
            const width = canvas.clientWidth - 102, height = canvas.clientHeight - 84;
            const x = (92 + (column + 0.5) / columns * width) * ratio;
            const y = (8 + (row + 0.5) / rows * height) * ratio;
            return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data].slice(0, 3);
        }""",
        [row, column, rows, columns],
    )


def settle(page, drawn=-1):
    """Wait until the map has been drawn more than `drawn` times, and then not for three frames; return how often."""
    return page.evaluate(
        """async (least) => {
            const drawn = () => Number(document.querySelector("canvas.map").dataset.drawn ?? 0);
            let before = drawn();
            for (let still = 0, frames = 0; still < 3 || before <= least; frames++) {
                if (frames > 7200) throw new Error("the map is not drawn again");
                await new Promise(requestAnimationFrame);
                still = drawn() === before ? still + 1 : 0;
                before = drawn();
            }
            return before;
        }""",
        drawn,
    )


def redrawn(page, act):
    """Call a function, and wait until the map has been drawn again and is not drawn any more."""
    before = settle(page)  # what an earlier action started is drawn then
    act()
    settle(page, before)


def resize(page, width, height):
    """Give the window another size, and wait until the page has followed it."""
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_function(
        """([width, height]) => innerWidth === width && innerHeight === height
            && [...document.querySelectorAll(".qkv-look")].every(
                (e) => e.style.getPropertyValue("--width") === `${e.clientWidth}px`)
            && new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))""",
        arg=[width, height],
    )


def part(page):
    """Return the first row, first column, rows and columns of the visible part of the map."""
    return [int(each) for each in page.locator("canvas.map").first.get_attribute("data-part").split(",")]
