"""Calls under transforms of torch.func: the answers of one call for each element, in linear memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.errors import GradientError, OptionError, RefusedError, ShapeError
from qkv.testing.cases import MASKS, NORMALIZERS, SCORES, SHAPES, Case
from qkv.testing.libraries import Setting
from qkv.torch_bridge.closures import refers_to_transformed

# PyTorch compiles its own rules for forward mode with torch.jit.script.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

Tensor = torch.Tensor
_FLOAT64 = Setting("torch", "float64")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(4)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def dense(*sides: Tensor, **options: Any) -> Tensor:
    return qkv.attend(*sides, kernel="dense", **options)


# -- memory ----------------------------------------------------------------------------------------------


def test_the_memory_limit_refuses_a_dense_call_by_the_size_of_all_mapped_elements() -> None:
    x = torch.randn(64, 256, 8)

    def attend(x: Tensor) -> Tensor:
        return qkv.attend(x, x, x, kernel="dense", memory="8 MiB")

    attend(x[0])
    with pytest.raises(RefusedError, match="more than the 8 MiB allowed"):
        vmap(attend)(x)


# -- the order and nesting of transforms ------------------------------------------------------------------


def test_nested_vmap_maps_two_axes_in_any_order() -> None:
    query, key, value, lengths = draw(2, 3, 5, 4), draw(3, 6, 4), draw(2, 6, 4), torch.tensor([[1, 6, 3], [0, 2, 5]])

    def attend(query: Tensor, key: Tensor, value: Tensor, length: Tensor) -> Tensor:
        return qkv.attend(query, key, value, mask=masks.Lengths(length), kernel="tiled")

    inner = vmap(attend, in_dims=(0, 0, None, 0))
    got = vmap(inner, in_dims=(0, None, 0, 0))(query, key, value, lengths)
    other = vmap(vmap(attend, in_dims=(0, None, 0, 0)), in_dims=(1, 0, None, 1))(query, key, value, lengths)
    for i in range(2):
        for j in range(3):
            wanted = dense(query[i, j], key[j], value[i], mask=masks.Lengths(lengths[i, j]))
            torch.testing.assert_close(got[i, j], wanted)
            torch.testing.assert_close(other[j, i], wanted)


ORDERS: dict[str, Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]] = {
    "hessian": hessian,
    "jacrev of jacrev": lambda f: jacrev(jacrev(f)),
    "jacfwd of jacfwd": lambda f: jacfwd(jacfwd(f)),
    "jacrev of jacfwd": lambda f: jacrev(jacfwd(f)),
}
CALLS: dict[str, dict[str, Any]] = {
    "softmax, causal": {"mask": masks.Causal()},
    "cosine": {"score": scores.Cosine(0.7)},
    "laplace": {"score": scores.Laplace(1.5)},
    "sigmoid": {"normalizer": normalizers.Sigmoid()},
    "sparsemax": {"normalizer": normalizers.Sparsemax()},
    "entmax": {"normalizer": normalizers.Entmax(1.4)},
    "features": {"score": scores.Features()},
    "top-k of gaussian": {"score": scores.Gaussian(1.2), "normalizer": normalizers.TopK(2)},
}


@pytest.mark.thinned
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("call", CALLS)
def test_second_derivatives_agree_with_those_of_autograd_for_the_dense_kernel(call: str, order: str) -> None:
    query, value = draw(4, 3), draw(4, 2)

    def loss(query: Tensor, kernel: str | None = None) -> Tensor:
        return (qkv.attend(query, query + 0.3, value, kernel=kernel, **CALLS[call]) ** 3).sum()

    wanted = torch.autograd.functional.hessian(lambda x: loss(x, "dense"), query)
    torch.testing.assert_close(ORDERS[order](loss)(query), wanted)
    each = vmap(ORDERS[order](loss))(torch.stack([query, query.flip(0)]))
    torch.testing.assert_close(each[0], wanted)


@pytest.mark.parametrize("kernel", [None, "dense", "tiled", "row_blocks"])
def test_jvp_moves_every_input_and_the_arrays_of_parts(kernel: str | None) -> None:
    primals = draw(2, 5, 3), draw(2, 6, 3), draw(2, 6, 2), torch.tensor(1.1, dtype=torch.float64)
    tangents = tuple(map(torch.randn_like, primals))

    def attend(query: Tensor, key: Tensor, value: Tensor, bandwidth: Tensor, kernel: str | None = kernel) -> Tensor:
        return qkv.attend(query, key, value, score=scores.Gaussian(bandwidth), kernel=kernel)

    output, moved = jvp(attend, primals, tangents)
    torch.testing.assert_close(output, attend(*primals, kernel="dense"))
    step = 1e-5
    ahead, behind = ([x + s * t for x, t in zip(primals, tangents, strict=True)] for s in (step, -step))
    torch.testing.assert_close(
        moved, (attend(*ahead, kernel="dense") - attend(*behind, kernel="dense")) / (2 * step), rtol=1e-6, atol=1e-7
    )


def test_the_gradient_of_a_transform_reaches_ordinary_autograd() -> None:
    x, w = draw(3, 5, 4), draw(4, 4).requires_grad_()

    def penalty(kernel: str | None) -> Tensor:
        loss = lambda x: qkv.attend(x, x, x, score=scores.Bilinear(w), kernel=kernel).square().sum()  # noqa: E731
        return vmap(grad(loss))(x).square().sum()

    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(
        dense(leaf, leaf, leaf, score=scores.Bilinear(w)).square().sum(), leaf, create_graph=True
    )
    (wanted,) = torch.autograd.grad(slope.square().sum(), w)
    for kernel in (None, "tiled", "row_blocks"):
        (got,) = torch.autograd.grad(penalty(kernel), w)
        torch.testing.assert_close(got, wanted)


# -- arguments ---------------------------------------------------------------------------------------------


def test_readouts_have_the_mapped_axis_first() -> None:
    x = draw(3, 2, 6, 4)
    asked = [readouts.Entropy(), readouts.TopWeights(2), readouts.Heads(readouts.Dense(), (1,))]

    def observe(x: Tensor, kernel: str | None = None) -> Any:
        return qkv.observe(x, x, x, readouts=asked, kernel=kernel)

    def arrays(x: Tensor) -> Any:
        found = observe(x)
        assert found.plan.kernel.name in str(found.plan)
        return found.output, tuple(found.readouts)

    got = vmap(arrays)(x)
    for n in range(3):
        wanted = observe(x[n], "dense")
        torch.testing.assert_close(got[0][n], wanted.output)
        for mine, theirs in zip(got[1], wanted.readouts, strict=True):
            mine, theirs = (y if isinstance(y, tuple) else (y,) for y in (mine, theirs))
            for a, b in zip(mine, theirs, strict=True):
                torch.testing.assert_close(a[n], b)


def test_functions_that_refer_to_mapped_tensors_are_computed_by_a_kernel_that_can_be_traced() -> None:
    x, weights = draw(3, 5, 4), draw(3)

    def attend(x: Tensor, weight: Tensor) -> Tensor:
        return qkv.attend(x, x, x, score=scores.Custom(lambda q, k: q @ k.mT * weight))

    wanted = torch.stack([attend(x[n], weights[n]) for n in range(3)])
    torch.testing.assert_close(vmap(attend)(x, weights), wanted)
    # The kernels would give 0, because the function is differentiated by its arguments alone.
    with pytest.raises(GradientError, match="close over"):
        grad(lambda weight: attend(x[0], weight).sum())(weights[0])


def test_no_part_of_the_library_is_taken_for_one_that_refers_to_other_tensors() -> None:
    for name, table in (("score", SCORES), ("normalizer", NORMALIZERS), ("mask", MASKS)):
        for each in table:
            for shape in SHAPES:
                call = Case(**{name: each}, shape=shape).call()
                mask = None if call.mask is None else _FLOAT64.part(call.mask)
                parts = _FLOAT64.part(call.score), _FLOAT64.part(call.normalizer), mask, call.positions
                assert not refers_to_transformed(*map(_FLOAT64.array, (call.query, call.key)), parts), (each, shape)


def test_wrong_shapes_are_named_without_the_mapped_axis() -> None:
    with pytest.raises(ShapeError, match="got widths 4 and 3"):
        vmap(lambda q, k: qkv.attend(q, k, k))(draw(2, 5, 4), draw(2, 5, 3))


# -- random numbers ------------------------------------------------------------------------------------------

RANDOM: dict[str, dict[str, Any]] = {"dropout": {"dropout": 0.5}, "sample": {"normalizer": normalizers.Sample()}}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_follow_the_randomness_of_vmap(name: str) -> None:
    x = draw(1, 40, 4).expand(3, 40, 4)

    def attend(x: Tensor, **options: Any) -> Tensor:
        return qkv.attend(x, x, x, **RANDOM[name], **options)

    with pytest.raises(OptionError, match=r'seed must be given within torch\.func\.vmap\(randomness="error"\)'):
        vmap(attend)(x)
    same = vmap(attend, randomness="same")(x)
    torch.testing.assert_close(same[0], same[2])
    assert not torch.equal(same, vmap(attend, randomness="same")(x))
    different = vmap(attend, randomness="different")(x)
    assert not torch.equal(different[0], different[1])
    unmapped = vmap(lambda _: attend(x[0]), randomness="different")(torch.arange(3))
    assert not torch.equal(unmapped[0], unmapped[1])
    for randomness in ("error", "same", "different"):
        seeded = vmap(lambda x: attend(x, seed=7), randomness=randomness)(x)
        torch.testing.assert_close(seeded, torch.stack([attend(x[0], seed=7)] * 3))


def test_backward_draws_the_numbers_of_forward() -> None:
    x = draw(3, 8, 4)

    def loss(value: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        output = qkv.attend(x, x, value, dropout=0.5)
        return output.sum(), output.sum()

    slope, output = vmap(grad(loss, has_aux=True), randomness="different")(x, x)
    # The output is linear in the value.
    torch.testing.assert_close((slope * x).sum((-2, -1)), output)


def test_a_seed_that_differs_between_mapped_elements_is_refused() -> None:
    x = draw(2, 4, 3)
    with pytest.raises(OptionError, match="seed must be one integer for all elements"):
        vmap(lambda x, seed: qkv.attend(x, x, x, dropout=0.5, seed=seed))(x, torch.arange(2))


# -- modules -------------------------------------------------------------------------------------------------


def test_forward_mode_beyond_the_memory_budget_is_refused_and_linear_attention_is_not() -> None:
    x = torch.randn(1, 600, 8)

    def slope(**options: Any) -> Any:
        return torch.func.jvp(lambda q: qkv.attend(q, q, q, memory="16 MiB", **options), (x,), (x,))[1]

    with pytest.raises(RefusedError, match=r"memory must be at least .* torch\.func\.jvp .* Increase memory, or use"):
        slope()
    assert slope(score=scores.Features(), normalizer=normalizers.Sum()).shape == x.shape
    x = x[:, :60]
    assert slope().shape == x.shape
