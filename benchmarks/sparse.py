"""Claim: exactly sparse weights cost at most twice as much as softmax, without sorting."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import _calls, _peers
from benchmarks._claim import AtLeast, AtMost, Claim, Row, Setting
from benchmarks._race import race


def rows(setting: Setting) -> Iterator[Row]:
    """Compare the forward pass with softmax in SDPA, and with the entmax package, which sorts."""
    for name in ("4k", "16k"):
        for normalizer in ("sparsemax", "entmax15"):
            call = _calls.make(normalizer, _calls.shapes(name, setting.quick))
            errors = call.check()
            told = {"kernel": call.plan.kernel.name, "plan": str(call.plan)}
            yield race({"qkv": call.run, "SDPA": _peers.sdpa(call)}, setting.rounds).row(
                f"{normalizer}, {name}, forward", "SDPA", AtMost(2.0), errors=errors, **told
            )
            if name != "16k":
                continue
            setting.say(f"the sort of {normalizer} at {name}: a minute or two")
            peer = _peers.entmax(call)
            errors |= call.check_against("entmax", peer())
            yield race({"qkv": call.run, "entmax": peer}, setting.rounds).row(
                f"{normalizer}, {name}, compared with the entmax package",
                "entmax",
                AtLeast(10),
                faster=True,
                errors=errors,
                note="the entmax package's exact function, which sorts, runs on 1,024 queries at a time, "
                "because its memory is quadratic",
                **told,
            )


CLAIM = Claim(
    "Sparsemax and Entmax15 take at most twice the time of SDPA's softmax, and at most a tenth of the "
    "sort-based entmax.",
    "at most 2.0 × SDPA's forward time at 4k and 16k; at least 10 × faster than the entmax package at 16k",
    ("torch SDPA", "entmax"),
    rows,
)
