"""Rows of compilation: the time of first calls, and the number of compilations over many lengths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks._claim import AtMost, Row
from benchmarks.gpu._setting import Setting, make_call
from qkv import normalizers, scores

__all__ = ["COLD", "compilation", "lengths"]


def _cold_additive(setting: Setting) -> Any:
    return make_call(setting, "additive", setting.size((4, 512, 64), (1, 20, 16)), gradient=True, kernel="triton")


def _cold_sparsemax(setting: Setting) -> Any:
    shape = setting.size((4, 512, 64), (1, 20, 16))
    normalizer = normalizers.Sparsemax()
    return make_call(setting, "dot", shape, gradient=True, kernel="triton_products", normalizer=normalizer)


def _cold_softcap(setting: Setting) -> Any:
    shape = setting.size((1, 4, 512, 64), (1, 1, 20, 16))
    return make_call(
        setting, "dot", shape, gradient=True, kernel="flex", score=scores.Softcap(scores.ScaledDot(), 20.0)
    )


COLD: dict[str, Callable[[Setting], Any]] = {
    "additive": _cold_additive,
    "sparsemax": _cold_sparsemax,
    "softcap": _cold_softcap,
}
"""Calls whose first run, forward and backward, is timed in a fresh process with empty caches."""


def cold_seconds(setting: Setting, name: str) -> dict[str, float]:
    """Return the seconds of the first and of the second run of a call in this process."""
    call, found = COLD[name](setting), {}
    for when in ("first", "second"):
        start = time.perf_counter()
        call.run()
        setting.synchronize()
        found[when] = time.perf_counter() - start
    return found


def compilation(setting: Setting) -> Iterator[Row]:
    """Measure the time of first calls in fresh processes with empty caches of compiled code."""
    for name in COLD:
        with tempfile.TemporaryDirectory(prefix="qkv-cold") as caches:
            folders = {"TRITON_CACHE_DIR": f"{caches}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor"}
            command = [sys.executable, "-m", "benchmarks.gpu", "--cold", name, *([] if setting.on_gpu else ["--dry"])]
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ | folders, check=False)
        if done.returncode:
            raise RuntimeError(f"{name}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
        found = json.loads(done.stdout.splitlines()[-1])
        note = f"The second call takes {1e3 * found['second']:.3g} ms."
        yield Row(f"{name}, forward + backward", "first call, nothing compiled before", found["first"], "s", note=note)


def lengths(setting: Setting) -> Iterator[Row]:
    """Count compilations over calls of 100 different lengths."""
    counts = setting.size(range(100, 2100, 20), range(20, 28, 2))
    makers: dict[str, Callable[[int], Any]] = {
        "softcap (flex)": lambda n: make_call(
            setting, "dot", (1, 2, n, 32), kernel="flex", score=scores.Softcap(scores.ScaledDot(), 20.0)
        ),
        "additive (triton)": lambda n: make_call(setting, "additive", (1, n, 32), kernel="triton", gradient=True),
        "sparsemax (triton_products)": lambda n: make_call(
            setting, "dot", (1, n, 32), kernel="triton_products", normalizer=normalizers.Sparsemax(), gradient=True
        ),
    }
    for name, make in makers.items():
        with _counting(setting) as count:
            for n in counts:
                call = make(n)
                call.run()
            setting.synchronize()
            number = count()
        call.check()
        yield Row(f"{name}, {len(counts)} lengths", "compilations", number, "", AtMost(16))


@contextmanager
def _counting(setting: Setting) -> Iterator[Callable[[], int]]:
    """Count compilations by Triton, and graphs compiled by PyTorch."""
    import torch._dynamo
    import triton
    from torch._dynamo.utils import counters

    from qkv.kernels.flex import kernel as flex_call

    compiled: list[object] = []

    def seen(**_: object) -> None:
        compiled.append(None)

    torch._dynamo.reset()
    flex_call._flex_attention.cache_clear()
    before, hook = counters["stats"]["unique_graphs"], triton.knobs.runtime.jit_post_compile_hook
    triton.knobs.runtime.jit_post_compile_hook = seen
    try:
        yield lambda: len(compiled) + counters["stats"]["unique_graphs"] - before
    finally:
        triton.knobs.runtime.jit_post_compile_hook = hook
