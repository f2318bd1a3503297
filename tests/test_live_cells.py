"""Cells of the site's Start pages run in the browser, in Pyodide."""

import re
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.look.chromium import CHROMIUM, needs_chromium

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "docs"))


def test_every_live_section_is_a_heading_of_its_page_and_its_cells_need_no_torch() -> None:
    from generate.live_cells import SECTIONS

    for name, sections in SECTIONS.items():
        text = (ROOT / "docs" / name).with_suffix(".md").read_text()
        heads = {part: part.splitlines()[0].lower() for part in text.split("\n## ")}
        parts = {re.sub(r"[^\w\- ]", "", head).replace(" ", "-"): part for part, head in heads.items()}
        for section in sections:
            assert ">>>" in parts[section], f"{name} has no cell in #{section}"
            assert "torch" not in parts[section]


def test_the_files_of_pyodide_have_checksums() -> None:
    from fetch_pyodide import checksums

    assert {"pyodide.mjs", "pyodide.asm.wasm", "python_stdlib.zip"} < set(checksums())
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in checksums().values())


PAGE = """<!doctype html><html lang="en"><title>Cells</title><body class="bd-article"><h1>Cells</h1>
<section id="cells">{}</section></body></html>"""
CELL = '<div class="highlight-python"><div class="highlight"><pre>{}</pre></div></div>'
FIRST = """&gt;&gt;&gt; import numpy as np, qkv
&gt;&gt;&gt; x = np.arange(12.0).reshape(4, 3)
&gt;&gt;&gt; qkv.attend(x, x, x).shape
(4, 3)
"""
SECOND = """&gt;&gt;&gt; people = qkv.Database.open("examples/people.csv", key="name", value="income")
&gt;&gt;&gt; people.ask("Jon Smiht").rows[0].record["name"]
"""


@pytest.mark.long
@needs_chromium
def test_a_cell_runs_in_the_browser_after_the_cells_before_it(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    from generate.live_cells import SECTIONS, publish_live_cells

    if not (ROOT / "build" / "pyodide" / "pyodide.mjs").exists():
        pytest.skip("make pyodide has not written build/pyodide")
    for name in SECTIONS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("<body></body>")
    assert publish_live_cells(ROOT, tmp_path)
    page_text = PAGE.format(CELL.format(FIRST) + CELL.format(SECOND))
    script = '<script type="module" src="../live/cells.js" data-sections="cells"></script></body>'
    (tmp_path / "start" / "cells.html").write_text(page_text.replace("</body>", script))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with playwright.sync_playwright() as started:
            browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/start/cells.html")
            page.get_by_role("button", name="Run cell 2").click()
            page.get_by_text("'John Smith'").wait_for(timeout=300_000)
            printed = [text.strip() for text in page.locator(".live-output").all_inner_texts()]
            assert printed == ["(4, 3)", "'John Smith'"]
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
