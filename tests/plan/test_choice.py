"""The choice of a kernel, refusals and rewrites, without running anything."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.errors import KindError, OptionError, PositionError, RefusedError, ShapeError
from qkv.kernels import KERNELS, LAZY_KERNELS, TiledKernel
from qkv.plan import plan_problem

SMALL, LONG = ((4, 8), (6, 8), (6, 3)), ((40_000, 8), (40_000, 8), (40_000, 3))
ADDITIVE = scores.Additive(np.ones((5, 8)), np.ones((5, 8)), None, np.ones(5))
END = qkv.Positions(align="end")

CHOICES: list[tuple[str, Any, dict[str, Any]]] = [
    ("numpy_blocks", LONG, {}),
    ("numpy_blocks", LONG, {"normalizer": normalizers.Sparsemax()}),
    ("dense", SMALL, {}),
    ("dense", SMALL, {"library": "jax"}),
    ("fused", LONG, {"library": "torch"}),
    ("batched", ((4, 3000, 64), (4, 24, 64), (4, 24, 64)), {"library": "torch"}),
    ("fused", ((4, 2, 64), (4, 3000, 64), (4, 3000, 64)), {"library": "torch"}),
    ("batched", ((4, 1, 64), (4, 4096, 64), (4, 4096, 64)), {"library": "torch", "score": scores.Cosine()}),
    ("batched", ((2, 512, 64),) * 3, {"library": "torch", "score": scores.Softcap(scores.Constant(), 2.0)}),
    ("fused", LONG, {"library": "torch", "score": scores.Gaussian(), "gradient": True}),
    ("fused", LONG, {"library": "torch", "mask": masks.Causal("start")}),
    ("fused", LONG, {"library": "torch", "mask": masks.AllowedKeys(np.ones(40_000, dtype=bool))}),
    ("fused", LONG, {"library": "torch", "mask": masks.Window(5, 5)}),
    ("linear", LONG, {"normalizer": normalizers.Sum()}),
    ("linear", LONG, {"library": "torch", "score": scores.Features(), "gradient": True}),
    ("linear", LONG, {"library": "jax", "normalizer": normalizers.Identity(), "mask": masks.Causal("end")}),
    ("tiled", LONG, {"library": "torch", "score": scores.Features(), "dropout": 0.1}),
    ("tiled", LONG, {"library": "torch", "score": ADDITIVE, "gradient": True}),
    ("tiled", LONG, {"library": "torch", "normalizer": normalizers.Softmax(sink=0.0)}),
    ("tiled", LONG, {"library": "torch", "dropout": 0.1}),
    ("row_blocks", LONG, {"library": "torch", "normalizer": normalizers.Entmax15()}),
    ("row_blocks", LONG, {"library": "torch", "normalizer": normalizers.TopK(8), "mask": masks.Window(64, 0)}),
    ("tiled", LONG, {"library": "torch", "readouts": [readouts.Entropy()]}),
]

REFUSALS: list[tuple[str, str, dict[str, Any]]] = [
    ("fused", "it supports torch arrays, not numpy arrays", {}),
    ("tiled", "it supports torch arrays, not jax arrays", {"library": "jax"}),
    ("numpy_blocks", "it supports numpy arrays, not torch arrays", {"library": "torch"}),
    ("fused", r"Additive\(.*\) is not an inner product", {"score": ADDITIVE, "library": "torch"}),
    (
        "fused",
        r"Softcap\(Dot\(\), cap=2.0\) is not an inner product",
        {"score": scores.Softcap(scores.Dot(), 2.0), "library": "torch"},
    ),
    ("fused", r"it supports only softmax, not Sigmoid\(\)", {"normalizer": normalizers.Sigmoid(), "library": "torch"}),
    ("fused", r"it supports only softmax, not TopK\(2\)", {"normalizer": normalizers.TopK(2), "library": "torch"}),
    (
        "fused",
        r"it does not support the sink of Softmax\(sink=1.0\)",
        {"normalizer": normalizers.Softmax(sink=1.0), "library": "torch"},
    ),
    ("linear", r"it supports only weights that are linear in the logits, not Softmax\(\)", {"library": "torch"}),
    (
        "linear",
        r"the mask Window\(1, after=1\) is neither causal nor a mask of keys",
        {"normalizer": normalizers.Sum(), "mask": masks.Window(1, 1), "positions": END},
    ),
    ("linear", "it never computes the weights that dropout drops", {"normalizer": normalizers.Sum(), "dropout": 0.5}),
    (
        "linear",
        "it never computes the weights that readouts need",
        {"normalizer": normalizers.Sum(), "readouts": [readouts.Entropy()]},
    ),
    ("fused", "it does not support readouts", {"readouts": [readouts.Entropy()], "library": "torch"}),
    ("fused", "with dropout PyTorch needs quadratic memory", {"dropout": 0.5, "library": "torch"}),
    (
        "fused",
        r"the mask Window\(1, after=1\) would need an array of 4 × 6",
        {"mask": masks.Window(1, 1), "score": scores.Gaussian(), "positions": END, "library": "torch"},
    ),
    (
        "tiled",
        r"Sparsemax\(\) needs whole rows of logits, not tiles",
        {"normalizer": normalizers.Sparsemax(), "library": "torch"},
    ),
    ("dense", "it would allocate .* B, more than the 64 B allowed", {"memory": 64}),
    ("row_blocks", "it would allocate .* B, more than the 64 B allowed", {"memory": 64, "library": "torch"}),
]


def explain(shapes: Any = SMALL, **options: Any) -> Any:
    """The plan from shapes."""
    return qkv.explain(*shapes, **options)


@pytest.mark.parametrize(("kernel", "shapes", "options"), CHOICES)
def test_planner_chooses(kernel: str, shapes: Any, options: dict[str, Any]) -> None:
    plan = explain(shapes, **options)
    assert plan.kernel.name == kernel
    assert plan.cost.scratch <= plan.requested.memory


def test_a_forward_pass_that_backward_runs_again_counts_in_the_choice() -> None:
    plan = explain(((8, 512, 64),) * 3, library="torch", gradient=True)
    again = plan_problem(replace(plan.requested, recomputes=True), KERNELS)
    assert (plan.kernel.name, again.kernel.name) == ("batched", "fused")


@pytest.mark.parametrize(("kernel", "sentence", "options"), REFUSALS)
def test_named_kernel_raises_with_its_sentence_and_never_falls_back(
    kernel: str, sentence: str, options: dict[str, Any]
) -> None:
    with pytest.raises(
        RefusedError, match=rf"^the kernel {kernel} cannot run this call: {sentence}\. Pass .*kernel=None .*\.$"
    ):
        explain(kernel=kernel, **options)


@pytest.mark.parametrize(("kernel", "sentence", "options"), [row for row in REFUSALS if "memory" not in row[2]])
def test_refusal_stands_in_the_plan_of_whatever_runs_instead(
    kernel: str, sentence: str, options: dict[str, Any]
) -> None:
    refused = dict(explain(**options).refused)
    assert re.fullmatch(sentence, refused[kernel])


def test_every_kernel_is_chosen_slower_or_refused_and_none_twice() -> None:
    for _, shapes, options in CHOICES:
        plan = explain(shapes, **options)
        named = [plan.kernel.name, *(name for name, _ in plan.slower), *(name for name, _ in plan.refused)]
        assert sorted(named) == sorted(kernel.name for kernel in KERNELS)


def test_slower_kernels_are_slower_by_estimate() -> None:
    for _, shapes, options in CHOICES:
        plan = explain(shapes, **options)
        estimates = [plan.cost.seconds, *(cost.seconds for _, cost in plan.slower)]
        assert estimates == sorted(estimates)


def test_kernel_that_is_named_runs_although_another_is_faster() -> None:
    plan = explain(LONG, library="torch", kernel="tiled")
    assert (plan.kernel.name, plan.reason) == ("tiled", "named in the call")


def test_kernel_of_ones_own_runs_in_place_of_a_name() -> None:
    mine = TiledKernel(budget=100)
    assert explain(library="torch", kernel=mine).kernel is mine


def test_kernel_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(
        OptionError,
        match=r"one of None, fused, linear, dense, batched, tiled, row_blocks, numpy_blocks, jax_loops, "
        r"tensorflow_blocks, triton, flex, triton_products, triton_readouts, triton_traced, jax_fused, "
        r"got 'flash'",
    ):
        explain(kernel="flash")


def test_where_nothing_fits_the_memory_every_kernel_says_so() -> None:
    with pytest.raises(RefusedError) as refusal:
        explain(LONG, memory="1 KiB", library="torch", score=ADDITIVE)
    said = str(refusal.value)
    assert said.startswith("no kernel can run this call within 1 KiB of scratch memory. ")
    for kernel in KERNELS:
        assert f"{kernel.name}: it" in said or f"{kernel.name}: Additive" in said
    assert said.endswith("or change the arguments that a kernel does not support.")


def test_a_readout_of_an_additive_score_needs_no_arrays_of_hidden_units() -> None:
    weight = np.zeros((24, 16), np.float32)
    options = {"score": scores.Additive(weight, weight, None, weight[:, 0]), "library": "torch", "gradient": True}
    with_readout = explain(((8, 512, 16),) * 3, kernel="batched", readouts=[readouts.Entropy()], **options)
    assert with_readout.cost.scratch < 12 * 8 * 512 * 512 * 4  # measured: 5.6 to 8 arrays of all pairs


def test_tiles_shrink_where_less_memory_is_allowed() -> None:
    tiles = [explain(LONG, library="torch", score=ADDITIVE, kernel="tiled", memory=m) for m in ("1 GiB", "5 MiB")]
    assert tiles[1].cost.scratch <= 5 * 2**20 < tiles[0].cost.scratch


def test_half_precision_counts_the_inputs_that_are_widened() -> None:
    half, single = (explain(LONG, library="torch", dtype=d, kernel="tiled").cost.peak for d in ("float16", "float32"))
    assert half - single >= 4 * 40_000 * (8 + 8 + 3)


@pytest.mark.parametrize(
    ("error", "said", "options"),
    [
        (OptionError, "memory must be a positive amount, got '512 parsecs'", {"memory": "512 parsecs"}),
        (OptionError, "memory must be .* got -1", {"memory": -1}),
        (OptionError, "memory must be .* got True", {"memory": True}),
        (OptionError, "dropout must be a number in .0, 1., got 1.0", {"dropout": 1.0}),
        (OptionError, "dropout must be .* got '0.1'", {"dropout": "0.1"}),
        (KindError, r"score must be a Score, got the function .*Custom", {"score": lambda q, k: q}),
        (KindError, r"mask must be a Mask, got the function .*masks.Custom", {"mask": lambda i, j: i >= j}),
        (KindError, r"normalizer must be .*normalizers.Custom\(function\)", {"normalizer": lambda logits: logits}),
        (KindError, r"score must be a Score, got the class Dot, not an instance", {"score": scores.Dot}),
        (KindError, r"normalizer must be a Normalizer, got 'softmax'.*Softmax\(\)", {"normalizer": "softmax"}),
        (
            KindError,
            r"got an array of shape \(4, 6\).*masks.AllowedKeys.*masks.AllowedPairs",
            {"mask": np.ones((4, 6), bool)},
        ),
        (KindError, r"mask must be a Mask, got 'causal'", {"mask": "causal"}),
        (KindError, r"positions must be an instance of Positions, got 'end'.*Positions", {"positions": "end"}),
        (KindError, r"Dense.*instances", {"readouts": [readouts.Dense]}),
        (
            ShapeError,
            r"batch axes \(2, 3\) of the call, got batch axes \(3,\).*x\[None\]",
            {"shapes": [(2, 3, 6, 8)] * 3, "mask": masks.Lengths(np.ones(3, int))},
        ),
        (
            ShapeError,
            r"batch axes \(5, 2, 3\) of the call, got batch axes \(3,\).*x\[None, None\]",
            {"shapes": [(5, 2, 3, 6, 8)] * 3, "mask": masks.Lengths(np.ones(3, int))},
        ),
        (
            ShapeError,
            r"arrays of Cosine must .* got batch axes \(3,\)",
            {"shapes": [(2, 3, 6, 8)] * 3, "score": scores.Softcap(scores.Cosine(np.ones(3)), 2.0)},
        ),
        (
            ShapeError,
            r"batch axes \(2, 1\) of the call, got \(1, 3\)\. Expand the query",
            {"shapes": [(2, 1, 6, 8)] * 3, "score": scores.Gaussian(np.ones((1, 3)))},
        ),
        (
            ShapeError,
            r"got query \(2, 6\), key \(2, 3\) and value .* pass enable_gqa=True",
            {"shapes": [(2, 6, 4, 8), (2, 3, 6, 8), (2, 3, 6, 8)]},
        ),
        (PositionError, "positions must be given for 4 queries and 6 keys", {"mask": masks.Causal()}),
        (ShapeError, "for 4 queries, got 9", {"readouts": [readouts.Rows((9,))]}),
        (
            ShapeError,
            r"query and key of width 8.*must match the weight of Bilinear, got a weight for widths 2 and 8",
            {"score": scores.Bilinear(np.ones((2, 8)))},
        ),
    ],
)
def test_what_cannot_be_planned_is_an_error_that_says_what_to_do(
    error: type[Exception], said: str, options: dict[str, Any]
) -> None:
    with pytest.raises(error, match=said):
        explain(**options)


def test_kernels_have_the_names_and_libraries_by_which_they_are_imported() -> None:
    stated = [(each.name, each.libraries) for each in LAZY_KERNELS]
    assert stated == [(kernel.name, kernel.libraries) for kernel in KERNELS]
