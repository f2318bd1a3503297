"""Claim: exact top-32 attention costs no more than attention to all keys of long sequences."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import _calls, _peers
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._race import race


def rows(setting: Setting) -> Iterator[Row]:
    """Compare TopK(32), forward, with SDPA over all keys."""
    for name, limit in (("4k", 1.5), ("16k", 1.0)):
        call = _calls.make("top_k", _calls.shapes(name, setting.quick))
        errors = call.check()
        yield race({"qkv": call.run, "SDPA": _peers.sdpa(call)}, setting.rounds).row(
            f"TopK(32), {name}, forward",
            "SDPA",
            AtMost(limit),
            errors=errors,
            kernel=call.plan.kernel.name,
            plan=str(call.plan),
        )


CLAIM = Claim(
    "Attention to the exact 32 best keys of every query takes at most 1.5 × SDPA's time over all keys at "
    "4k, and no more at 16k.",
    "at most 1.5 × SDPA's forward time at 4k, 1.0 × at 16k",
    ("torch SDPA",),
    rows,
)
