"""The exact text of EXPLAIN, rewrites, the plan cache, prepared plans and amounts of memory."""

from typing import Any

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.core.arrays import is_array
from qkv.core.formatting import flop_text, memory_bytes, memory_text
from qkv.errors import KindError, OptionError, RefusedError, ShapeError
from qkv.plan.cache import PLANS
from qkv.plan.cost import tile_sides

TEN_MILLION_KEYS = """\
call        1 query × 10,000,000 keys, width 64, values 8 wide
            float32 in numpy
score       ScaledDot()   an inner product
normalizer  Softmax()   one pass over the keys
mask        none
rewrites    none
kernel      numpy_blocks   the lowest estimated time of the 2 kernels that can run this call
            tiles of 1 query × 32,768 keys, one pass over the keys
cost        1.54 Gflop, 9.13 MiB of scratch memory; 512 MiB allowed
slower      dense: 1.54 Gflop, 124 MiB of scratch memory
refused     linear: it supports only weights that are linear in the logits, not Softmax()
refused     12 kernels for other libraries or processors"""

EVERY_LINE = """\
call        8×12 × 4,096 queries × 4,096 keys, width 64, values 64 wide
            bfloat16 in torch, with gradient
score       Gaussian(0.5)   an inner product, up to a term of the query
normalizer  Softmax()   one pass over the keys
mask        Causal() & Window(256, after=None)
positions   Positions('end')
dropout     0.1 of the weights, from the seed
readouts    Entropy(), TopWeights(5)
rewrites    none
"""

ALL_REWRITTEN = """\
call        5 queries × 9 keys, width 3, values 2 wide
            float32 in jax
score       Constant()   compares pair by pair, 1 number for each logit
normalizer  TopK(20)   one pass over the keys
mask        ~~Causal('end')
rewrites    ~~Causal('end') is Causal('end')
            TopK(20) of 9 keys leaves none out: Softmax()
            Constant() under Softmax() is a mean: Mean()
kernel      dense   the lowest estimated time of the 2 kernels that can run this call
            """


def test_explain_shows_call_kernel_costs_and_refusals() -> None:
    assert str(qkv.explain((1, 64), (10_000_000, 64), (10_000_000, 8))) == TEN_MILLION_KEYS


def test_explain_has_a_line_for_each_argument() -> None:
    plan = qkv.explain(
        (8, 12, 4096, 64),
        (8, 1, 4096, 64),
        (8, 1, 4096, 64),
        score=scores.Gaussian(0.5),
        mask=masks.Causal() & masks.Window(256, None),
        positions=qkv.Positions(align="end"),
        dropout=0.1,
        readouts=[readouts.Entropy(), readouts.TopWeights(5)],
        library="torch",
        dtype="bfloat16",
        gradient=True,
        memory="4 GiB",
    )
    assert str(plan).startswith(EVERY_LINE)


def test_explain_shows_every_rewrite_in_turn() -> None:
    plan = qkv.explain(
        (5, 3),
        (9, 3),
        (9, 2),
        score=scores.Constant(),
        normalizer=normalizers.TopK(20),
        mask=~~masks.Causal("end"),
        library="jax",
    )
    assert str(plan).startswith(ALL_REWRITTEN.rstrip(" "))


def test_explain_of_arrays_and_of_their_shapes_is_the_same() -> None:
    arrays = [np.zeros(shape, dtype="float32") for shape in ((2, 5, 3), (2, 9, 3), (2, 9, 4))]
    assert str(qkv.explain(*arrays)) == str(qkv.explain(*(x.shape for x in arrays)))


def test_explain_computes_nothing() -> None:
    def never(query: Any, key: Any) -> Any:
        raise AssertionError("the score was called")

    plan = qkv.explain(np.zeros((3, 2)), np.zeros((4, 2)), np.zeros((4, 1)), score=scores.Custom(never))
    assert "never" in str(plan)


def test_explain_shows_guards_before_the_run_and_guards_taken_after_it() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3, 4)
    guard = "guard       if query, key and value are finite, also after lifting: fused; else, with a mask of keys"
    before = str(qkv.explain(x, x, x, kernel="fused"))
    assert guard in before
    assert "guard taken" not in before
    assert "guard taken all finite: fused" in str(qkv.observe(x, x, x, kernel="fused").plan)
    x[0, 0] = torch.nan
    assert "guard taken not all finite: tiled" in str(qkv.observe(x, x, x, kernel="fused").plan)


# -- rewrites --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "rewritten"),
    [
        ({"mask": ~~masks.Causal("end")}, ("~~Causal('end') is Causal('end')",)),
        ({"mask": masks.Window(9, 9)}, ("Window(9, after=9) allows every pair here: no mask",)),
        ({"mask": masks.Window(9, 1)}, ()),
        ({"mask": masks.AllowedKeys(np.ones(6, dtype=bool))}, ()),  # its data is not looked at
        ({"mask": masks.Lengths(6)}, ("Lengths(6) allows every pair here: no mask",)),
        ({"normalizer": normalizers.TopK(6)}, ("TopK(6) of 6 keys leaves none out: Softmax()",)),
        ({"normalizer": normalizers.TopK(5)}, ()),
        ({"score": scores.Constant()}, ("Constant() under Softmax() is a mean: Mean()",)),
        ({"score": scores.Constant(), "normalizer": normalizers.Sparsemax()},
         ("Constant() under Sparsemax() is a mean: Mean()",)),
        ({"score": scores.Constant(), "normalizer": normalizers.Softmax(sink=0.0)}, ()),
        ({"score": scores.Constant(), "readouts": [readouts.LogSumExp()]}, ()),  # a mean has no total
        ({"score": scores.Constant(), "normalizer": normalizers.Sum()}, ()),  # 0 / 0
    ],
)  # fmt: skip
def test_rewrites_give_the_expected_specs(options: dict[str, Any], rewritten: tuple[str, ...]) -> None:
    positions = qkv.Positions(align="end")
    assert qkv.explain((5, 3), (6, 3), (6, 2), positions=positions, **options).rewrites == rewritten


