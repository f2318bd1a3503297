"""Claim: scores other than the dot product train in at most 1.3 times its time."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import _calls, _peers
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._race import race
from benchmarks._record import onednn_gain
from benchmarks.scaled_dot import WINS


def rows(setting: Setting) -> Iterator[Row]:
    """Compare forward and backward, including parameters, with SDPA's dot product of the same shape."""
    gain = onednn_gain()
    limit = AtMost(1.0 if gain >= WINS else 1.3)
    for name in setting.some(("2k", "4k", "16k"), 3):
        for score in ("bilinear", "gaussian", "cosine", "gated", "softcap"):
            call = _calls.make(score, _calls.shapes(name, setting.quick), gradient=True)
            errors = call.check()
            yield race({"qkv": call.run, "SDPA dot": _peers.sdpa(call)}, setting.rounds).row(
                f"{score}, {name}, forward + backward",
                "SDPA dot",
                limit,
                errors=errors,
                kernel=call.plan.kernel.name,
                plan=str(call.plan),
                note=f"the matrix product of a tile by oneDNN is {gain:.2f} × as fast as torch.mm here",
            )


CLAIM = Claim(
    "Bilinear, Gaussian, cosine, gated and softcap scores train in at most 1.3 × the time of SDPA's dot product.",
    "at most 1.3 × SDPA's time for forward + backward; 1.0 × where oneDNN's matmul is at least 1.2 × "
    "faster than torch.mm",
    ("torch SDPA with the plain dot product",),
    rows,
)
