"""ARCHITECTURE.md names every module, with the first line of its docstring, and no module that does not exist."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "qkv"
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def test_the_list_of_modules_is_that_of_the_source() -> None:
    spec = importlib.util.spec_from_file_location("map", ROOT / "docs" / "map.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == PAGE, "ARCHITECTURE.md is out of date. Run: python docs/map.py"


def test_the_overview_names_every_package_and_no_file_that_does_not_exist() -> None:
    overview = PAGE.split("```text", 1)[1].split("```", 1)[0]
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    folders = set(re.findall(r"^ {2}([a-z_]+)/", overview, re.MULTILINE))
    assert folders == packages
    files = {path.name for path in SOURCE.rglob("*.py")}
    assert set(re.findall(r"\b\w+\.py\b", overview)) <= files


def test_every_file_that_the_text_names_exists() -> None:
    text = re.sub(r"<!-- modules.*<!-- end of modules -->", "", PAGE, flags=re.DOTALL)
    paths = re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.py)`", text)
    assert paths
    gone = [path for path in paths if not any((ROOT / home / path).exists() for home in ("", "src", "src/qkv"))]
    assert not gone, gone
