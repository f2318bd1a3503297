"""The widget in a notebook: executed by nbclient, then run and rendered by JupyterLab in Chromium."""

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import time
import urllib.request

import pytest

from .chromium import DARKEST, PAPER, needs_chromium, spot

PARTS = ("nbclient", "nbformat", "ipykernel", "jupyterlab", "anywidget", "ipywidgets")
missing = [name for name in PARTS if importlib.util.find_spec(name) is None]
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")]

CELL = """
import numpy as np
from qkv import look

words = ["a", "<b>", "c", "d", "e", "f", "g"]
maps = np.stack([np.eye(7), np.roll(np.eye(7), -1, axis=1)])
shown = look.widget(look.View.from_weights(maps[None], words, name="in a notebook"))
shown
"""


@pytest.fixture
def notebook(tmp_path):
    import nbformat

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = tmp_path / "look.ipynb"
    nbformat.write(book, path)
    return path


@pytest.fixture
def quiet(monkeypatch, tmp_path):
    """Restrict Jupyter to a folder of the test, and let its kernel import this package."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    values = {
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "PYTHONPATH": os.path.join(root, "src"),
        "JUPYTER_PLATFORM_DIRS": "1",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@pytest.mark.filterwarnings("ignore")
def test_a_notebook_with_the_widget_is_executed(notebook, quiet):
    import nbclient
    import nbformat

    book = nbformat.read(notebook, 4)
    nbclient.NotebookClient(book, timeout=120, store_widget_state=True).execute()
    shown, picture = [o for o in book.cells[0].outputs if o.output_type in ("execute_result", "display_data")]
    assert "application/vnd.jupyter.widget-view+json" in shown.data
    assert picture.data["image/png"].startswith("iVBOR")
    assert picture.data["text/plain"] == "attention maps of 'in a notebook'"
    (state,) = [one["state"] for one in widgets(book).values() if "meta" in one["state"]]
    assert state["meta"]["views"][0]["name"] == "in a notebook"
    assert "export default" in state["_esm"]
    assert picture.data["image/png"].strip().endswith(state["picture"])
    assert len(state["picture"]) == 64


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("state", [False, True])
def test_a_saved_notebook_keeps_its_picture_in_nbconvert(notebook, quiet, state):
    import nbclient
    import nbformat

    nbconvert = pytest.importorskip("nbconvert")
    book = nbformat.read(notebook, 4)
    nbclient.NotebookClient(book, timeout=120, store_widget_state=state).execute()
    page, _ = nbconvert.HTMLExporter().from_notebook_node(book)
    found = re.findall(r'<img [^>]*src="data:image/png;base64,([^"]+)"', page)
    assert len(found) == 1
    assert found[0].strip() == book.cells[0].outputs[-1].data["image/png"].strip()
    if not state:
        assert "widget-view+json" not in page


def widgets(book):
    return book.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]


@contextlib.contextmanager
def jupyterlab(folder, log):
    """Run JupyterLab in a folder, and yield its address."""
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.port=0",
        "--ServerApp.token=secret", f"--ServerApp.root_dir={folder}", "--ServerApp.ip=127.0.0.1",
        "--LabApp.news_url=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    with log.open("w+") as stream, subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT) as lab:
        try:
            yield address_in(log)
        finally:
            lab.terminate()
            try:
                lab.wait(30)
            except subprocess.TimeoutExpired:  # it hangs if a kernel is starting
                lab.kill()


@needs_chromium
@pytest.mark.filterwarnings("ignore")
def test_jupyterlab_shows_the_picture_of_a_saved_notebook(notebook, quiet, browser, tmp_path):
    import nbclient
    import nbformat

    book = nbformat.read(notebook, 4)
    nbclient.NotebookClient(book, timeout=120, store_widget_state=False).execute()
    nbformat.write(book, notebook)
    with jupyterlab(notebook.parent, tmp_path / "lab.log") as address:
        context = browser.new_context(viewport={"width": 1500, "height": 1100})
        page = context.new_page()
        page.goto(f"{address}/lab/tree/look.ipynb?token=secret&reset")
        picture = page.locator(".jp-Notebook .jp-OutputArea img")
        picture.wait_for(timeout=300_000)
        assert picture.evaluate("image => image.naturalWidth") > 600
        assert 400 < picture.bounding_box()["width"] < 1000
        page.wait_for_selector(".jp-NotebookPanel-toolbar [data-status='idle']", timeout=60_000)
        context.close()


@needs_chromium
def test_jupyterlab_shows_the_map_of_the_widget_and_asks_the_kernel_for_others(notebook, quiet, browser, tmp_path):
    with jupyterlab(notebook.parent, tmp_path / "lab.log") as address:
        context = browser.new_context(viewport={"width": 1500, "height": 1100})
        page = context.new_page()
        page.goto(f"{address}/lab/tree/look.ipynb?token=secret&reset")
        page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=300_000)
        page.wait_for_timeout(2000)
        page.locator(".jp-CodeCell .cm-content").first.click()
        page.keyboard.press("Shift+Enter")
        page.wait_for_selector(".qkv-look[data-shown='0,0,0']", timeout=120_000)
        page.wait_for_function("() => document.querySelector('canvas.map')?.dataset.drawn > 0")
        # The widget hides the static picture.
        page.locator(".jp-Notebook .jp-OutputArea img").wait_for(state="hidden")
        for row in range(7):
            for column in range(7):
                assert spot(page, row, column) == (DARKEST if row == column else PAPER)
        page.get_by_role("gridcell", name="layer 0, head 1").click()
        page.wait_for_selector(".qkv-look[data-shown='0,0,1']")
        page.wait_for_timeout(300)
        assert spot(page, 0, 6) == DARKEST
        assert spot(page, 3, 2) == DARKEST
        picture = page.screenshot(path=os.environ.get("QKV_SCREENSHOT") or tmp_path / "lab.png")
        assert picture.startswith(b"\x89PNG")
        context.close()


def address_in(log):
    """Return the address that JupyterLab prints, once it responds."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        if found:
            try:
                urllib.request.urlopen(f"{found[0]}/api?token=secret", timeout=10).close()
                return found[0]
            except OSError:
                pass
        time.sleep(0.5)
    raise AssertionError(log.read_text())


MARIMO = """
import marimo

app = marimo.App()


@app.cell
def _():
    {cell}
    return
"""


@needs_chromium
@pytest.mark.skipif(importlib.util.find_spec("marimo") is None, reason="not installed: marimo")
def test_marimo_shows_the_map_of_the_widget_and_asks_the_kernel_for_others(quiet, browser, tmp_path):
    book = tmp_path / "look.py"
    book.write_text(MARIMO.format(cell=CELL.strip().replace("\n", "\n    ")))
    command = [sys.executable, "-m", "marimo", "run", str(book), "--headless", "--no-token", "--host", "127.0.0.1"]
    with (tmp_path / "log").open("w+") as stream, subprocess.Popen(command, stdout=stream, stderr=stream) as server:
        try:
            end = time.monotonic() + 300
            address = None
            while address is None and time.monotonic() < end:
                time.sleep(0.5)
                address = re.search(r"http://(?:localhost|127\.0\.0\.1):\d+", (tmp_path / "log").read_text())
            context = browser.new_context(viewport={"width": 1500, "height": 1100})
            page = context.new_page()
            page.goto(address[0])
            page.wait_for_selector(".qkv-look[data-shown='0,0,0']", timeout=120_000)
            page.get_by_role("gridcell", name="layer 0, head 1").click()
            page.wait_for_selector(".qkv-look[data-shown='0,0,1']")
            context.close()
        finally:
            server.terminate()
