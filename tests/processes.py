"""Run Python in a process of its own: for peaks of memory, for imports, and for settings of a whole process."""

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["run_python"]

ROOT = Path(__file__).parent.parent


def run_python(*arguments: object, **variables: str) -> str:
    """Return what a process prints that runs in the root folder, with one thread; a test fails where the process does.

    Args:
        arguments: those after `python`, such as "-c" and code.
        variables: variables of the environment besides those of this process.
    """
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)} | variables
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout
