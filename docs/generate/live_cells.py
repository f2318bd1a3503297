"""Cells of pages that run in the browser: Pyodide, the library and the data of the examples, beside the pages.

`make pyodide` fetches Pyodide into `build/pyodide`; without it the site has no such cells.
"""

from __future__ import annotations

import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path

FOLDER = "live"
"""Folder of the site with Pyodide and the scripts."""

SECTIONS = {
    "start/ask.html": ("the-same-in-python", "numbers-as-keys"),
    "start/build.html": ("one-call", "the-weights"),
    "start/look.html": ("weights-of-your-own",),
}
"""Sections by page whose Python cells need only what Pyodide has."""

PURE = ("array_api_compat", "filelock", "packaging", "platformdirs")
"""Packages in Python alone that qkv imports and Pyodide lacks."""

_DATA = ("people.csv", "gpa.csv", "members.csv")


def publish_live_cells(root: Path, site: Path) -> bool:
    """Write the files into the site and name them in its pages, and return whether Pyodide is there."""
    fetched = root / "build" / "pyodide"
    if not (fetched / "pyodide.mjs").exists():
        return False
    place = site / FOLDER
    shutil.copytree(fetched, place)
    for script in (root / "docs" / "live").glob("*.js"):
        shutil.copy(script, place)
    write_library(root, place / "qkv.zip")
    for name, sections in SECTIONS.items():
        page = site / name
        tag = f'<script type="module" src="../{FOLDER}/cells.js" data-sections="{" ".join(sections)}"></script>'
        page.write_text(page.read_text().replace("</body>", f"{tag}\n</body>"))
    return True


def write_library(root: Path, path: Path) -> None:
    """Write a ZIP file with the library, the packages in Python alone that it imports, and the data of the examples."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package, folder in {"qkv": root / "src" / "qkv", **{name: _folder(name) for name in PURE}}.items():
            for file in sorted(folder.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, Path("packages", package, file.relative_to(folder)))
        for name in _DATA:
            archive.write(root / "examples" / name, f"examples/{name}")


def _folder(package: str) -> Path:
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent
