"""Claim: common uses of flex_attention run as fast here without a compiler, and can be trained."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from benchmarks import _calls, _peers
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._race import race

NOTE = (
    "flex_attention is compiled for each case before it is timed; it has no backward on a CPU. forward + "
    "backward of qkv is compared with flex_attention's forward, and has no goal."
)


def rows(setting: Setting) -> Iterator[Row]:
    """Compare the forward passes; then report forward and backward against the same forward, without a goal."""
    for name in setting.some(("2k", "4k"), 2):
        for score in setting.some(("softcap", "alibi", "bias_table", "window"), 3):
            shape = _calls.shapes(name, setting.quick)
            call = _calls.make(score, shape)
            setting.say(f"compiling flex_attention for {score}, {name}")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                peer = _peers.flex(call)
                errors = call.check() | call.check_against("flex_attention", peer())
            training = _calls.make(score, shape, gradient=True)
            trained = training.check()
            found = race({"qkv": call.run, "qkv, forward + backward": training.run, "flex": peer}, setting.rounds)
            yield found.row(
                f"{score}, {name}, forward",
                "flex",
                AtMost(1.0),
                errors=errors,
                kernel=call.plan.kernel.name,
                plan=str(call.plan),
                note=NOTE,
            )
            yield found.row(
                f"{score}, {name}, forward + backward",
                "flex",
                ours="qkv, forward + backward",
                errors=trained,
                kernel=training.plan.kernel.name,
                plan=str(training.plan),
                note=NOTE,
            )


CLAIM = Claim(
    "Softcap, ALiBi, a learned bias table and a window of 256 are not slower than compiled flex_attention.",
    "at most 1.0 × flex_attention's forward time; forward + backward, which flex_attention lacks on a CPU, has no goal",
    ("torch flex_attention, compiled",),
    rows,
)
