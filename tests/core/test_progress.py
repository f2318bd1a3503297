"""Progress bars are shown on terminals, or always on request."""

import pytest

from qkv.core.progress import ProgressBar


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("terminal", [False, True])
def test_a_progress_bar_is_shown_on_a_terminal_or_always_on_request(terminal, always, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    assert ProgressBar(always=always)._hidden == (not (terminal or always))
    assert ProgressBar()._hidden == (not terminal)
