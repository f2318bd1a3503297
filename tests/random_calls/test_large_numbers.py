"""Random calls in PyTorch of queries and keys up to 1e18: finite where attention in plain float64 NumPy is finite."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import masks, readouts, scores
from qkv.errors import RefusedError
from tests.effort import LONG
from tests.random_calls.draw import RandomCall, draw_call, draw_shape, random_row
from tests.random_calls.libraries import arguments_of, expected
from tests.random_calls.test_torch import KERNELS, SMALL, rounding

torch = pytest.importorskip("torch")
WEIGHTS_UP_TO_1 = ("Softmax", "Sigmoid", "TopK", "Sparsemax", "Entmax15", "Entmax")


def draw_large(rng: np.random.Generator, dtype: Any) -> RandomCall | None:
    """Return a call of large queries and keys, or None for one that is not finite by its definition.

    The squares of the normalizer `Custom` overflow, and poisoned arrays hold infinity.
    """
    name = str(dtype).removeprefix("torch.")
    row = random_row(rng, {"magnitude": "ordinary", "readout": None, "dropout": 0.0, "dtype": name, "batch": "heads"})
    call = draw_call(rng, row, draw_shape(rng, row), rounding(dtype))
    scale = 10.0 ** rng.uniform(0, 18)
    if call.score.name == "Exact" or call.normalizer.name == "Custom" or call.poisoned[0] is not call.query:
        return None
    query, key = (rounding(dtype)(x * scale) for x in (call.query, call.key))
    return dataclasses.replace(call, query=query, key=key, poisoned=(query, key, call.value))


def gradients(call: RandomCall, dtype: Any, kernel: Any, towards: Any) -> tuple[Any, list[Any]]:
    """Return the output of a call and the gradients of its arrays, which are None without gradients."""
    leaves: list[Any] = []

    def convert(x: Any) -> Any:
        made = torch.tensor(np.asarray(x))
        if made.is_floating_point():
            made = made.to(dtype).requires_grad_(towards is not None)
            leaves.append(made)
        return made

    arrays, parts = [convert(x) for x in call.poisoned], arguments_of(call, convert)
    try:
        output = qkv.attend(*arrays, **parts, kernel=kernel)
    except RefusedError:
        output = qkv.attend(*arrays, **parts)
    if not output.requires_grad:
        return output, []
    towards = torch.tensor(towards).to(dtype)
    return output.detach(), list(torch.autograd.grad(output, leaves, towards, allow_unused=True))


def check_large(seed: int) -> bool:
    """Check one call, and return whether there was one to check."""
    rng = np.random.default_rng(seed)
    dtype = (torch.float32, torch.float32, torch.float64, torch.bfloat16)[rng.integers(4)]
    kernels = (None, *KERNELS, *SMALL["tiled"], *SMALL["row_blocks"])
    kernel = kernels[rng.integers(len(kernels))]
    call = draw_large(rng, dtype)
    if call is None:
        return False
    wanted = expected(call, np.arange(call.shape.q)).output
    towards = rng.normal(size=wanted.shape) if rng.random() < 0.5 else None
    output, found = gradients(call, dtype, kernel, towards)
    assert bool(output.isfinite().all()) or not np.isfinite(wanted).all(), (seed, call)
    if found and found[2] is not None and call.normalizer.name in WEIGHTS_UP_TO_1 and dtype != torch.bfloat16:
        assert bool((found[2].abs() <= 1.01 * np.abs(towards).sum()).all()), (seed, call)
    if not all(x is None or bool(x.isfinite().all()) for x in found):
        _, exact = gradients(call, torch.float64, "dense", towards)
        largest = torch.finfo(dtype).max / 4
        for x, y in zip(found, exact, strict=True):
            beyond = y is None or not bool((y.abs() < largest).all())
            assert x is None or beyond or bool(x.isfinite().all()), (seed, call)
    return True


@pytest.mark.thinned
@pytest.mark.parametrize("kernel", [None, *KERNELS])
@pytest.mark.parametrize("offset", [0, 1e2, 1e3, 1e5])
def test_gradients_of_values_sum_to_those_of_outputs_however_large_logits_are(
    kernel: str | None, offset: float
) -> None:
    torch.manual_seed(0)
    for q, k, mask in ((40, 40, None), (40, 300, masks.Causal()), (30, 40, masks.Lengths(torch.tensor([[40], [3]])))):
        query, key, towards = (torch.randn(2, 3, n, 8) for n in (q, k, q))
        value = torch.randn(2, 3, k, 8, requires_grad=True)
        at, product = qkv.Positions("end"), scores.ScaledDot()
        for score in (product, scores.ALiBi(product, 0.3), scores.Biased(product, torch.randn(q, k))):
            other = kernel == "linear" or (kernel == "fused" and score is not product)
            parts = {"score": score, "mask": mask, "positions": at, "kernel": None if other else kernel}
            output = qkv.attend(query + offset, key + offset, value, **parts)
            (found,) = torch.autograd.grad(output, value, towards)
            assert torch.allclose(found.sum(-2), towards.sum(-2), atol=2e-3)


@pytest.mark.parametrize("kernel", [None, "dense", "batched", "tiled", "row_blocks"])
def test_gradients_of_log_sum_exps_are_means_of_keys_however_large_logits_are(kernel: str | None) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 40, 8) + offset for offset in (1e4, 1e4, 0))
    query.requires_grad_()
    seen = qkv.observe(query, key, value, score=scores.Dot(), readouts=[readouts.LogSumExp()], kernel=kernel)
    (found,) = torch.autograd.grad(seen.readouts[0].sum(), query)
    assert bool((found >= key.amin(-2, keepdim=True) * 0.999).all())
    assert bool((found <= key.amax(-2, keepdim=True) * 1.001).all())


def test_large_queries_and_keys_give_finite_results() -> None:
    calls, least = (2600, 1800) if LONG else (20, 10)
    assert sum(map(check_large, range(calls))) > least
