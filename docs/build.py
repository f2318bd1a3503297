"""Build the reference from the docstrings: `make docs` writes it to `site/`."""

import sys
from pathlib import Path

import pdoc

import qkv


def main(folder: Path) -> None:
    """Write one page per public module."""
    # The public names are lazy; a reference wants them all.
    for name in qkv.__all__:
        getattr(qkv, name)
    pdoc.render.configure(docformat="google", math=True)
    names = ("qkv", "qkv.engine", "qkv.database", "qkv.join", "qkv.search", "qkv.testing")
    pdoc.pdoc(*names, output_directory=folder)
    print(f"open {folder / 'index.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
