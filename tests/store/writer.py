"""A process that writes to a store, for tests that kill it or let it meet another."""

import json
import sys
import time

import numpy as np

from qkv import store as stores
from qkv.errors import StoreBusyError
from qkv.testing.stores import numbered


def append(path: str, start: int, times: int) -> None:
    """Append seven rows, again and again."""
    store = stores.open(path)
    for i in range(times):
        store.append(numbered(start + 7 * i, start + 7 * i + 7))


def append_timed(path: str, times: int, start: int) -> None:
    """Append seven rows, again and again, and print when each append began and ended, and its version or null."""
    store = stores.open(path)
    for i in range(times):
        began = time.monotonic()
        try:
            version = store.append(numbered(start + 7 * i, start + 7 * i + 7))
        except StoreBusyError:
            version = None
        print(json.dumps([began, time.monotonic(), version], separators=(",", ":")))


def crash(path: str) -> None:
    """Append, append, delete, compact, and say after each step that it is done; it waits to be killed."""
    store = stores.open(path)
    print("ready", flush=True)
    step = 0
    while True:
        kind = step % 4
        if kind in (0, 1):
            store.append(numbered(100 * step, 100 * step + 50))
        elif kind == 2:
            remainder = step % 7
            store.delete(lambda table, r=remainder: np.asarray(table.column("id").to_numpy() % 7 == r))
        else:
            store.compact(keep=2)
        print(step, flush=True)
        step += 1


if __name__ == "__main__":
    if sys.argv[1] == "append":
        append(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1] == "timed":
        append_timed(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        crash(sys.argv[2])
