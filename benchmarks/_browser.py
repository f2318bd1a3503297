"""Time pages in Chromium: from the start of navigation, and from an action to the next frame."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._claim import MissingError
from benchmarks._peers import peer

__all__ = ["bertviz_page", "chromium", "circuitsvis_html", "timed"]

TIMED = """() => new Promise(resolve => {
    const go = () => { ACT }, ready = () => DONE;
    const start = performance.now();
    go();
    const look = () => {
        if (!ready()) return requestAnimationFrame(look);
        // The next frame shows what was drawn in this one.
        requestAnimationFrame(() => resolve(performance.now() - start));
    };
    look();
})"""
"""A function, because the content security policy of the page forbids evaluating strings."""


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Yield a Chromium browser.

    Raises:
        MissingError: no browser was found, or playwright is not installed.
    """
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        raise MissingError("there is no Chromium on this machine. Install it: apt-get install chromium")
    with peer("playwright.sync_api").sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def timed(page: Any, act: str, done: str) -> float:
    """Return milliseconds from an action, in JavaScript, to the frame that shows its effect."""
    return float(page.evaluate(TIMED.replace("ACT", act).replace("DONE", done)))


@contextlib.contextmanager
def bertviz_page(browser: Any, weights: Any, tokens: list[str]) -> Iterator[tuple[Any, int]]:
    """Write the head view of BertViz into a page, and return the page with its size in bytes.

    The page requests three libraries from a content delivery network; they are served from installed packages instead.

    Args:
        browser: see `chromium`.
        weights: `(layers, heads, queries, keys)`, a tensor.
        tokens: the words.
    """
    view = peer("bertviz").head_view
    at = {name: Path(peer(package).__file__).parent / path for name, (package, path) in _SCRIPTS.items()}
    html = view([layer[None] for layer in weights], tokens, html_action="return").data
    with tempfile.TemporaryDirectory(prefix="qkv-bench") as folder:
        target = Path(folder) / "bertviz.html"
        target.write_text(f"<!doctype html><meta charset=utf-8><body>{html}</body>", encoding="utf-8")
        context = browser.new_context(viewport={"width": 1400, "height": 1000})
        for name, path in at.items():
            context.route(f"**/{name}*", lambda route, _, path=path: route.fulfill(path=path))
        page = context.new_page()
        page.address = target.as_uri()
        yield page, target.stat().st_size
        context.close()


def circuitsvis_html(weights: Any, tokens: list[str]) -> str:
    """Return the page of the heads of one layer that CircuitsVis writes without a network, with its script inside.

    Args:
        weights: `(heads, queries, keys)`, a tensor.
        tokens: the words.
    """
    heads = peer("circuitsvis.attention").attention_heads
    html = heads(attention=weights, tokens=tokens).local_src
    return f"<!doctype html><meta charset=utf-8><body>{html}</body>"


_SCRIPTS = {
    "require": ("nbclassic", "static/components/requirejs/require.js"),
    "jquery": ("nbclassic", "static/components/jquery/jquery.min.js"),
    "d3": ("mpld3", "js/d3.v5.min.js"),
}
