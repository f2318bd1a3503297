"""Print how often Triton would compile each program for many lengths, without compiling it and without a GPU.

python -m tests.kernels.specializations 100
"""

import json
import os
import sys
from collections import defaultdict
from typing import Any
from unittest import mock

import torch

import qkv
from qkv import masks, normalizers, readouts, scores

SHAPES = {"additive": 6, "gated": 5, "sparsemax": 5, "top-k": 5, "readouts": 5}
"""Width of queries, keys and values of each kind of call."""


class _Driver:
    """Driver of a GPU that this machine does not have."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


def run(kind: str, length: int) -> None:
    """Run a call of one length as on a GPU, forward and backward, up to the launches."""
    width = SHAPES[kind]
    weight = torch.ones(4, width)
    score: scores.Score | None = {
        "additive": scores.Additive(weight, weight, None, torch.ones(4)),
        "gated": scores.Gated(weight[0], weight[0]),
    }.get(kind)
    normalizer = {"sparsemax": normalizers.Sparsemax(), "top-k": normalizers.TopK(8)}.get(kind)
    asked = [readouts.PooledMap(64), readouts.ColumnSum(), readouts.TopWeights(4)] if kind == "readouts" else []
    kernel = {"additive": "triton", "readouts": "triton_readouts"}.get(kind, "triton_products")
    x = torch.ones(1, length, width, requires_grad=not asked)
    spec = qkv.Spec(score, normalizer, masks.Causal())
    options = {"library": "torch", "device": "H100", "kernel": kernel, "gradient": not asked, "readouts": asked}
    output = qkv.prepare(spec, (x.shape,) * 3, **options)(x, x, x).output
    if not asked:
        output.sum().backward()


def count(lengths: int) -> dict[str, dict[str, int]]:
    """Return how many versions of each program calls of that many lengths need."""
    import triton
    from triton.runtime.jit import JITFunction

    triton.runtime.driver.set_active(_Driver())
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))

    def compiled(self: Any, key: str, *_: object) -> None:
        found[kind][self.fn.__name__].add(key)

    with mock.patch.object(JITFunction, "_do_compile", compiled):
        for kind in SHAPES:
            for n in range(lengths):
                run(kind, 20 + 13 * n)
    return {kind: {name: len(keys) for name, keys in programs.items()} for kind, programs in found.items()}


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "0"  # before the first import of Triton
    print(json.dumps(count(int(sys.argv[1]))))
