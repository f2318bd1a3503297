"""Grouped-query attention in qkv.attend: equal to keys repeated for each query head, without copies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.core.equation import attend_dense
from qkv.core.positions import Positions
from qkv.errors import ShapeError
from qkv.testing.libraries import LIBRARIES, settings_of

RNG = np.random.default_rng(0)


def arrays(batch, heads, key_heads, q, k, dtype="float64"):
    draw = np.random.default_rng(heads * 100 + key_heads * 10 + q)
    return (
        draw.normal(size=(*batch, heads, q, 4)).astype(dtype),
        draw.normal(size=(*batch, key_heads, k, 4)).astype(dtype),
        draw.normal(size=(*batch, key_heads, k, 3)).astype(dtype),
    )


def repeated(query, key, value):
    times = query.shape[-3] // key.shape[-3]
    return query, np.repeat(key, times, axis=-3), np.repeat(value, times, axis=-3)


@settings(deadline=None)
@given(
    library=st.sampled_from(LIBRARIES),
    batch=st.sampled_from([(), (2,), (1, 2)]),
    key_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    q=st.integers(0, 5),
    k=st.integers(0, 6),
    part=st.integers(0, 8),
)
def test_equals_keys_repeated_for_each_query_head(library, batch, key_heads, group, q, k, part):
    heads = key_heads * group
    sides = arrays(batch, heads, key_heads, q, k)
    all_heads = (*batch, heads)
    draw = np.random.default_rng(part)
    slopes, starts = draw.uniform(size=(1,) * len(batch) + (heads,)), draw.integers(0, 3, size=all_heads)
    lengths = draw.integers(0, k + 1, size=(*batch, 1))
    options = [
        {},
        {"mask": masks.Causal(), "score": scores.ALiBi(scores.Dot(), slopes), "positions": Positions(align="end")},
        {"mask": masks.AllowedPairs(draw.random((*all_heads, q, k)) < 0.6)},
        {"normalizer": normalizers.Softmax(draw.uniform(0.5, 2, size=all_heads))},
        {"mask": masks.Lengths(lengths), "normalizer": normalizers.Sparsemax()},
        {"mask": masks.Custom(lambda q, k: k <= q), "positions": Positions(query_start=starts)},
        {"score": scores.Gaussian(0.7), "mask": masks.AllowedKeys(draw.random((*batch, 1, k)) < 0.6)},
        {
            "score": scores.Dot(),
            "normalizer": normalizers.TopK(2),
            "mask": masks.Lengths(draw.integers(0, k + 1, all_heads)),
        },
        {"score": scores.Biased(scores.Dot(), draw.normal(size=k)), "normalizer": normalizers.Sigmoid()},
    ][part]
    (setting,) = settings_of((library,), ("float64" if library != "jax" else "float32",))

    def convert(x):
        return setting.array(x) if x.dtype.kind == "f" else x

    own = {name: x.map_arrays(convert) for name, x in options.items()}
    with setting.active():
        got = qkv.attend(*(setting.array(x) for x in sides), enable_gqa=True, **own)
    wanted = attend_dense(
        *repeated(*sides), **({"score": scores.ScaledDot(), "normalizer": normalizers.Softmax()} | options)
    ).output
    assert tuple(got.shape) == (*batch, heads, q, 3)
    assert np.abs(np.asarray(got) - wanted).max(initial=0) < (1e-12 if library != "jax" else 1e-5)


def test_few_queries_that_share_keys_become_rows_of_one_head():
    def rows(q, **options):
        plan = qkv.explain((1, 8, q, 4), (1, 2, 9, 4), (1, 2, 9, 4), enable_gqa=True, **options)
        return plan.requested.axes.q

    assert rows(1) == 4
    assert rows(3, mask=masks.Lengths(5)) == 12
    assert rows(1, mask=masks.Lengths(RNG.integers(1, 9, (1, 8)))) == 1
    assert rows(2, mask=masks.Causal(), positions=Positions(align="end")) == 2
    assert rows(2, score=scores.Biased(scores.Dot(), RNG.normal(size=(2, 9)))) == 2
    assert rows(2, dropout=0.1) == 2
    assert rows(100) == 100


def test_a_graph_of_grouped_heads_serves_any_number_of_queries():
    torch = pytest.importorskip("torch")

    class Attend(torch.nn.Module):
        def forward(self, query, key, value):
            return qkv.attend(query, key, value, enable_gqa=True)

    few, many = ([torch.randn(1, heads, n, 4) for heads, n in ((8, q), (2, 9), (2, 9))] for q in (3, 100))
    queries = torch.export.Dim("queries", min=2, max=512)
    program = torch.export.export(Attend(), tuple(few), dynamic_shapes={"query": {2: queries}, "key": {}, "value": {}})
    for sides in (few, many):
        torch.testing.assert_close(program.module()(*sides), qkv.attend(*sides, enable_gqa=True))


def test_gradients_equal_those_of_repeated_keys():
    torch = pytest.importorskip("torch")
    leaves = [torch.tensor(x, requires_grad=True) for x in arrays((2,), 6, 2, 9, 9)]
    bias = torch.tensor(RNG.normal(size=(2, 6, 9, 9)), requires_grad=True)
    query, key, value = leaves
    got = torch.autograd.grad(qkv.attend(*leaves, enable_gqa=True).square().sum(), leaves)
    alone = torch.nn.functional.scaled_dot_product_attention(*leaves, enable_gqa=True)
    for mine, theirs in zip(got, torch.autograd.grad(alone.square().sum(), leaves), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    for kernel in ("dense", "tiled", None):
        score = scores.Biased(scores.ScaledDot(), bias)
        got = qkv.attend(query, key, value, score=score, mask=masks.Causal(), enable_gqa=True, kernel=kernel)
        wanted = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, bias.masked_fill(~torch.ones(9, 9, dtype=torch.bool).tril(), -torch.inf), enable_gqa=True
        )
        cotangent = torch.randn(got.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        ours = torch.autograd.grad(got, [*leaves, bias], cotangent)
        theirs = torch.autograd.grad(wanted, [*leaves, bias], cotangent)
        assert max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) < 1e-12


def test_keys_are_not_copied_on_the_fused_kernel():
    pytest.importorskip("torch")
    plan = qkv.explain(
        (1, 8, 512, 64), (1, 2, 512, 64), (1, 2, 512, 64), library="torch", mask=masks.Causal(), enable_gqa=True
    )
    assert plan.kernel.name == "fused"
    assert plan.requested.axes.key == (1, 2, 1, 512, 64)
    assert plan.requested.axes.query == (1, 2, 4, 512, 64)


def test_readouts_have_one_axis_of_heads_and_heads_can_be_selected():
    sides = arrays((2,), 6, 2, 5, 7)
    wanted = attend_dense(*repeated(*sides), score=scores.ScaledDot(), normalizer=normalizers.Softmax()).weights
    readout = [readouts.Dense(), readouts.TopWeights(2), readouts.ColumnSum()]
    dense, top, columns = qkv.observe(*sides, readouts=readout, enable_gqa=True).readouts
    assert np.abs(dense - wanted).max() < 1e-12
    assert top.weights.shape == top.keys.shape == (2, 6, 5, 2)
    assert np.abs(columns - wanted.sum(axis=-2)).max() < 1e-12
    chosen = qkv.observe(*sides, readouts=[readouts.Heads(readouts.Dense(), (5, 1))], enable_gqa=True).readouts[0]
    assert np.abs(chosen - wanted[:, [5, 1]]).max() < 1e-12


def test_dropout_is_that_of_repeated_keys():
    sides = arrays((2,), 6, 2, 5, 7)
    got = qkv.attend(*sides, enable_gqa=True, dropout=0.4, seed=3)
    assert np.abs(got - qkv.attend(*repeated(*sides), dropout=0.4, seed=3)).max() < 1e-12


def test_torch_compile_traces_grouped_heads():
    torch = pytest.importorskip("torch")
    sides = [torch.tensor(x) for x in arrays((2,), 6, 2, 5, 7)]
    slopes = torch.rand(1, 6, dtype=torch.float64)

    def call(query, key, value, slopes):
        score = scores.ALiBi(scores.Dot(), slopes)
        return qkv.attend(query, key, value, score=score, positions=Positions(align="end"), enable_gqa=True)

    compiled = torch.compile(call, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(*sides, slopes), call(*sides, slopes), atol=1e-12)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((5, 4), (2, 5, 4), (2, 5, 4)), r"query must have an axis of heads for enable_gqa=True, got shape \(5, 4\)"),
        (((8, 5, 4), (3, 5, 4), (3, 5, 4)), r"query heads must be a multiple of the 3 key heads .*got 8"),
        (((8, 5, 4), (2, 5, 4), (4, 5, 4)), r"key and value must have the same number of heads .*got 2 and 4"),
    ],
)
def test_numbers_of_heads_that_do_not_match_are_refused(shapes, words):
    with pytest.raises(ShapeError, match=words):
        qkv.attend(*(np.zeros(shape) for shape in shapes), enable_gqa=True)
    with pytest.raises(ShapeError, match=words):
        qkv.explain(*shapes, enable_gqa=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mask": masks.AllowedKeys(np.ones((1, 2, 5), bool))}, r"axes \(1, 4\) of the call, got \(1, 2\)"),
        ({"mask": masks.AllowedPairs(np.ones((1, 4, 3, 7), bool))}, r"got shape \(1, 4, 3, 7\)"),
        ({"normalizer": normalizers.Softmax(np.ones(4))}, r"axes \(1, 4\) of the call, got batch axes \(4,\)"),
        ({"positions": Positions(query_start=np.zeros((1, 3), int))}, r"axes \(1, 4\) of the call, got \(1, 3\)"),
        ({"key": np.ones((3, 2, 5, 2)), "query": np.ones((2, 4, 3, 2))}, r"query before its heads \(2,\), key"),
    ],
)
def test_errors_of_grouped_heads_state_the_axes_of_the_caller(options, words):
    sides = {"query": np.ones((1, 4, 3, 2)), "key": np.ones((1, 2, 5, 2)), "value": np.ones((1, 2, 5, 2))} | options
    for call in (qkv.attend, qkv.explain):
        with pytest.raises(ShapeError, match=words):
            call(**sides, enable_gqa=True)
