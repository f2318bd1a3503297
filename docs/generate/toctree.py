"""Lists of the pages below a page, from which Sphinx builds the navigation."""

from __future__ import annotations

from collections.abc import Iterable


def hidden_toctree(entries: Iterable[str]) -> list[str]:
    """Return the lines of a list of pages that appears in the navigation and not in the text of its page."""
    return ["```{toctree}", ":hidden:", "", *entries, "```", ""]
