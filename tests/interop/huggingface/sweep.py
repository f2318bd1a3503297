"""Compare every family that transformers maps: python -m tests.interop.huggingface.sweep [FAMILY …]

Writes `families.json` beside this file, from which `table.py` makes the page.
"""

import json
import multiprocessing
import signal
import sys
from pathlib import Path
from typing import Any

FOUND = Path(__file__).with_name("families.json")
SECONDS = 300


class TooLongError(BaseException):
    """Passes through what a comparison catches."""


def one(kind: str) -> dict[str, Any]:
    """What is found of a family, within some time."""
    import torch

    torch.set_num_threads(1)
    from tests.interop.huggingface.families import Found, compare

    def stop(number: int, frame: Any) -> None:
        raise TooLongError(f"not compared within {SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        return compare(kind).as_dict()
    except TooLongError as error:
        return Found(kind, why=str(error)).as_dict()
    except Exception as error:
        return Found(kind, why=f"{type(error).__name__}: {str(error)[:90]}").as_dict()
    finally:
        signal.alarm(0)


def recorded() -> dict[str, Any]:
    """What the last sweep found."""
    found: dict[str, Any] = json.loads(FOUND.read_text())
    return found


def main(kinds: list[str], workers: int = 3) -> None:
    """Compare these, or all."""
    from tests.interop.huggingface.tiny import mapped

    chosen = kinds or sorted(mapped())
    known = {x["kind"]: x for x in recorded()["families"]} if kinds and FOUND.exists() else {}
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=60) as pool:
        for n, found in enumerate(pool.imap_unordered(one, chosen), start=1):
            known[found["kind"]] = found
            print(n, json.dumps(found), flush=True)
            if n % 20 == 0 or n == len(chosen):
                _write(known)


def _write(known: dict[str, dict[str, Any]]) -> None:
    import torch
    import transformers

    lines = ",\n".join(json.dumps(known[name]) for name in sorted(known))
    versions = f'"transformers": "{transformers.__version__}", "torch": "{torch.__version__}"'
    FOUND.write_text(f'{{{versions}, "families": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(sys.argv[1:])
