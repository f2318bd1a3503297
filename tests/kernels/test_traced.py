"""The programs that are generated for scores, run by Triton's interpreter on tensors of the CPU."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.nn import functional

import qkv
from qkv import masks, normalizers, scores
from qkv.kernels.triton.traced import kernel
from qkv.kernels.triton.traced.kernel import TracedScoreKernel
from qkv.plan import Kernel
from tests.kernels.drawn_scores import WIDTH, draw_score
from tests.kernels.interpreted import InterpretedContract, NoProgram, check_nothing_is_read_back, errors

KERNEL = TracedScoreKernel(interpreted=True, block=(16, 16))
Function = Callable[..., torch.Tensor]


@pytest.mark.long
class TestTraced(InterpretedContract):
    kernel = KERNEL
    in_place_of_products = "laplace"


def differences(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query[..., :, None, :] - key[..., None, :, :]


@dataclass(frozen=True)
class TracedCall:
    """A call with a score of a function, of which output and all gradients are computed."""

    function: Function
    shapes: tuple[tuple[int, ...], ...] = ()
    q: int = 9
    k: int = 21
    scale: float = 1.0
    offset: float = 0.0
    mask: masks.Mask | None = None
    temperature: float = 1.0
    seed: int = 0

    def run(self, kernel: Kernel | str, dtype: torch.dtype) -> list[torch.Tensor]:
        """Return the output and the gradients of query, key, value and parameters."""
        rng = np.random.default_rng(self.seed)
        arrays = [rng.normal(size=(2, n, w)) for n, w in ((self.q, WIDTH), (self.k, WIDTH), (self.k, 3))]
        arrays[0], arrays[1] = arrays[0] * self.scale + self.offset, arrays[1] * self.scale + self.offset
        arrays += [rng.normal(size=shape) for shape in self.shapes]
        given = rng.normal(size=(2, self.q, 3))
        rounded = dtype if dtype.itemsize < 4 else torch.float64
        tensors = [torch.tensor(x).to(rounded).to(dtype).requires_grad_() for x in arrays]
        output = qkv.attend(
            *tensors[:3],
            score=scores.Custom(self.function, tuple(tensors[3:])),
            normalizer=normalizers.Softmax(self.temperature),
            mask=self.mask,
            positions=qkv.Positions("end"),
            kernel=kernel,
        )
        gradients = torch.autograd.grad(output, tensors, torch.tensor(given).to(output.dtype), allow_unused=True)
        return [x.detach().double() if x is not None else torch.zeros(1) for x in (output, *gradients)]

    def check(self, message: str = "") -> None:
        """Assert that errors are at most twice those of the eager reference, and some roundings."""
        mine, eager = (errors(self.run, kernel, torch.float32, 0.1) for kernel in (KERNEL, "dense"))
        assert (mine <= 2 * eager + 1e-5).all(), (message, mine, eager)


def _weighted(query: torch.Tensor, key: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return -(differences(query, key).abs() * weight.exp()).sum(-1) * scale.exp()


def _gated(query: torch.Tensor, key: torch.Tensor, weight: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
    gate = torch.sigmoid(functional.silu(differences(query, key)) @ weight)
    return query @ key.mT * gate * heads[:, None, None]


def _matern(query: torch.Tensor, key: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    distance = torch.cdist(query, key) * scale.exp()
    return torch.log1p(distance + distance**2 / 3) - distance


def _in_place(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    logits = torch.einsum("bqd,bkd->bqk", query, key)
    logits.mul_(0.3).clamp_(-1, 1)
    return logits


def _anisotropic(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    difference = differences(query, key)
    return -(difference[..., 0] ** 2) - difference[..., -1].abs() * difference[..., 2].tanh()


def _hidden_units(query: torch.Tensor, key: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.relu((query @ first)[..., :, None, :] + (key @ first)[..., None, :, :]) @ second


def _chebyshev(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return -differences(query, key).abs().max(-1).values


def _cosine(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return 3 * functional.cosine_similarity(query[..., :, None, :], key[..., None, :, :], dim=-1)


NAMED: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "weighted L1 with a scale": (_weighted, ((WIDTH,), ())),
    "Minkowski of order 3": (lambda q, k: -torch.linalg.vector_norm(differences(q, k), ord=3, dim=-1), ()),
    "soft cap": (lambda q, k: 2 * torch.tanh(q @ k.mT / 2), ()),
    "gate of differences, scaled by head": (_gated, ((WIDTH,), (2,))),
    "Student's t": (lambda q, k: -2 * torch.log1p(torch.cdist(q, k) ** 2 / 3), ()),
    "Matern": (_matern, ((),)),
    "in place": (_in_place, ()),
    "hidden units": (_hidden_units, ((WIDTH, 5), (5,))),
    "Chebyshev": (_chebyshev, ()),
    "cosine": (_cosine, ()),
    "learned exponent": (lambda q, k, p: -((differences(q, k).abs() + 0.1) ** p.exp()).mean(-1), ((),)),
    "Huber": (lambda q, k: -functional.huber_loss(*torch.broadcast_tensors(q[..., :, None, :], k[..., None, :, :]),
                                                  reduction="none").sum(-1), ()),
}  # fmt: skip
LONG = (
    "weighted L1 with a scale",
    "soft cap",
    "Chebyshev",
    "cosine",
    "learned exponent",
    "Huber",
    "Minkowski of order 3",
    "Student's t",
)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in NAMED])
def test_a_score_agrees_with_the_reference(name: str) -> None:
    function, shapes = NAMED[name]
    seed = list(NAMED).index(name)
    keys = masks.AllowedKeys(np.random.default_rng(1).random((2, 21)) < 0.6)
    mask = (None, masks.Causal(), masks.Lengths(np.array([0, 13])), masks.Causal() & keys)[seed % 4]
    TracedCall(function, shapes, mask=mask, temperature=0.7, seed=seed).check()


def _halves(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    near = differences(query[..., :2], key[..., :2]).abs().sum(-1)
    return -near - differences(query[..., 2:], key[..., 2:]).square().sum(-1)


def _bounded(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return torch.where(differences(query, key).abs().sum(-1) < 4, query @ key.mT, -torch.inf)


def _counted(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    difference = differences(query, key)
    return ((difference > 0) & (difference < 1)).float().sum(-1) + query @ key.mT


def _layer(query: torch.Tensor, key: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    left, right = functional.linear(query, weight, bias), functional.layer_norm(key @ weight.mT, (3,))
    return -differences(left, right).abs().mean(-1)


LAYOUTS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "keys first": (lambda q, k: (k @ q.mT).mT.tanh(), ()),
    "features first": (lambda q, k: -(q.mT[..., :, :, None] - k.mT[..., :, None, :]).abs().sum(-3), ()),
    "a vector by einsum": (lambda q, k, w: torch.einsum("bqkc,c->bqk", differences(q, k).abs(), w), ((WIDTH,),)),
    "a vector by linear": (lambda q, k, w: functional.linear(differences(q, k).sin(), w).squeeze(-1), ((1, WIDTH),)),
    "a vector for each head": (lambda q, k, w: (differences(q, k).abs() * w[:, None, None]).sum(-1), ((2, WIDTH),)),
    "layers of both sides": (_layer, ((3, WIDTH), (3,))),
    "two numbers of features": (_halves, ()),
    "single features": (_anisotropic, ()),
    "one column": (lambda q, k: -(q[..., :, None, 0] - k[..., None, :, 0]).abs(), ()),
    "norms": (lambda q, k: (q.norm(dim=-1)[..., :, None] - k.norm(dim=-1)[..., None, :]).abs(), ()),
    "logits of -inf": (_bounded, ()),
    "comparisons": (_counted, ()),
    "a number made in the function": (lambda q, k: torch.where(q @ k.mT > 0, torch.tensor(0.3), q @ k.mT), ()),
}


@pytest.mark.long
@pytest.mark.parametrize("name", LAYOUTS)
def test_axes_are_recognized_wherever_they_stand(name: str) -> None:
    TracedCall(*LAYOUTS[name], q=5, k=18).check()


def check_drawn(seed: int) -> None:
    drawn, rng = draw_score(seed), np.random.default_rng(seed)
    q, k = (int(n) for n in rng.integers(1, 20, 2))
    mask = (None, masks.Causal(), masks.Lengths(rng.integers(0, k + 1, 2)))[seed % 3]
    TracedCall(drawn.function, tuple(drawn.shapes), q, k, mask=mask, seed=seed).check(drawn.text)


@pytest.mark.parametrize("seed", [3, 58])
def test_scores_drawn_at_random_agree_with_the_reference(seed: int) -> None:
    check_drawn(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 400, 20))
def test_many_scores_drawn_at_random_agree_with_the_reference(first: int) -> None:
    for seed in range(first, first + 20):
        check_drawn(seed)


@pytest.mark.parametrize(("scale", "offset"), [(30.0, 0.0), (1.0, 500.0)])
def test_errors_are_at_most_twice_those_of_the_eager_reference(scale: float, offset: float) -> None:
    """Also where one key has all of the weight, and where queries and keys are far from 0 but not from each other."""
    TracedCall(*NAMED["weighted L1 with a scale"], scale=scale, offset=offset).check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.long)])
def test_half_precision_is_accumulated_in_single_precision(dtype: torch.dtype) -> None:
    call = TracedCall(lambda q, k: -differences(q, k).abs().sum(-1), mask=masks.Causal())
    for x, y in zip(call.run(KERNEL, dtype), call.run("dense", dtype), strict=True):
        assert (x - y).abs().max() < 4 * torch.finfo(dtype).eps * y.abs().max()


def test_rows_without_keys_are_0_and_what_is_not_finite_reaches_only_who_reads_it() -> None:
    query, key, value = torch.randn(3, 20, 4)
    key[2], value[11, 2], value[15, 1] = torch.nan, torch.nan, -torch.inf
    query, key, value = (x.requires_grad_() for x in (query, key, value))
    some, none = (
        masks.Causal() & masks.AllowedKeys(torch.arange(20) > 2),
        masks.AllowedKeys(torch.zeros(20, dtype=torch.bool)),
    )
    for score, cases in ((scores.Laplace(1.0), (some, none)), (scores.Boxcar(3.0), (some,))):
        for mask in cases:
            run = {"score": score, "mask": mask, "positions": qkv.Positions("end")}
            wanted, got = (qkv.attend(query, key, value, **run, kernel=kernel) for kernel in ("dense", KERNEL))
            assert (got[:3] == 0).all()
            assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-5, equal_nan=True), score
            inputs = query, key, value
            mine, theirs = (torch.autograd.grad(x[:10].sum(), inputs, materialize_grads=True) for x in (got, wanted))
            assert all(torch.allclose(x, y, rtol=1e-4, atol=1e-5) for x, y in zip(mine, theirs, strict=True))
        if isinstance(score, scores.Laplace):
            assert qkv.attend(query, key, value, score=score, kernel=KERNEL).isnan().all()


def test_two_runs_are_equal_to_the_last_bit() -> None:
    call = TracedCall(_gated, ((WIDTH,), (2,)), q=5, k=17)
    first, second = call.run(KERNEL, torch.float32), call.run(KERNEL, torch.float32)
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_second_derivatives_and_gradients_of_closures_are_refused() -> None:
    x, weight = torch.randn(3, 4, requires_grad=True), torch.ones(4, requires_grad=True)
    output = qkv.attend(x, x, x, score=scores.Laplace(), kernel=KERNEL)
    with pytest.raises(qkv.errors.GradientError, match="differentiated once"):
        torch.autograd.grad(output.sum(), x, create_graph=True)
    closed = scores.Custom(lambda q, k: -(differences(q, k).abs() * weight).sum(-1))
    with pytest.raises(qkv.errors.GradientError, match="must not close over a tensor that requires a gradient"):
        qkv.attend(x, x, x, score=closed, kernel=KERNEL)


_factor = 1.0


def test_a_trace_follows_the_variables_of_a_function() -> None:
    """A number that a function names, a tensor that it closes over, and a function that is defined anew."""
    global _factor
    x, weight = torch.randn(3, 4), torch.ones(4)
    score = scores.Custom(lambda q, k: -_factor * (differences(q, k).abs() * weight).sum(-1))
    for _factor, element in ((1.0, 1.0), (2.0, 1.0), (2.0, 0.5)):
        weight[1] = element
        got, wanted = (qkv.attend(x, x, x, score=score, kernel=kernel) for kernel in (KERNEL, "dense"))
        assert torch.allclose(got, wanted, atol=1e-6)
    results = [
        qkv.attend(x, x, x, score=scores.Custom(lambda q, k: -n * differences(q, k).abs().sum(-1)), kernel=KERNEL)  # noqa: B023
        for n in (1.0, 3.0)
    ]
    assert not torch.allclose(*results)


REFUSED: dict[str, Function] = {
    "the operator _local_scalar_dense reads data": lambda q, k: q @ k.mT if float((0 * q).sum()) == 0 else -(q @ k.mT),
    "the operator atan of pairs has no translation": lambda q, k: torch.atan(q @ k.mT),
    "the operator cumsum of pairs has no translation": lambda q, k: q @ k.mT + (0 * (q @ k.mT)).cumsum(-1),
    "the operator rand_like draws random numbers": lambda q, k: q @ k.mT + torch.rand_like(q @ k.mT),
    "the operator _to_copy returns float64 numbers": lambda q, k: (q @ k.mT).double().exp().float(),
    "the operator amax reduces queries, keys or batch": lambda q, k: q @ k.mT - (0 * (q @ k.mT)).amax(-1, keepdim=True),
    "the operator mm multiplies the features of a pair by a": lambda q, k: (
        differences(q, k).relu() @ torch.ones(4, 8)
    ).sum(-1),
    "the operator slice of pairs has no translation": lambda q, k: differences(q, k)[..., 1:].sum(-1),
    "its logits do not depend on both": lambda q, k: q.sum(-1, keepdim=True),
    "depends on positions": lambda q, k: q @ k.mT + 0 * torch.arange(k.shape[-2]),
    "it uses the indices of an extremum": lambda q, k: differences(q, k).max(-1).indices * 1.0,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_score_without_a_translation_is_refused_by_name_and_planned_in_tiles(reason: str) -> None:
    shape = (2, 3, 4096, 4)
    options = {"score": scores.Custom(REFUSED[reason]), "library": "torch", "device": "H100"}
    with pytest.raises(qkv.errors.RefusedError, match=f"cannot be traced: .*{reason}"):
        qkv.explain(shape, shape, shape, kernel="triton_traced", **options)
    plan = qkv.explain(shape, shape, shape, **options)
    assert plan.kernel.name in ("tiled", "row_blocks")
    assert reason.split()[0] in dict(plan.refused)["triton_traced"]


def test_nothing_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "load_programs", lambda source: defaultdict(NoProgram))
    weights = torch.ones(4, requires_grad=True), torch.ones(2, requires_grad=True)
    for score in (scores.Custom(_gated, weights), scores.Laplace(torch.ones(2, requires_grad=True))):
        part = {"score": score, "normalizer": normalizers.Softmax(torch.ones(2))}
        check_nothing_is_read_back("triton_traced", part)


def test_scores_are_planned_for_gpus_with_what_was_traced_and_never_for_cpus() -> None:
    shape = (8, 16, 4096, 64)
    score = scores.Custom(lambda q, k: -differences(q, k).abs().sum(-1))
    for gradient in (False, True):
        options = {"score": score, "library": "torch", "gradient": gradient, "memory": "4 GiB"}
        plan = qkv.explain(shape, shape, shape, **options, dtype="bfloat16", device="cuda")
        assert plan.kernel.name == "triton_traced"
        assert "traced for each pair: sub, abs, sum (64 features), neg" in " ".join(str(plan).split())
        assert plan.cost.scratch < 4 * 2**30
        assert 0 < plan.cost.seconds < dict(plan.slower)["tiled"].seconds
        assert qkv.explain(shape, shape, shape, **options).kernel.name == "tiled"
    refused = {
        "an inner product, which PyTorch's operators": scores.Dot(),
        "the kernel 'triton_products' computes": scores.Gated(np.ones(64), np.ones(64)),
        "depends on positions": scores.ALiBi(scores.Laplace(), 0.5),
        "a number for each query or key": scores.Biased(scores.Laplace(), per_key=np.zeros(4096)),
    }
    for reason, other in refused.items():
        with pytest.raises(qkv.errors.RefusedError, match=reason):
            qkv.explain(shape, shape, shape, score=other, library="torch", device="H100", kernel="triton_traced")
