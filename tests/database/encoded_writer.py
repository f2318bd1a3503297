"""A process that appends to a store with an encoder, deletes and compacts, until it is killed."""

import sys

from qkv.database import Database

__all__ = ["rows"]


def rows(start: int, stop: int) -> dict[str, list]:
    """Rows that tell themselves apart, with two known words each."""
    ids = range(start, stop)
    return {
        "id": list(ids),
        "text": [f"w{i % 7} and w{i % 11}" for i in ids],
        "value": [float(i) for i in ids],
    }


if __name__ == "__main__":
    store = Database.open(sys.argv[1])
    store.delete("false")  # what is loaded once is loaded before the race begins
    print("ready", flush=True)
    step = 0
    while True:
        kind = step % 4
        if kind in (0, 1):
            store.append(rows(100 * step, 100 * step + 50))
        elif kind == 2:
            store.delete(f"id % 7 = {step % 7}")
        else:
            store.compact(keep=2)
        print(step, flush=True)
        step += 1
