"""The batched kernel."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.core.equation import attend_dense, bind_call
from qkv.core.tile import Tile
from qkv.kernels import BatchedKernel
from qkv.kernels.batched import additive
from qkv.kernels.batched.attention import pair_logits_of
from qkv.kernels.batched.mask_bias import mask_bias
from qkv.testing.kernels import KernelContract
from tests.effort import cases


class TestBatched(KernelContract):
    kernel = BatchedKernel()
    quadratic = True


def plain_logits(left: torch.Tensor, right: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(left[:, :, None] + right[:, None])
    return (hidden * vector[:, None, None]).sum(-1)


@settings(max_examples=cases(60))
@given(
    st.tuples(*(st.integers(1, 9) for _ in range(4))),
    st.booleans(),
    st.sampled_from([0.01, 1.0, 12.0, 300.0]),
    st.sampled_from([0.0, 50.0, -1e4]),
    st.sampled_from([64, 1 << 20]),
    st.sampled_from([0, 1 << 14]),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_logits_and_gradients_agree_with_tanh_at_every_range(
    lengths: tuple[int, int, int, int],
    shared: bool,
    size: float,
    shift: float,
    step: int,
    few: int,
    fast: bool,
    seed: int,
) -> None:
    batch, q, k, hidden = lengths
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(batch, q, hidden)) * size + shift, rng.normal(size=(batch, k, hidden)) - shift
    arrays = [left, right, rng.normal(size=(1 if shared else batch, hidden))]
    direction = torch.tensor(rng.normal(size=(batch, q, k)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(additive, "STEP_BYTES", step)
        patch.setattr(additive, "_FEW_ELEMENTS", {False: few, True: few})
        patch.setattr(additive, "_FEW_ROWS", min(few, 2))
        patch.setattr(additive, "has_fast_tanh", lambda reference: fast)
        for dtype, limit in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
            given_ = [torch.tensor(x, dtype=dtype) for x in arrays]
            exact = [x.double().clone().requires_grad_() for x in given_]
            found, wanted = additive.tanh_sums(*given_), plain_logits(*exact)
            assert found is not None
            assert not fast or found[2] is not None
            logits, *saved = found
            assert logits is not None
            scale = float(exact[2].detach().abs().sum()) + 1e-30
            assert float((logits - wanted).detach().abs().max()) <= limit * scale
            wanted.backward(direction)
            for _ in range(2):  # the graph may be kept for another backward pass
                gradients = additive.tanh_sum_gradients(given_[2], saved, direction.to(dtype), True)
                for x, y in zip(gradients, exact, strict=True):
                    assert x is not None
                    assert y.grad is not None
                    assert x.shape == y.grad.shape
                    assert float((x.double() - y.grad).abs().max()) <= limit * scale * (q + k) * batch * 10


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_projections_that_are_not_finite_have_no_expanded_logits(bad: float) -> None:
    for n in range(2):
        arrays = [torch.zeros(1, 2, 3), torch.zeros(1, 4, 3), torch.zeros(1, 3)]
        arrays[n].view(-1)[1] = bad
        assert additive.tanh_sums(*arrays) is None


def test_units_of_which_both_sides_are_far_from_0_have_no_expanded_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(additive, "_FEW_ELEMENTS", {False: 0, True: 0})
    monkeypatch.setattr(additive, "_FEW_ROWS", 0)
    monkeypatch.setattr(additive, "has_fast_tanh", lambda reference: False)
    left = torch.tensor([-60.0, 60.0]).view(1, 2, 1)
    assert additive.tanh_sums(left, -left, torch.ones(1, 1)) is None
    query = torch.cat([left[0], left[0]], 1)
    score = scores.Additive(torch.eye(2), torch.eye(2), None, torch.tensor([1.0, 2.0]))
    output = qkv.attend(query, -query, query, score=score, kernel="batched")
    wanted = attend_dense(query, -query, query, score=score, normalizer=normalizers.Softmax()).output
    torch.testing.assert_close(output, wanted)


DRAWN = (
    *("scaled dot", "dot", "bilinear", "softcap", "softcap of a projection", "bias", "bias per batch element"),
    *("two biases", "cap of a bias", "bias of a cap", "gated", "Laplace", "additive", "custom", "one logit per key"),
    *("Gaussian", "Gaussian with an array", "cosine", "additive with a bias", "additive per batch element"),
    *("projected additive", "projected Gaussian", "projected keys", "low rank", "per head", "cosine per head"),
    *("gate of both sides", "gate with weights of 0", "bias of a gate"),
)


def drawn_score(name: str, width: int, batch: tuple[int, ...], n: int, rng: np.random.Generator) -> scores.Score:
    def array(*shape: int) -> torch.Tensor:
        return torch.tensor(rng.normal(size=shape), requires_grad=True)

    dot = scores.ScaledDot()
    return {
        "scaled dot": dot,
        "dot": scores.Dot(),
        "bilinear": scores.Bilinear(array(width, width)),
        "softcap": scores.Softcap(dot, 2.0),
        "softcap of a projection": scores.Softcap(scores.Cosine(array().detach().abs().requires_grad_()), 0.5),
        "bias": scores.Biased(dot, array(n, n)),
        "bias per batch element": scores.Biased(dot, array(*batch, n, n)),
        "two biases": scores.ALiBi(scores.RelativePosition(dot, array(8)), 0.3),
        "cap of a bias": scores.Softcap(scores.Biased(dot, array(n, n)), 2.0),
        "bias of a cap": scores.Biased(scores.Softcap(dot, 2.0), array(n, n)),
        "gated": scores.Gated(array(width), array(width)),
        "Laplace": scores.Laplace(0.7),
        "additive": scores.Additive(array(3, width), array(3, width), None, array(3)),
        "Gaussian": scores.Gaussian(0.7),
        "Gaussian with an array": scores.Gaussian(array().detach().exp().requires_grad_()),
        "cosine": scores.Cosine(0.3),
        "additive with a bias": scores.Additive(None, array(width, width), array(width), array(width)),
        "additive per batch element": scores.Additive(
            array(*batch, 3, width), array(*batch, 3, width), array(*batch, 3), array(*batch, 3)
        ),
        "projected additive": scores.Projected(
            scores.Additive(array(3, 2), array(3, 2), None, array(3)), array(2, width), array(2, width)
        ),
        "projected Gaussian": scores.Projected(scores.Gaussian(0.7), array(2, width), array(2, width)),
        "projected keys": scores.Projected(dot, None, array(width, width)),
        "low rank": scores.Bilinear(array(width, 2), array(width, 2)),
        "per head": scores.Bilinear(array(*batch, width, width)),
        "cosine per head": scores.Cosine(array(*batch).detach().abs().add(0.5).requires_grad_()),
        "gate of both sides": scores.SeparableGate(array(*batch, width), array(width), array(*batch), 0.3),
        "gate with weights of 0": scores.Gated(0 * array(width), 0 * array(width), array()),
        "bias of a gate": scores.Biased(scores.Gated(array(*batch, width), array(width)), array(n, n)),
        "custom": scores.Custom(lambda q, k, s: s * (q @ k.mT).cos(), (array(),)),
        "one logit per key": scores.Custom(lambda q, k: k.sum(-1)[..., None, :]),
    }[name]


@pytest.mark.parametrize("name", DRAWN)
@settings(max_examples=cases(30))
@given(
    st.sampled_from([(), (1,), (3,), (2, 3), (1, 2)]),
    st.tuples(st.integers(1, 6), st.integers(1, 4)),
    st.tuples(*(st.booleans() for _ in range(3))),
    st.sampled_from(["all", "causal", "some"]),
    st.sampled_from(["softmax", "softmax of half", "sigmoid", "top-k", "sparsemax", "entmax"]),
    st.sampled_from([0.0, 0.0, 0.4]),
    st.integers(0, 2**31),
)
def test_output_and_two_derivatives_agree_with_the_dense_reference_for_broadcast_batches(
    name: str,
    batch: tuple[int, ...],
    lengths: tuple[int, int],
    broadcast: tuple[bool, bool, bool],
    masked: str,
    normalized: str,
    dropout: float,
    seed: int,
) -> None:
    (n, width), rng = lengths, np.random.default_rng(seed)
    ones = [(1,) * len(batch) if one else batch for one in broadcast]
    sides = [torch.tensor(rng.normal(size=(*own, n, width)), requires_grad=True) for own in ones]
    score = drawn_score(name, width, ones[0] if all(broadcast) else batch, n, rng)
    allowed = torch.tensor(rng.random((n, n)) < 0.6)
    mask = {"all": None, "causal": masks.Causal(), "some": masks.AllowedPairs(allowed)}[masked]
    normalizer = {
        "softmax": normalizers.Softmax(),
        "softmax of half": normalizers.Softmax(2.0),
        "sigmoid": normalizers.Sigmoid(-0.5),
        "top-k": normalizers.TopK(2),
        "sparsemax": normalizers.Sparsemax(),
        "entmax": normalizers.Entmax15(),
    }[normalized]
    options = {"score": score, "mask": mask, "normalizer": normalizer, "dropout": dropout, "seed": 5}
    shape = qkv.attend(*sides, **options, kernel="dense").shape
    direction = torch.tensor(rng.normal(size=shape), requires_grad=True)
    trained = [*sides, *(x for x in score.arrays() if isinstance(x, torch.Tensor) and x.requires_grad)]
    results = []
    for kernel in ("batched", "dense"):
        output = qkv.attend(*sides, **options, kernel=kernel)
        if not dropout:  # calls with a seed are not prepared
            options.pop("seed", None)
            output = qkv.attend(*sides, **options, kernel=kernel)
        found = torch.autograd.grad(output, trained, direction, create_graph=True, allow_unused=True)
        found = [torch.zeros_like(x) if g is None else g for x, g in zip(trained, found, strict=True)]
        square = sum((g * g).sum() for g in found)
        assert isinstance(square, torch.Tensor)
        again = torch.autograd.grad(square, [*trained, direction], allow_unused=True)
        found += [torch.zeros_like(x) if g is None else g for x, g in zip([*trained, direction], again, strict=True)]
        results.append([output, *found])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


def test_a_soft_cap_leaves_logits_of_minus_infinity_excluded() -> None:
    query, key = torch.full((1, 1), 1e20), torch.tensor([[-1e20], [0.0]])
    value = torch.tensor([[1.0], [2.0]])
    for score in (scores.Softcap(scores.Dot(), 3.0), scores.Softcap(scores.ScaledDot(), 3.0)):
        assert float(qkv.attend(query, key, value, score=score, kernel="batched")) == 2
    bias = scores.Softcap(scores.Biased(scores.Dot(), torch.tensor([[-math.inf, 0.0]])), 3.0)
    assert float(qkv.attend(query * 0, key, value, score=bias, kernel="batched")) == 2


def test_a_score_of_this_package_with_a_function_that_closes_over_a_parameter_is_refused() -> None:
    weight = torch.ones(4, requires_grad=True)
    sides = [torch.randn(3, 4) for _ in range(3)]
    for score in (
        scores.Custom(lambda q, k: (q * weight) @ k.mT),
        scores.Softcap(scores.Custom(lambda q, k: (q * weight) @ k.mT), 2.0),
        scores.Features(lambda x: x * weight),
    ):
        for kernel in ("batched", "dense"):
            with pytest.raises(qkv.errors.GradientError):
                qkv.attend(*sides, score=score, kernel=kernel, normalizer=normalizers.Softmax())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_queries_without_keys_have_finite_gradients_if_the_score_excludes_their_pairs_too(dropout: float) -> None:
    query = torch.tensor([[0.0], [100.0], [100.0]], requires_grad=True)
    key, value = torch.zeros(1, 1, requires_grad=True), torch.ones(1, 2, requires_grad=True)
    mask = masks.AllowedPairs(torch.tensor([[True], [False], [False]]))
    options = {"score": scores.Boxcar(3.0), "mask": mask, "dropout": dropout, "seed": 1, "kernel": "batched"}
    output = qkv.attend(query, key, value, **options)
    output.sum().backward()
    assert not output[1:].any()
    gradients = [x.grad for x in (query, key, value) if x.grad is not None]
    assert gradients
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_a_custom_score_may_use_each_tensor_of_the_call_wherever_it_comes_from() -> None:
    """Leaves, parts of one array of projections, the same tensor twice, and parameters that were computed."""
    whole = torch.randn(5, 12, requires_grad=True)
    query, key, value = (2 * whole).chunk(3, dim=-1)
    leaf = torch.randn(5, 4, requires_grad=True)
    parameters = (torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True).exp())
    score = scores.Custom(lambda q, k, a, b: (q * a) @ (k * b).mT, parameters)
    for sides in ((query, key, value), (leaf, leaf, leaf), (query.detach(), key, value)):
        output = qkv.attend(*sides, score=score, kernel="batched")
        leaves = [whole if sides[1] is key else leaf, parameters[0]]
        wanted = ((sides[0] * parameters[0]) @ (sides[1] * parameters[1]).mT).softmax(-1) @ sides[2]
        found, expected = (torch.autograd.grad(x.square().sum(), leaves, retain_graph=True) for x in (output, wanted))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("place", ["a leaf", "a part of the array of which the query is another", "values"])
def test_a_custom_score_that_closes_over_a_tensor_of_the_graph_is_refused_by_repeated_calls(place: str) -> None:
    query, value, other = (2 * torch.randn(3, 12, requires_grad=True)).chunk(3, dim=-1)
    hidden = {"a leaf": torch.randn(3, 4, requires_grad=True), "values": value}.get(place, other)
    score = scores.Custom(lambda q, k: (q * hidden[: q.shape[-2]]) @ k.mT)
    for _ in range(3):
        with pytest.raises(qkv.errors.GradientError):
            qkv.attend(query, torch.randn(3, 4), value, score=score, kernel="batched")
    hidden = hidden.detach()
    assert qkv.attend(query, torch.randn(3, 4), value, score=score, kernel="batched").requires_grad


@dataclass(frozen=True, eq=False)
class SwitchedMask(masks.Mask):
    """Mask of the keys in a list that may change between calls."""

    keys: list[bool]

    def allowed(self, tile: Tile, reference: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self.keys)[None, :]


def test_a_mask_of_the_user_is_computed_for_every_call() -> None:
    torch.manual_seed(0)
    keys = [True, True, False]
    query, key, value = (torch.randn(2, 3, 4) for _ in range(3))
    for score in (scores.ScaledDot(), scores.Laplace(), scores.Biased(scores.Dot(), torch.randn(3, 3))):
        options = {"score": score, "mask": SwitchedMask(keys)}
        for _ in range(3):
            keys.append(keys.pop(0))
            got = qkv.attend(query, key, value, **options, kernel="batched")
            wanted = qkv.attend(
                query, key, value, score=score, mask=masks.AllowedKeys(torch.tensor(keys)), kernel="dense"
            )
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize(("q", "k"), [(5, 9), (9, 5), (6, 6)])
def test_masks_and_position_biases_of_short_calls_are_laid_out_by_rows(q: int, k: int) -> None:
    score = scores.ALiBi(scores.ScaledDot(), 0.5)
    call = bind_call(
        torch.randn(2, q, 4), torch.randn(2, k, 4), torch.randn(2, k, 4), score=score,
        normalizer=normalizers.Softmax(), mask=masks.Causal("end"), positions=qkv.Positions(align="end"),
    )  # fmt: skip
    bias, _ = mask_bias(call)
    offset = pair_logits_of(call, 1.0).operands(call)[2]
    assert bias is not None
    assert offset is not None
    assert [x.stride()[-2:] for x in (bias, offset)] == [(k, 1), (k, 1)]


READOUTS = (
    *(readouts.Entropy(), readouts.ColumnSum(), readouts.LogSumExp(), readouts.TopWeights(2), readouts.Dense()),
    *(readouts.Rows((4, 1)), readouts.PooledMap(3), readouts.Heads(readouts.LogSumExp(), (1, 0))),
)
EMPTY = torch.tensor([[True, False, True, False, True, True, False]] * 2 + [[False] * 7] + [[True] * 7] * 3)


@pytest.mark.thinned
@pytest.mark.parametrize("batch", [((2, 3),) * 3, ((2, 3), (3,), (2, 1)), ((1, 2), (1, 1), (3, 2))], ids=str)
@pytest.mark.parametrize("mask", [None, masks.AllowedPairs(EMPTY), masks.Causal("end")], ids=str)
@pytest.mark.parametrize("normalizer", [normalizers.Softmax(0.7), normalizers.TopK(3), normalizers.Entmax15()], ids=str)
@pytest.mark.parametrize(
    "score", [scores.ScaledDot(), scores.Gaussian(1.3), scores.Softcap(scores.Dot(), 2.0)], ids=str
)
def test_readouts_and_their_derivatives_agree_with_the_dense_kernel(
    batch: tuple[tuple[int, ...], ...], mask: masks.Mask | None, normalizer: normalizers.Normalizer, score: scores.Score
) -> None:
    torch.manual_seed(0)
    lengths = zip(batch, (6, 7, 7), strict=True)
    sides = [torch.randn(*own, n, 4, dtype=torch.float64, requires_grad=True) for own, n in lengths]
    asked = [r for r in READOUTS if r.refuse(normalizer) is None and r.per_head.refuse(normalizer) is None]
    results = []
    for kernel in ("batched", "batched", "dense"):  # the second call has a cached plan
        seen = qkv.observe(*sides, score=score, normalizer=normalizer, mask=mask, readouts=asked, kernel=kernel)
        found = [seen.output, *(x for each in seen.readouts for x in (each if isinstance(each, tuple) else (each,)))]
        smooth = [x.masked_fill(x == -math.inf, 0) for x in found if x.is_floating_point()]
        loss = sum(((n + 1) * x.square()).sum() for n, x in enumerate(smooth))
        first = torch.autograd.grad(loss, sides, create_graph=True)
        found += [*first, *torch.autograd.grad(sum(x.square().sum() for x in first), sides)]
        with torch.no_grad():
            found.append(qkv.observe(*sides, score=score, mask=mask, readouts=asked[:1], kernel=kernel).readouts[0])
        results.append(found)
    for one, again, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(again, other, rtol=1e-8, atol=1e-9)


def test_gradients_of_readouts_alone_agree_with_the_dense_kernel() -> None:
    sides = [torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    found = []
    for kernel in ("batched", "dense"):
        (weights,) = qkv.observe(*sides, readouts=[readouts.Dense()], dropout=0.5, seed=1, kernel=kernel).readouts
        found.append(torch.autograd.grad(weights.square().sum(), sides[:2]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("threads", [1, 2])
def test_subnormal_weights_count_as_zero_and_keep_their_digits_outside(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several threads weights below 1e-30 count as 0, too: only the calling thread flushes subnormal numbers."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    query, key, value = 30 * torch.randn(2, 192, 16), torch.randn(2, 192, 16), torch.randn(2, 192, 16)
    seen = qkv.observe(query, key, value, readouts=[qkv.readouts.Dense()], kernel="batched")
    weights = seen.readouts[0]
    wanted = torch.softmax((query.double() @ key.double().mT) / 4, -1)
    assert float(weights[weights > 0].min()) > (1e-31 if threads > 1 else 1e-38)
    assert (weights - wanted).abs().max() < 1e-5
    assert float(torch.tensor(1e-40) * 1.0) > 0.0
