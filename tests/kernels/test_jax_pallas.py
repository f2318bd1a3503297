"""The Pallas programs for additive scores, evaluated on a CPU and lowered for GPUs and TPUs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import qkv
from qkv import masks, normalizers, scores
from qkv.kernels.jax_pallas.kernel import JaxPallasKernel
from tests.kernels.interpreted import InterpretedContract
from tests.kernels.lowered import lowered

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

KERNEL = JaxPallasKernel(block=16)


@pytest.mark.long
class TestPallas(InterpretedContract):
    kernel = KERNEL
    in_place_of_products = "additive"


def drawn(lengths: tuple[int, int], scale: float) -> tuple[list[np.ndarray], np.ndarray]:
    """Return queries, keys, values and the arrays of an additive score, and the gradient of the output."""
    rng = np.random.default_rng(sum(lengths))
    sides = [rng.normal(size=(2, n, 4)) * scale for n in lengths] + [rng.normal(size=(2, lengths[1], 6))]
    arrays = [rng.normal(size=shape) for shape in ((2, 4), (2, 4), (2,), (2,))]
    return [*sides, *arrays], rng.normal(size=(2, lengths[0], 6))


def options(mask: masks.Mask | None) -> dict[str, object]:
    return {"normalizer": normalizers.Softmax(0.7), "mask": mask, "positions": qkv.Positions("end")}


def reference(dtype: torch.dtype, lengths: tuple[int, int], mask: masks.Mask | None, scale: float) -> list[np.ndarray]:
    """Return the output and all gradients of a call by PyTorch, whose eager operations need no compilation."""
    arrays, given = drawn(lengths, scale)
    tensors = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in arrays]
    output = qkv.attend(*tensors[:3], score=scores.Additive(*tensors[3:]), **options(mask), kernel="dense")
    gradients = torch.autograd.grad(output, tensors, torch.tensor(given, dtype=dtype))
    return [x.detach().double().numpy() for x in (output, *gradients)]


def check(lengths: tuple[int, int], mask: masks.Mask | None, scale: float = 1.0) -> None:
    arrays, given = drawn(lengths, scale)

    def loss(*arrays):  # type: ignore[no-untyped-def]
        output = qkv.attend(*arrays[:3], score=scores.Additive(*arrays[3:]), **options(mask), kernel=KERNEL)
        return (output * given).sum(), output

    run = jax.jit(jax.grad(loss, argnums=tuple(range(7)), has_aux=True))
    gradients, output = run(*(jnp.asarray(x, "float32") for x in arrays))
    wanted, eager = (reference(dtype, lengths, mask, scale) for dtype in (torch.float64, torch.float32))
    for x, y, z in zip((output, *gradients), eager, wanted, strict=True):
        size = np.abs(z).max()
        assert np.abs(np.asarray(x) - z).max() <= 2 * np.abs(y - z).max() + 3e-6 * size


def test_output_and_gradients_are_as_exact_as_those_of_the_eager_reference() -> None:
    """With more queries than keys, so that rows have no keys, and with lengths that are no multiple of a block."""
    check((21, 18), masks.Causal() & masks.Keys(np.arange(18) % 3 != 0))


@pytest.mark.long
@pytest.mark.parametrize(
    ("lengths", "mask", "scale"),
    [
        ((17, 35), None, 1.0),
        ((17, 35), None, 60.0),  # exponentials of the projections would overflow
        ((5, 40), masks.Causal(), 1.0),
        ((20, 30), masks.Lengths(np.array([0, 17])), 1.0),
    ],
)
def test_errors_are_small_for_every_range_and_mask(
    lengths: tuple[int, int], mask: masks.Mask | None, scale: float
) -> None:
    check(lengths, mask, scale)


def test_a_key_of_nan_that_no_query_may_attend_to_reaches_no_gradient() -> None:
    """Neither through the rows that fill up a block, which would be allowed to attend to it."""
    (query, key, value, *parts), _ = drawn((5, 9), 1.0)
    key[:, 6] = np.nan
    score = scores.Additive(*(jnp.asarray(x, "float32") for x in parts))

    def loss(*sides):  # type: ignore[no-untyped-def]
        return qkv.attend(*sides, score=score, mask=masks.Causal("start"), kernel=KERNEL).sum()

    run = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    assert all(np.isfinite(x).all() for x in run(*(jnp.asarray(x, "float32") for x in (query, key, value))))


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_forward_and_backward_are_lowered(platform: str) -> None:
    from qkv.kernels.jax_pallas.call import _attention

    elements, q, k, units, width = 2, 256, 384, 4, 64
    shapes = (elements, q, units), (elements, k, units), (elements, units), (elements, k, width), (elements, q)
    backend, block = {"cuda": ("triton", 64), "tpu": ("mosaic_tpu", 128)}[platform]

    def loss(*arrays):  # type: ignore[no-untyped-def]
        return _attention()(block, k - q, backend, *arrays).sum()

    text = lowered(jax.grad(loss, argnums=(0, 1, 2, 3)), [*shapes, (elements, k)], "float32", platform)
    custom = {"cuda": "triton", "tpu": "tpu_custom_call"}[platform]
    assert text.count(f"@{custom}") + text.count(f'"{custom}') + text.count(f"{custom}(") >= 3, text[:2000]


def test_the_programs_are_planned_by_name_alone() -> None:
    shape = (16, 2048, 64)
    weights = np.zeros((64, 64))
    options = {"score": scores.Additive(weights, weights, None, np.zeros(64)), "library": "jax", "device": "H100"}
    assert qkv.explain(shape, shape, shape, **options).kernel.name == "jax_loops"
    plan = qkv.explain(shape, shape, shape, **options, kernel="pallas")
    assert "speed unmeasured" in str(plan)
    with pytest.raises(qkv.errors.RefusedError, match="is not an additive score"):
        qkv.explain(shape, shape, shape, **(options | {"score": None}), kernel="pallas")