def test_rewritten_call_gives_the_same_answer() -> None:
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(5, 3)), rng.normal(size=(6, 3)), rng.normal(size=(6, 2))
    for options in (
        {"normalizer": normalizers.TopK(6)},
        {"mask": masks.Window(9, 9), "positions": qkv.Positions(align="end")},
        {"score": scores.Constant(), "mask": ~~masks.Causal("end")},
    ):
        seen = qkv.observe(query, key, value, **options)
        assert seen.plan.rewrites
        full = {"score": scores.ScaledDot(), "normalizer": normalizers.Softmax()} | options
        assert seen.output == pytest.approx(qkv.core.equation.attend_dense(query, key, value, **full).output)


# -- the cache, and prepared plans -----------------------------------------------------------------------


def test_plan_is_made_once_for_equal_shapes_and_facts() -> None:
    PLANS.clear()
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(4, 2))
        qkv.attend(x, x, x, score=scores.Biased(scores.Dot(), x[:, :1]), mask=masks.AllowedKeys(x[:, 0] > 0))
    assert len(PLANS) == 1


def test_cached_plan_is_not_used_for_other_facts() -> None:
    x = np.ones((4, 2))
    plans = [qkv.observe(x, x, x, score=score).plan for score in (scores.Gaussian(3.0), scores.Gaussian(2.0))]
    assert [str(plan.problem.score) for plan in plans] == ["Gaussian(3.0)", "Gaussian(2.0)"]


def test_cache_holds_no_arrays_and_does_not_grow_without_end() -> None:
    for n in range(300):
        x = np.ones((n + 1, 2))
        qkv.attend(x[:1], x, x, score=scores.Bilinear(np.ones((2, 2))))
    assert len(PLANS) == 256
    for cached in PLANS.values():
        for problem in (cached.plan.requested, cached.plan.problem):
            assert not any(is_array(x) for x in (*problem.spec.arrays(), *problem.spec.parts()))


def test_prepared_plan_gives_what_attend_gives_without_planning_again() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(5, 3))
    run = qkv.prepare(qkv.Spec(scores.Gaussian(), mask=masks.Causal()), (x.shape,) * 3, dtype="float64")
    wanted = qkv.attend(x, x, x, score=scores.Gaussian(), mask=masks.Causal())
    PLANS.clear()
    assert (run(x, x, x).output == wanted).all()
    assert not PLANS


def test_prepared_plan_refuses_arrays_of_other_shapes_or_libraries() -> None:
    run = qkv.prepare(qkv.Spec(), ((5, 3),) * 3, dtype="float64")
    with pytest.raises(ShapeError, match=r"the planned shapes \(5, 3\).*got \(4, 3\)"):
        run(*[np.ones((4, 3))] * 3)
    torch = pytest.importorskip("torch")
    with pytest.raises(KindError, match=r"must be numpy arrays, as planned, got torch"):
        run(*[torch.ones(5, 3)] * 3)


def test_prepared_plan_with_dropout_takes_a_seed_at_each_call() -> None:
    x = np.ones((9, 3))
    run = qkv.prepare(qkv.Spec(dropout=0.5), (x.shape,) * 3, dtype="float64")
    one, same, other = (run(x, x, x, seed=seed).output for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()
    with pytest.raises(OptionError, match="such as seed=0"):
        run(x, x, x)


def test_prepare_refuses_what_cannot_run() -> None:
    with pytest.raises(RefusedError, match="kernel fused cannot run this call"):
        qkv.prepare(qkv.Spec(), ((5, 3),) * 3, kernel="fused")


# -- amounts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "amount"),
    [
        ("512 MiB", 2**29),
        ("2 GB", 2 * 10**9),
        ("1.5KiB", 1536),
        ("100", 100),
        ("7 B", 7),
        (12, 12),
        (" 3 tib ", 3 * 2**40),
    ],
)
def test_amounts_of_memory_are_parsed(said: Any, amount: int) -> None:
    assert memory_bytes(said) == amount


@pytest.mark.parametrize("said", ["", "MiB", "12 parsecs", "-1 MiB", "0", 0, -5, 1.5, True, None])
def test_invalid_amounts_of_memory_are_refused_with_an_example(said: Any) -> None:
    with pytest.raises(OptionError, match='such as "512 MiB"'):
        memory_bytes(said)


@pytest.mark.parametrize(
    ("text", "amount", "said"),
    [
        (memory_text, 0, "0 B"),
        (memory_text, 1023, "1023 B"),
        (memory_text, 2**30, "1 GiB"),
        (flop_text, 999, "999 flop"),
        (flop_text, 3.2e12, "3.2 Tflop"),
    ],
)
def test_amounts_are_formatted_with_units(text: Any, amount: float, said: str) -> None:
    assert text(amount) == said


@pytest.mark.parametrize("q", [0, 1, 3, 100, 10_000])
@pytest.mark.parametrize("k", [0, 1, 7, 100_000])
@pytest.mark.parametrize("pairs", [1, 12, 2**18])
def test_tiles_have_at_most_the_given_pairs_and_at_least_one(q: int, k: int, pairs: int) -> None:
    rows, cols = tile_sides(q, k, pairs)
    assert 1 <= rows <= max(1, q)
    assert 1 <= cols <= max(1, k)
    assert rows * cols <= pairs
