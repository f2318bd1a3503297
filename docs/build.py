"""Build the site: `make docs` writes it to `site/`, from the pages of docs/ and the docstrings, without a network.

The build runs the examples of every page with a figure, draws the figures, and fails at a warning of Sphinx, an example
that prints something else than its page shows, or a link without target.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT)]
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main(site: Path) -> int:
    """Write the site into a folder and return the exit code of Sphinx, or 1 where a link has no target."""
    from generate.accessible import correct_pages
    from generate.command_line import write_command_line
    from generate.links import broken_links
    from generate.live_cells import publish_live_cells
    from generate.look_gallery import publish_look_gallery
    from generate.notebooks import write_notebooks
    from generate.pages import write_pages
    from generate.performance import write_performance
    from generate.reference import write_reference
    from sphinx.cmd.build import main as run_sphinx

    source = ROOT / "build" / "site-source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.rmtree(site, ignore_errors=True)
    write_pages(ROOT, source)
    write_notebooks(DOCS, source)
    write_performance(ROOT, source)
    write_reference(source / "reference")
    write_command_line(source / "reference" / "command-line")
    code = run_sphinx(
        ["-W", "--keep-going", "-q", "-b", "html", "-d", str(ROOT / "build" / "doctrees"), str(source), str(site)]
    )
    correct_pages(site)
    publish_look_gallery(source, site)
    if not publish_live_cells(ROOT, site):
        print("Cells do not run in the browser: `make pyodide` fetches Pyodide into build/pyodide.")
    broken = broken_links(site)
    print(*broken, sep="\n")
    print(f"open {site / 'index.html'}")
    return code or bool(broken)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
