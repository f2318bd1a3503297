"""ARCHITECTURE.md names every package, and no file that does not exist; the site lists every module."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "qkv"
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def test_the_site_lists_every_module_with_the_first_line_of_its_docstring(monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "docs")])
    from generate.modules import modules

    page = modules(SOURCE)
    assert "- `additive.py`: Additive score: a neural network with one hidden layer that computes a logit" in page
    names = [path for path in SOURCE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py")]
    assert page.count("\n- `") == len(names)
    assert not re.search(r"^- `\w+\.py`: $", page, re.MULTILINE)


def test_the_overview_names_every_package_and_no_file_that_does_not_exist() -> None:
    overview = PAGE.split("```text", 1)[1].split("```", 1)[0]
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    folders = set(re.findall(r"^ {2}([a-z_]+)/", overview, re.MULTILINE))
    assert folders == packages
    files = {path.name for path in SOURCE.rglob("*.py")}
    assert set(re.findall(r"\b\w+\.py\b", overview)) <= files


def test_the_page_is_two_pages_long() -> None:
    assert len(PAGE.splitlines()) <= 220


def test_every_file_that_the_text_names_exists() -> None:
    paths = re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|js))`", PAGE)
    assert paths
    gone = [path for path in paths if not any((ROOT / home / path).exists() for home in ("", "src", "src/qkv"))]
    assert not gone, gone
