"""Additive scores by tiles, compared with tanh in float64, also where exponentials overflow."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from qkv.kernels.runtime.faster_ops import FasterOps  # noqa: E402
from qkv.kernels.runtime.workspace import Workspace  # noqa: E402
from qkv.kernels.tiled.logits import additive  # noqa: E402
from qkv.kernels.tiled.logits.additive import EXPONENT_RANGES, prepare_units  # noqa: E402

INF, NAN = float("inf"), float("nan")


def sides(name, q=53, k=71, h=7, dtype=torch.float32):
    """Return both sides and v in the range with this name."""
    draw = torch.Generator().manual_seed(5)
    left, right, vector = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((q, h), (k, h), (h,)))
    if name == "offset":
        left, right = left + 200, right - 200
    elif name == "offset the same way":
        left, right = left + 200, right + 200
    elif name == "thousand":
        left, right = (left * 700).clamp(-1000, 1000), (right * 700).clamp(-1000, 1000)
    elif name == "one side huge":
        left = left * 1000
    elif name == "one unit wide":
        left[:, 2], right[:, 2] = left[:, 2] * 300, right[:, 2] * 300
    elif name == "zeros":
        left, right = left * 0, right * 0
    elif name in ("just within", "just beyond"):
        edge = EXPONENT_RANGES[dtype.itemsize].half_range * (0.999 if name == "just within" else 1.001)
        left, right = (x / x.abs().amax(dim=0) * edge for x in (left, right))
        for unit in range(h):  # both signs of both sides, so that centering changes nothing
            left[:2, unit] = right[:2, unit] = torch.tensor([edge, -edge])
    elif name == "huge vector":
        vector = vector * 1e30
    elif name == "tiny vector":
        vector = vector * 1e-30
    elif name != "plain":
        left, right = left * float(name), right * float(name)
    return left.to(dtype), right.to(dtype), vector.to(dtype)


def exactly(left, right, vector, d_logits):
    """Logits and the three gradients, in float64."""
    leaves = [x.double().requires_grad_() for x in (left, right, vector)]
    found = torch.tanh(leaves[0][:, None] + leaves[1][None]) @ leaves[2]
    return found.detach(), torch.autograd.grad(found, leaves, d_logits.double())


def logits_of(prepared, rows=(0, 53), cols=(0, 71), workspace=None, dtype=torch.float32):
    """The logits of a tile."""
    out = torch.full((rows[1] - rows[0], cols[1] - cols[0]), prepared.constant, dtype=dtype)
    for units in prepared.terms:
        units.add_logits(rows, cols, out, workspace or Workspace())
    return out


def by_tiles(left, right, vector, d_logits, rows=20, cols=32):
    """Return the same from the kernel, in tiles whose sizes do not divide the lengths."""
    prepared, workspace = prepare_units(left, right, vector), Workspace()
    found = left.new_full((len(left), len(right)), NAN)
    to = tuple(torch.zeros_like(x) for x in (left, right, vector))
    for i in range(0, len(left), rows):
        for j in range(0, len(right), cols):
            r, c = (i, min(i + rows, len(left))), (j, min(j + cols, len(right)))
            found[slice(*r), slice(*c)] = logits_of(prepared, r, c, workspace, left.dtype)
            for units in prepared.terms:
                units.add_gradient(r, c, d_logits[slice(*r), slice(*c)].contiguous(), *to, workspace)
    return found, to, prepared


RANGES = [
    *("plain", "5", "15", "offset", "offset the same way", "thousand", "one side huge", "one unit wide"),
    *("zeros", "just within", "just beyond", "huge vector", "tiny vector", "0.001"),
]


def assert_agrees(left, right, vector, eps):
    d_logits = torch.randn(len(left), len(right), generator=torch.Generator().manual_seed(6)).to(left.dtype)
    found, to, prepared = by_tiles(left, right, vector, d_logits)
    wanted, gradients = exactly(left, right, vector, d_logits)
    total = vector.double().abs().sum()
    assert (found - wanted).abs().max() <= 2e-6 * eps * total
    # What a gradient is made of: |dL/dS| times |v| at most, for each side and unit.
    scales = (
        d_logits.double().abs().sum(dim=1).max() * vector.double().abs().max(),
        d_logits.double().abs().sum(dim=0).max() * vector.double().abs().max(),
        d_logits.double().abs().sum(),
    )
    for new, old, scale in zip(to, gradients, scales, strict=True):
        assert (new - old).abs().max() <= 1e-6 * eps * scale
    return prepared


@pytest.mark.parametrize("name", RANGES)
def test_logits_and_gradients_are_those_of_tanh_at_every_range(name):
    assert_agrees(*sides(name), eps=1.0)


@pytest.mark.parametrize("name", RANGES)
def test_double_precision_keeps_its_digits_at_every_range(name):
    assert_agrees(*sides(name, dtype=torch.float64), eps=1e-8)


@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("name", ["plain", "15", "thousand", "one unit wide"])
def test_units_beyond_exponentials_are_exact_by_tanh_and_by_sigmoid(name, sigmoid, monkeypatch):
    monkeypatch.setitem(EXPONENT_RANGES, 4, replace(EXPONENT_RANGES[4], half_range=1.0))
    monkeypatch.setattr(additive, "faster_ops", lambda like: FasterOps(exp2=False, sigmoid_tanh=sigmoid, onednn=False))
    prepared = assert_agrees(*sides(name), eps=1.0)
    assert ("one sigmoid for each pair" if sigmoid else "one tanh for each pair") in prepared.note


def test_a_tile_cut_into_blocks_for_the_cache_gives_the_same(monkeypatch):
    whole = by_tiles(*sides("thousand"), torch.ones(53, 71), rows=53, cols=71)
    monkeypatch.setattr(additive, "ELEMENTWISE_BYTES", 0)  # one row to a block
    cut = by_tiles(*sides("thousand"), torch.ones(53, 71), rows=53, cols=71)
    for one, other in zip((whole[0], *whole[1]), (cut[0], *cut[1]), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("plain", 1),
        ("offset", 1),
        ("one side huge", 1),
        ("just within", 1),
        ("one unit wide", 2),
        ("just beyond", 1),
        ("thousand", 1),
    ],
)
def test_the_guard_is_by_unit_and_only_where_both_sides_are_wide(name, terms):
    prepared = prepare_units(*sides(name))
    assert len(prepared.terms) == terms
    if name in ("just beyond", "thousand"):
        assert prepared.note.startswith("7 of 7 hidden units: one ")
    elif terms == 1:
        assert prepared.note.startswith("7 of 7 hidden units: one division")
    else:
        assert prepared.note.startswith("6 of 7 hidden units: one division")
        assert "1 of 7 hidden units: one " in prepared.note


@pytest.mark.parametrize("name", ["plain", "thousand"])
def test_a_nan_stays_in_its_row_and_its_column(name):
    left, right, vector = sides(name)
    left[3, 1] = right[5, 0] = NAN
    found, _, prepared = by_tiles(left, right, vector, torch.zeros(53, 71))
    wrong = found.isnan()
    assert wrong[3].all()
    assert wrong[:, 5].all()
    wrong[3] = wrong[:, 5] = False
    assert not wrong.any()
    clean = torch.tanh(left[:, None].double() + right[None].double()) @ vector.double()
    assert torch.allclose(found.double(), clean, atol=2e-5, equal_nan=True)
    assert ("one division" in prepared.note) == (name == "plain")


@pytest.mark.parametrize("name", ["plain", "15", "one unit wide"])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_infinite_side_saturates_and_harms_no_other_pair(name, sign):
    left, right, vector = sides(name)
    left[3, 1], left[4], right[5, 0] = sign * INF, -sign * INF, sign * INF
    found = logits_of(prepare_units(left, right, vector))
    wanted = torch.tanh(left[:, None].double() + right[None].double()) @ vector.double()
    assert wanted.isnan().sum() == 1  # +Inf − Inf, at (4, 5)
    assert torch.allclose(found.double(), wanted, atol=2e-5, equal_nan=True)


def test_saturated_gradients_keep_their_relative_digits():
    left, right = torch.tensor([[5.0]]), torch.tensor([[4.0]])
    found = by_tiles(left, right, torch.ones(1), torch.ones(1, 1))[1][0]
    # In float32 1 − tanh² is 0 at 9: this is 4 e^{−18}.
    assert found.item() == pytest.approx(6.09199e-08, rel=1e-5)


def test_the_gradient_of_a_tile_without_queries_is_zero():
    left, right, vector = sides("plain", q=0)
    to = tuple(torch.zeros_like(x) for x in (left, right, vector))
    (units,) = prepare_units(left, right, vector).terms
    units.add_gradient((0, 0), (0, len(right)), torch.zeros(0, len(right)), *to, Workspace())
    assert not any(x.any() for x in to)
