"""A call gives the same whether its arrays repeat batch axes or leave them to broadcast."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qkv import masks, scores
from qkv.core.positions import Positions
from qkv.errors import RefusedError
from qkv.kernels import KERNELS, NumpyBlocksKernel, RowBlocksKernel, TensorflowBlocksKernel, TiledKernel
from qkv.normalizers import Identity
from qkv.plan import Kernel
from qkv.testing import cases
from qkv.testing.cases import MASKS, NORMALIZERS, SCORES, Call, Case
from qkv.testing.execution import Outcome, inputs_of, oracle_of, run
from qkv.testing.kernel_harness import assert_agrees
from qkv.testing.kernels import TransformContract
from qkv.testing.libraries import LONG, Setting, installed

FLOAT64 = Setting("torch", "float64")
BLOCKS = (TiledKernel, RowBlocksKernel, NumpyBlocksKernel, TensorflowBlocksKernel)
ON_OTHER_DEVICES = ("flex", "pallas", "triton", "triton_products", "triton_readouts", "triton_traced", "jax_fused")
PRODUCTS = ("dot", "scaled dot", "bilinear per head", "gaussian")
SUITED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "linear": ((*PRODUCTS[:3], "features", "decay", "decay per key", "decay per feature"), ("identity", "sum")),
    "fused": ((*PRODUCTS, "biased", "alibi"), ("softmax", "softmax with temperature")),
}
"""Scores and normalizers of the kernels that support few; others draw from all."""


def kernels_of(library: str) -> list[Kernel]:
    """Return the kernels of a library, also with blocks so small that a call needs several of them."""
    own = [k for k in KERNELS if library in k.libraries and k.name not in ON_OTHER_DEVICES]
    return own + [kind(budget=64) for kind in BLOCKS if library in kind.libraries]


class Broadcast:
    """A drawn call with some batch axes left out or of length 1, and the same call with all arrays repeated."""

    def __init__(self, rng: np.random.Generator, case: Case, batch: tuple[int, ...], monkeypatch: Any) -> None:
        self.rng, self.batch = rng, batch
        monkeypatch.setitem(cases.SHAPES, case.shape, cases.Shape(5, 7, batch=batch))
        self.whole = case.call(int(rng.integers(1000)))
        while True:
            sides = {name: self._drawn(getattr(self.whole, name), 2) for name in ("query", "key", "value")}
            if np.broadcast_shapes(*(x.shape[:-2] for x in sides.values())) == batch:
                break
        parts = {name: self._map(getattr(self.whole, name), self._drawn) for name in ("score", "normalizer", "mask")}
        self.call = replace(self.whole, **sides, **parts)
        sides = {name: self._repeated(x, 2) for name, x in sides.items()}
        self.whole = replace(self.call, **sides, **{name: self._map(x, self._repeated) for name, x in parts.items()})

    def _drawn(self, x: Any, core: int) -> Any:
        own = x.ndim - core
        if own != len(self.batch):
            return x
        kind = self.rng.integers(4)  # 0: no batch axes; 1: as they are; else some of length 1
        keep = [kind == 1 or self.rng.random() < 0.5 for _ in range(own)]
        return np.asarray(x[(0,) * own] if kind == 0 else x[tuple(slice(None if kept else 1) for kept in keep)])

    def _repeated(self, x: Any, core: int) -> Any:
        return np.array(np.broadcast_to(x, (*self.batch, *x.shape[x.ndim - core :])))

    @staticmethod
    def _map(part: Any, function: Any) -> Any:
        return part and part._map(lambda x, names: x if names is None else function(x, len(names)))

    def wanted(self) -> Outcome:
        """Return output and gradients by the equation for the repeated arrays, with gradients summed over repeats."""
        output, gradients = oracle_of(self.whole, FLOAT64)
        shapes = [tuple(x.shape) for x in inputs_of(self.call, FLOAT64)]
        return Outcome(output, tuple(map(_summed, gradients, shapes)))

    def __str__(self) -> str:
        parts = [x for x in (self.call.score, self.call.normalizer, self.call.mask) if x is not None]
        arrays = (self.call.query, self.call.key, self.call.value, *(x for part in parts for x in part.arrays()))
        return f"{[x.shape for x in arrays]}"


def _summed(x: Any, shape: tuple[int, ...]) -> Any:
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    return x.sum(axis=tuple(n for n, length in enumerate(shape) if length != x.shape[n]), keepdims=True)


@pytest.mark.parametrize(
    ("library", "count"),
    [
        ("torch", 600 if LONG else 64),
        ("numpy", 300 if LONG else 30),
        pytest.param("tensorflow", 60, marks=pytest.mark.long),
        pytest.param("jax", 16, marks=pytest.mark.long),
    ],
)
def test_a_call_whose_arrays_broadcast_gives_what_repeated_arrays_give(
    library: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not installed(library):
        pytest.skip(f"{library} is not installed")
    rng, kernels, setting = np.random.default_rng(7), kernels_of(library), Setting(library, "float64")
    ran = set()
    for n in range(count):
        kernel = kernels[n % len(kernels)]
        options = *SUITED.get(kernel.name, (tuple(SCORES), ("softmax",) * 8 + tuple(NORMALIZERS))), tuple(MASKS)
        score, normalizer, mask = (str(rng.choice(names)) for names in options)
        case = Case(score, normalizer, mask if rng.random() < 0.7 else "none", "batch axes")
        if not case.sensible:
            continue
        batch: tuple[int, ...] = [(3,), (2, 3), (2, 2, 2), (2, 1, 2, 2)][rng.integers(4)]
        drawn = Broadcast(rng, case, batch, monkeypatch)
        try:
            got = run(drawn.call, setting, kernel)
        except RefusedError:
            continue
        ran.add(kernel.name)
        assert_agrees(got, drawn.wanted(), setting, f"{kernel} {case} {drawn}", 10.0)
    assert ran == {kernel.name for kernel in kernels}


class TestTransformsOfManyElementsInATile(TransformContract):
    kernel = TiledKernel()


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("start", ["start", "end"])
@pytest.mark.parametrize("align", ["start", "end"])
def test_decays_count_from_the_positions_whatever_a_causal_mask_aligns(library: str, align: str, start: str) -> None:
    rng = np.random.default_rng(0)
    call = Call(
        *(rng.normal(size=(n, 4)) for n in (5, 7, 7)),
        scores.Decay(scores.Dot(), -0.3),
        Identity(),
        masks.Causal(align),  # type: ignore[arg-type]
        Positions(align=start),  # type: ignore[arg-type]
    )
    setting = Setting(library, "float64")
    if not installed(library):
        pytest.skip(f"{library} is not installed")
    assert_agrees(run(call, setting, None), run(call, setting, "dense"), setting)
