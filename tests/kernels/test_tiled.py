"""The tiled kernel."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.core.equation import attend_dense
from qkv.kernels import TiledKernel
from qkv.kernels.tiled import softmax as tiled_softmax
from qkv.testing.cases import MASKS, SCORES, SHAPES, Case, Shape
from qkv.testing.execution import oracle_of, run
from qkv.testing.kernel_harness import assert_agrees
from qkv.testing.kernels import KernelContract
from qkv.testing.libraries import Setting, turn
from tests.effort import sample

F64, F32 = Setting("torch", "float64"), Setting("torch", "float32")


class TestTiled(KernelContract):
    kernel = TiledKernel(budget=30, row_block_budget=3000)


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.thinned
@pytest.mark.parametrize("threads", [1, 3], indirect=True)
@pytest.mark.parametrize("budget", [40, 200, 2000])
def test_tiles_of_several_batch_elements_and_several_threads_agree_with_the_oracle(budget: int, threads: int) -> None:
    """77 pairs in a batch element: a part of one, two, or all six, to a tile."""
    for score in turn(sorted(SCORES), (40, 200, 2000).index(budget), 3):
        for case in (Case(score, "softmax", "pairs", dropout=0.3), Case(score, "softmax with temperature")):
            call = case.call()
            assert_agrees(run(call, F64, TiledKernel(budget)), oracle_of(call, F64), F64, f"{case}, {budget}")


@pytest.mark.parametrize(
    ("score", "mask"),
    sample(
        itertools.product(
            ["additive", "additive per head"], ["none", "window", "pairs", "keys", "causal by positions"]
        ),
        2,
    ),
)
def test_additive_scores_by_units_agree_with_the_oracle(monkeypatch: pytest.MonkeyPatch, score: str, mask: str) -> None:
    """Enough pairs for `AdditiveLogits`, in tiles of unequal sizes."""
    monkeypatch.setitem(SHAPES, "long", Shape(70, 83, batch=(2, 2), key_batch=(2, 1)))
    names = ("softmax", "softmax with sink", "softmax with temperature", "sigmoid")
    for number, normalizer in enumerate(names):
        for setting in turn((F64, F32), number + ("none", "keys", "pairs").count(mask), 2):
            case = Case(score, normalizer, mask, "long", dropout=0.2 if normalizer == "softmax" else 0.0)
            call = case.call()
            # Softmax with an array for temperature, and sigmoid, are folded with the score's own function.
            assert_agrees(run(call, setting, TiledKernel(900)), oracle_of(call, setting), setting, str(case))


def test_logits_beyond_the_bound_are_shifted_by_their_maximum() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(300, 8), torch.randn(50, 8) + 100.0
    for scale, taken in ((0.01, "no maximum"), (10.0, "maximum of each row")):
        seen = qkv.observe(query * scale, key, key, score=scores.Dot(), kernel="tiled")
        assert any(taken in sentence for sentence in seen.plan.guards_taken)
        wanted = attend_dense(
            (query * scale).double(), key.double(), key.double(), score=scores.Dot(), normalizer=normalizers.Softmax()
        ).output
        assert (seen.output - wanted).abs().max() < 2e-3


def test_a_bound_saves_the_maximum_of_rows_also_without_columns_of_values() -> None:
    query = torch.ones(300, 8)
    seen = qkv.observe(query, query, query[:, :0], score=scores.Dot(), kernel="tiled", readouts=[readouts.LogSumExp()])
    assert any("no maximum" in sentence for sentence in seen.plan.guards_taken)
    assert (seen.readouts[0] - (8 + math.log(300))).abs().max() < 1e-4


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_keys_with_far_smaller_logits_do_not_change_the_result(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights below 1e-38 count as 0, on this thread and while the kernel runs alone.

    With several threads those below 1e-30 do, because subnormal numbers take other threads a hundred times as long.
    """
    smallest: list[float] = []

    def multiply(target: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
        smallest.append(float(left[left > 0].min()))
        target.addmm_(left, right)

    monkeypatch.setattr(tiled_softmax, "add_matmul_", multiply)
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 600, 16) for _ in range(3))
    score = scores.ALiBi(scores.ScaledDot(), 0.5)
    got = qkv.attend(query, key, value, score=score, kernel="tiled")
    wanted = attend_dense(query, key, value, score=score, normalizer=normalizers.Softmax()).output
    assert (got - wanted).abs().max() < 1e-6
    assert float(torch.tensor(1e-40) * 1.0) > 0.0
    assert min(smallest) > (1e-31 if threads > 1 else 0)


@pytest.mark.parametrize("mask", sample(sorted(MASKS), 4))
def test_fully_masked_tiles_are_not_computed(mask: str) -> None:
    seen: list[tuple[int, int]] = []

    def product(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        seen.append((query.shape[-2], key.shape[-2]))
        return query @ key.mT

    call = replace(Case("custom", "softmax", mask).call(), score=scores.Custom(product, elements=1))
    run(call, F64, TiledKernel(1))
    seen.clear()  # the first call tries the function on drawn arrays
    run(call, F64, TiledKernel(1))
    allowed = np.ones((2, 3, 7, 11), dtype=bool)
    if call.mask is not None:
        from qkv.core.tile import Tile

        tile = Tile.whole(7, 11, (2, 3), call.positions)
        allowed = np.broadcast_to(call.mask.allowed(tile, np.zeros(())), allowed.shape)
    # One pair to a tile: forward, backward, and once for a gradient that is not handed over. Batch elements
    # whose mask differs share what can be skipped.
    wanted = int(allowed.any(axis=(0, 1)).sum()) * 6
    assert len(seen) - 1 <= 2 * wanted


@pytest.mark.parametrize("threads", [1], indirect=True)
@pytest.mark.parametrize("normalizer", [normalizers.Softmax(), normalizers.Sigmoid()])
def test_tiles_under_a_causal_mask_end_at_the_last_visible_key(
    normalizer: normalizers.Normalizer, threads: int
) -> None:
    pairs: list[int] = []

    def product(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        pairs.append(query.shape[-2] * key.shape[-2])
        return query @ key.mT

    call = {"score": scores.Custom(product, elements=1), "normalizer": normalizer, "mask": masks.Causal()}
    x = torch.randn(512, 4)
    for _ in range(2):
        pairs.clear()  # the first call tries the function on drawn arrays
        qkv.attend(x, x, x, kernel=TiledKernel(64 * 512), **call)
    assert sum(pairs) <= 0.65 * 512**2


def test_buffers_from_inference_mode_are_usable_outside_it() -> None:
    x = torch.randn(30, 4)
    with torch.inference_mode():
        first = qkv.attend(x, x, x, kernel=TiledKernel(100))
    leaf = x.clone().requires_grad_()
    again = qkv.attend(leaf, leaf, leaf, kernel=TiledKernel(100))
    again.sum().backward()
    assert torch.equal(first, again.detach())
    assert leaf.grad is not None
