"""Claim: soft retrieval over a million vectors on disk runs at memory bandwidth, or at the speed of matrix products."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import qkv
from benchmarks import _calls
from benchmarks._calls import WrongError
from benchmarks._claim import AtLeast, AtMost, Claim, Row, Setting
from benchmarks._race import race

BLOCKS = (4096, 16_384, 2**30)
"""Keys at a time in the bare products; the fastest is the peer."""


def rows(setting: Setting) -> Iterator[Row]:
    """Compare one query with a sum of the keys, and 64 with two products."""
    with tempfile.TemporaryDirectory(prefix="qkv-keys") as folder:
        setting.say("writing a million keys and values")
        (q, width), key_shape, value_shape = _calls.shapes("search", setting.quick)
        keys = _mapped(Path(folder) / "keys.npy", key_shape, 1)
        values = _mapped(Path(folder) / "values.npy", value_shape, 2)
        draw = np.random.default_rng(0)
        near = draw.integers(0, len(keys), q)
        query = (keys[near] + 0.5 * draw.standard_normal((q, width))).astype(np.float32)
        yield from _one(query[:1], keys, draw.standard_normal((len(keys), 1)).astype(np.float32), setting)
        yield from _many(query, keys, values, setting)


def _mapped(path: Path, shape: tuple[int, ...], seed: int) -> Any:
    draw = np.random.default_rng(seed)
    written = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    for start in range(0, shape[0], 65_536):
        part = written[start : start + 65_536]
        part[:] = draw.standard_normal(part.shape, dtype=np.float32)
    written.flush()
    del written
    mapped = np.load(path, mmap_mode="c")
    mapped.sum()  # in the page cache, so that memory is measured and not the disk
    return mapped


def _exact(query: Any, keys: Any, values: Any) -> Any:
    """Evaluate the equation in float64, block by block."""
    blocks = [slice(start, start + 65_536) for start in range(0, len(keys), 65_536)]
    logits = np.concatenate([query.astype(float) @ keys[b].T.astype(float) for b in blocks], axis=-1)
    logits /= np.sqrt(query.shape[-1])
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return sum(weights[:, b] @ values[b].astype(float) for b in blocks)


def _checked(got: Any, query: Any, keys: Any, values: Any) -> dict[str, float]:
    error = _calls.apart(got[:2], _exact(query[:2], keys, values))
    if error > 1e-4:
        raise WrongError(f"retrieval is {error:.2g} from the float64 equation")
    return {"oracle, output": error}


def _one(query: Any, keys: Any, values: Any, setting: Setting) -> Iterator[Row]:
    def ours() -> Any:
        return qkv.attend(query, keys, values)

    plan = qkv.explain(query, keys, values)
    errors = _checked(ours(), query, keys, values)
    yield race({"qkv": ours, "sum of the keys": lambda: keys.sum()}, setting.rounds).row(
        "one query, value width 1",
        "sum of the keys",
        AtMost(1.5),
        errors=errors,
        kernel=plan.kernel.name,
        plan=str(plan),
        note="the keys are memory-mapped and in the page cache; NumPy's sum reads each of them once",
    )


def _many(query: Any, keys: Any, values: Any, setting: Setting) -> Iterator[Row]:
    # A torch tensor over the same memory pages.
    tensors = [torch.from_numpy(x) for x in (query, keys, values)]
    for library, arrays in (("NumPy", [query, keys, values]), ("torch", tensors)):
        plan = qkv.explain(*arrays)
        errors = _checked(np.asarray(qkv.attend(*arrays)), query, keys, values)
        bare = {f"products, blocks of {n:,}" if n < 2**30 else "products": _products(n, *arrays) for n in BLOCKS}
        run = race({"qkv": lambda arrays=arrays: qkv.attend(*arrays), **bare}, setting.rounds)
        yield run.row(
            f"64 queries, value width 128, {library}, compared with the products alone",
            run.fastest(bare),
            AtLeast(0.8),
            faster=True,
            note="the products are computed without a softmax between them, over blocks of the fastest size",
            errors=errors,
            kernel=plan.kernel.name,
            plan=str(plan),
        )


def _products(block: int, query: Any, keys: Any, values: Any) -> Callable[[], Any]:
    def run() -> Any:
        out = 0
        for start in range(0, len(keys), block):
            rows = slice(start, start + block)
            out += (query @ keys[rows].T) @ values[rows]
        return out

    return run


CLAIM = Claim(
    "Soft retrieval over 1M × 128 memory-mapped keys runs at memory bandwidth for one query and at the "
    "speed of the matrix products for 64.",
    "one query at most 1.5 × the time of summing the keys; 64 queries at least 0.8 of the speed of the two "
    "products alone",
    ("NumPy and torch products",),
    rows,
)
