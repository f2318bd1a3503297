"""Claim: additive attention is at least 14 times faster than in Keras, with at most 1/50 of the memory."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import _calls, _peers
from benchmarks._claim import AtLeast, Claim, Row, Setting
from benchmarks._memory import peak
from benchmarks._race import race

NOTE = (
    "Keras has no projections; qkv's are initialized to the identity, computed and trained. "
    "Memory is the growth of a fresh process during one call, including output and gradients."
)


def rows(setting: Setting) -> Iterator[Row]:
    """Measure the time of forward and of forward + backward, then memory."""
    shape = _calls.shapes("alignment", setting.quick)
    for gradient, limit in ((False, 25), (True, 14)):
        call = _calls.make("additive_plain", shape, gradient=gradient)
        peer = _peers.keras_additive(call)
        errors = call.check() | call.check_against("Keras", peer())
        way = "forward + backward" if gradient else "forward"
        yield race({"qkv": call.run, "Keras": peer}, setting.rounds).row(
            f"2k, {way}",
            "Keras",
            AtLeast(limit),
            faster=True,
            errors=errors,
            kernel=call.plan.kernel.name,
            plan=str(call.plan),
            note=NOTE,
        )
        del call, peer
        found = {
            who: peak("additive_plain", shape, gradient=gradient, who=function)
            for who, function in (("qkv", "qkv"), ("Keras", "keras_additive"))
        }
        yield Row(
            f"2k, {way}, memory",
            "Keras / qkv, peak memory",
            found["Keras"].growth / max(10**6, found["qkv"].growth),
            goal=AtLeast(50),
            megabytes={who: one.growth / 1e6 for who, one in found.items()},
            kernel=found["qkv"].kernel,
            plan=found["qkv"].plan,
            note=NOTE,
        )


CLAIM = Claim(
    "Additive attention, q = k = 2k, width 64, is at least 14 × faster than Keras's and needs at most "
    "1/50 of its memory.",
    "forward at least 25 × faster, forward + backward at least 14 × faster, at most 1/50 of the memory",
    ("Keras AdditiveAttention on torch",),
    rows,
)
