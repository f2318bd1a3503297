"""Make this process as Pyodide is: import it first, and what Pyodide lacks is missing or fails.

Threads, processes, hard links and some modules are those that Pyodide 314 reports; RapidFuzz and zlib-ng have no
build for it.
"""

import importlib
import multiprocessing
import os
import pathlib
import subprocess
import sys
import sysconfig
import threading
from importlib.machinery import PathFinder

ABSENT = {"rapidfuzz", "zlib_ng", "resource", "msvcrt", "pwd", "_posixshmem", "torch", "jax", "tensorflow", "keras"}


class Finder(PathFinder):
    """Find the modules that Pyodide has."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in ABSENT else PathFinder.find_spec(name, path, target)


def refuse(*arguments, **options):
    raise RuntimeError("can't start new thread")


def use() -> None:
    """Change the modules of this process."""
    sys.meta_path = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
    for name in ABSENT:
        sys.modules.pop(name, None)
    sysconfig.get_config_vars()  # reads a file that is named after the platform
    sys.platform = "emscripten"
    importlib.import_module("numpy.testing")  # NumPy before 2.2 starts a process for it, but not in Pyodide
    threading.Thread.start = refuse
    multiprocessing.Process.start = refuse
    subprocess.Popen = refuse
    os.cpu_count = lambda: 1
    for name in ("link", "sched_getaffinity", "fork"):
        if hasattr(os, name):
            delattr(os, name)
    read = pathlib.Path.read_text

    def read_text(path, *arguments, **options):
        if str(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(44, "No such file or directory", str(path))
        return read(path, *arguments, **options)

    pathlib.Path.read_text = read_text
