"""Claim: calls on many short sequences take at most 1.15 times as long as in PyTorch, including planning."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import _calls, _peers
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._race import race


def rows(setting: Setting) -> Iterator[Row]:
    """Measure 64 heads of 64 to 512 tokens."""
    for tokens in setting.some((64, 128, 256, 512), 3):
        for gradient in (False, True):
            shape = _calls.shapes(f"crowd {tokens}", setting.quick)
            call = _calls.make("scaled_dot", shape, gradient=gradient)
            peer = _peers.sdpa(call)
            errors = call.check() | call.check_against("SDPA", peer())
            yield race({"qkv": call.run, "SDPA": peer}, max(setting.rounds, 9)).row(
                f"{tokens} tokens, 64 heads, {'forward + backward' if gradient else 'forward'}",
                "SDPA",
                AtMost(1.15),
                errors=errors,
                kernel=call.plan.kernel.name,
                plan=str(call.plan),
            )


CLAIM = Claim(
    "Scaled dot product over 64 to 512 tokens and 64 heads takes at most 1.15 × SDPA's time.",
    "at most 1.15 × SDPA's time",
    ("torch SDPA",),
    rows,
)
