"""Gated products by tiles, compared with the sigmoid in float64, also where exponentials overflow."""

import pytest

import qkv
from qkv import normalizers, scores
from qkv.core.equation import attend_dense
from qkv.kernels.tiled.logits.gated import bounded_exponentials

torch = pytest.importorskip("torch")

RANGES = {
    "moderate": ((-3, 3), (-3, 3)),
    "queries wide": ((-1000, 1000), (-15, 15)),
    "keys wide": ((-15, 15), (-1000, 1000)),
    "far from 0": ((497, 503), (-503, -497)),
    "far, and wide": ((-1500, 500), (480, 510)),
    "as far as is cut off": ((-100, 100), (-20, 20)),
    "both wide": ((-1000, 1000), (-1000, 1000)),
}


def problem(name, dtype, batch=()):
    """Queries, keys, values and weights with given arguments of the gate."""
    torch.manual_seed(0)
    (a, b), (c, d) = RANGES[name]
    query, key = torch.randn(*batch, 70, 4, dtype=dtype), torch.randn(*batch, 90, 4, dtype=dtype)
    query[..., 0] = torch.linspace(a, b, 70, dtype=dtype)[torch.randperm(70)]
    key[..., 1] = torch.linspace(c, d, 90, dtype=dtype)[torch.randperm(90)]
    # The gate sees one column of each side; the product sees the others.
    query[..., 1] = key[..., 0] = 0.0
    weights = torch.eye(4, dtype=dtype)[:2]
    return [query, key, torch.randn(*batch, 90, 3, dtype=dtype), weights[0].clone(), weights[1].clone()]


def answers(attend, arrays, **parts):
    """The output, and the gradients of all arrays."""
    leaves = [x.clone().requires_grad_() for x in arrays]
    parts = {"normalizer": normalizers.Softmax(), **parts}
    output = attend(*leaves[:3], score=scores.Gated(*leaves[3:]), **parts)
    towards = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).reshape(output.shape)
    gradients = torch.autograd.grad(output, leaves, towards.to(output.dtype))
    # Sums of the other side's large numbers, which cancel: they say nothing of the gate.
    gradients[0][..., 1] = gradients[1][..., 0] = 0.0
    return [output.detach(), *gradients]


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("scale", [1.0, 30.0], ids=["bounded", "unbounded"])
def test_output_and_gradients_are_those_of_the_sigmoid_at_every_range(name, dtype, scale):
    arrays = problem(name, dtype)
    for side in arrays[:2]:
        side[:, 2:] *= scale**0.5
    got = answers(lambda *x, **p: qkv.attend(*x, **p, kernel="tiled"), arrays)
    wanted = answers(lambda *x, **p: attend_dense(*x, **p).output, [x.double() for x in arrays])
    most = 2e-5 if dtype == torch.float32 else 1e-11
    for mine, theirs in zip(got, wanted, strict=True):
        assert (mine.double() - theirs).abs().max() <= most * max(1.0, float(theirs.abs().max()))


@pytest.mark.parametrize("name", RANGES)
def test_exponentials_are_used_if_one_side_has_a_small_range(name):
    query, key, *_ = problem(name, torch.float32)
    left, right = query[:, :1], key[:, 1:2]
    found = bounded_exponentials(left, right)
    assert (found is None) == (name == "both wide")
    if found is not None:
        divisor = 1 + found[0] * found[1].mT
        assert divisor.isfinite().all()
        wanted = torch.sigmoid(left.double() + right.double().mT)
        assert (1 / divisor.double() - wanted).abs().max() < 3e-7


def test_nan_and_empty_sides_use_the_sigmoid():
    some, nothing = torch.zeros(3, 1), torch.zeros(0, 1)
    assert bounded_exponentials(some, torch.tensor([[torch.nan]])) is None
    assert bounded_exponentials(torch.tensor([[torch.nan], [0.0]]), some) is None
    assert bounded_exponentials(torch.full((2, 1), torch.inf), torch.full((2, 1), -torch.inf)) is None
    assert bounded_exponentials(some, nothing) is None
    assert bounded_exponentials(nothing, some) is None


def test_plan_reports_the_guard_on_the_gate():
    for name, said in (("moderate", "moderate"), ("both wide", "wide")):
        query, key, value, *weights = problem(name, torch.float32)
        seen = qkv.observe(query, key, value, score=scores.Gated(*weights), kernel="tiled", readouts=[])
        assert f"gates of {said} range" in str(seen.plan)
