"""Plugin of pytest for an environment without PyTorch: leave out the files of tests that import it, skip tests that do.

`python -m tests.versions newest --no-torch` uses it. Without it, a missing PyTorch fails the tests.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_IMPORTS = re.compile(r"^(import|from) (torch|qkv\.estimators|qkv\.nn)\b", re.MULTILINE)
_MISSING = re.compile(r"No module named 'torch|needs? torch, which is not installed")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out a file that imports PyTorch when it is collected."""
    if collection_path.suffix == ".py" and _IMPORTS.search(collection_path.read_text(encoding="utf-8")):
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Report a test as skipped if its error or its output says that PyTorch is missing."""
    report = yield
    if report.failed and _MISSING.search(f"{report.longrepr}\n{report.capstdout}\n{report.capstderr}"):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, "Skipped: torch is not installed")
    return report
