"""Plugin of pytest for an environment without some packages: leave out files that import PyTorch, skip tests.

`QKV_WITHOUT` names the packages, with spaces between. A test that fails because one of them is missing is reported as
skipped, and any other failure as it is. `tests/versions.py` uses it.
"""

import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_PACKAGES = os.environ.get("QKV_WITHOUT", "").split()
_NAMES = "|".join(re.escape(package) for package in _PACKAGES)
_MISSING = re.compile(rf"No module named '({_NAMES})\b|\b({_NAMES}), which is not installed")
_IMPORTS_TORCH = re.compile(r"^(import|from) (torch|qkv\.estimators|qkv\.nn)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out a file that imports PyTorch when it is collected, if PyTorch is not there."""
    if "torch" not in _PACKAGES or collection_path.suffix != ".py":
        return None
    return True if _IMPORTS_TORCH.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Report a test as skipped if its error or its output says that one of the packages is missing."""
    report = yield
    found = _MISSING.search(f"{report.longrepr}\n{report.capstdout}\n{report.capstderr}") if report.failed else None
    if _PACKAGES and found:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"Skipped: {found[1] or found[2]} is not installed")
    return report
