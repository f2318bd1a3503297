"""Build the reference from the docstrings: `make docs` writes it to `site/`."""

import importlib
import sys
from pathlib import Path

import pdoc

MODULES = (
    "qkv",
    "qkv.engine",
    "qkv.database",
    "qkv.join",
    "qkv.search",
    "qkv.serve",
    "qkv.encoders",
    "qkv.estimators",
    "qkv.look",
    "qkv.interop",
    "qkv.testing",
)


def main(folder: Path) -> None:
    """Write one page per public module."""
    for module in map(importlib.import_module, MODULES):
        # Some public names are lazy; the reference wants them all, and looks where they are when imported.
        for name in getattr(module, "__all__", ()):
            vars(module).setdefault(name, getattr(module, name))
    pdoc.render.configure(docformat="google", math=True)
    pdoc.pdoc(*MODULES, output_directory=folder)
    print(f"open {folder / 'index.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
