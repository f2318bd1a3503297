"""What the widget hands to notebooks: the widget, and a picture for viewers that have no kernel."""

import base64
import importlib.util
import sys
import types

import numpy as np
import pytest

from qkv import look

missing = [name for name in ("anywidget", "IPython", "matplotlib") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def displayed(monkeypatch):
    """The MIME bundles that are displayed, with their metadata."""
    from IPython import display

    found = []
    monkeypatch.setattr(display, "display", lambda data, metadata=None, raw=False: found.append((data, metadata, raw)))
    return found


def shown():
    return look.widget(look.View.from_weights(np.eye(3)[None, None], ["a", "b", "c"], name="three"))


def test_the_picture_is_an_output_of_its_own(displayed):
    """Viewers show the richest type of each output that they know, so that a widget would hide a picture beside it."""
    shown()._ipython_display_()
    (widget, _, raw), (picture, size, _) = displayed
    assert raw
    assert WIDGET in widget
    assert "image/png" not in widget
    assert set(picture) == {"image/png", "text/plain"}
    assert base64.b64decode(picture["image/png"]).startswith(b"\x89PNG\r\n")
    assert picture["text/plain"] == "attention maps of 'three'"
    assert 200 < size["image/png"]["width"] < 600


def test_colab_finds_the_manager_of_widgets_in_the_metadata(displayed, monkeypatch):
    enabled = []
    output = types.ModuleType("google.colab.output")
    output.enable_custom_widget_manager = lambda: enabled.append(True)
    output._widgets = types.SimpleNamespace(_installed_url="https://example.com/manager.js")
    for name, module in (("google", types.ModuleType("google")), ("google.colab", types.ModuleType("google.colab"))):
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name, module))
    monkeypatch.setitem(sys.modules, "google.colab.output", output)
    shown()._ipython_display_()
    (data, metadata, _), (picture, _, _) = displayed
    assert WIDGET in data
    assert metadata[WIDGET] == {"colab": {"custom_widget_manager": {"url": "https://example.com/manager.js"}}}
    assert "image/png" in picture
    assert enabled in ([True], [])  # once per process
