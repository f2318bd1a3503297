"""Claim: additive attention is at least 14 times faster than in Keras, with at most 1/50 of the memory.

Forward it is also compared with the exponential formula of tanh, written by hand and compiled.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import _calls, _peers
from benchmarks._claim import AtLeast, AtMost, Claim, Row, Setting
from benchmarks._memory import peak
from benchmarks._race import race

NOTE = (
    "Keras has no projections; qkv's are initialized to the identity, computed and trained. "
    "Memory is the growth of a fresh process during one call, including output and gradients."
)


def rows(setting: Setting) -> Iterator[Row]:
    """Measure time and memory of forward and of forward + backward, and forward compared with a compiled formula."""
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
    for n in setting.some((512, 2048, 8192), 3):
        call = _calls.make("additive", ((n, 64),) * 3)
        peer = _peers.additive_compiled(call)
        errors = call.check() | call.check_against("compiled", peer())
        yield race({"qkv": call.run, "compiled": peer}, setting.rounds).row(
            f"{n}, forward, compiled",
            "compiled",
            AtMost(1.0),
            errors=errors,
            kernel=call.plan.kernel.name,
            plan=str(call.plan),
        )


CLAIM = Claim(
    "Additive attention, q = k = 2k, width 64, is at least 14 × faster than Keras's and needs at most "
    "1/50 of its memory.",
    "forward at least 25 × faster, forward + backward at least 14 × faster, at most 1/50 of the memory; at most 1.0 × "
    "the time of the compiled formula, forward",
    ("Keras AdditiveAttention on torch", "1 − 2 / (1 + e^2a e^2b) by hand, compiled by torch.compile"),
    rows,
)
