"""Claim: scaled dot-product attention of long sequences is never slower than PyTorch's own."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks import _calls, _peers
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._race import race
from benchmarks._record import onednn_gain

WINS = 1.2
"""Speed-up of a tile product by oneDNN from which the stricter goals apply."""

SHARP = 30
"""Factor of the logits with which many weights of a row are subnormal numbers."""


def rows(setting: Setting) -> Iterator[Row]:
    """Measure forward, then forward and backward, on one thread by CPU time and on two by wall time."""
    gain = onednn_gain()
    wins = gain >= WINS
    note = f"the matrix product of a tile by oneDNN is {gain:.2f} × as fast as torch.mm here: {_comparison(wins)}"
    for threads in (1, 2):
        for name, size in setting.some((("2k", SHARP), ("1k", 1), ("2k", 1), ("4k", 1), ("8k", 1), ("16k", 1)), 5):
            for gradient in (False, True) if size == 1 else (True,):
                torch.set_num_threads(threads)
                call = _calls.make("scaled_dot", _calls.shapes(name, setting.quick), gradient=gradient)
                with torch.no_grad():
                    call.query.mul_(size)
                peer = _peers.sdpa(call)
                errors = call.check() | call.check_against("SDPA", peer())
                yield race({"qkv": call.run, "SDPA": peer}, setting.rounds).row(
                    f"{name}, {f'logits {size} times as large, ' if size > 1 else ''}"
                    f"{'forward + backward' if gradient else 'forward'}, {threads} thread{'s' * (threads > 1)}",
                    "SDPA",
                    AtMost(0.25 if size > 1 else 1.05 if not wins else 0.75 if threads == 1 else 0.9),
                    clock="CPU time" if threads == 1 else "wall time",
                    errors=errors,
                    kernel=call.plan.kernel.name,
                    plan=str(call.plan),
                    note=note,
                )
    torch.set_num_threads(1)


def _comparison(wins: bool) -> str:
    return f"{WINS} × or more, so the last limits apply" if wins else f"less than {WINS} ×, so the first limit applies"


CLAIM = Claim(
    "Scaled dot product, q = k from 1k to 16k, width 64, is not slower than scaled_dot_product_attention.",
    "at most 1.05 × SDPA's time, and .25 × if many weights are subnormal; where oneDNN's matmul is at least 1.2 × "
    "faster than torch.mm, at most 0.75 × on one thread and 0.90 × on two",
    ("torch SDPA",),
    rows,
)
