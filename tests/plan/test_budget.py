"""The memory budget: its default, the smallest sufficient budget of a refusal, and the warning of a slow plan."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.core.formatting import memory_bytes, rounded_up
from qkv.errors import MemoryBudgetWarning, OptionError, RefusedError
from qkv.kernels import KERNELS
from qkv.plan import budget
from qkv.plan.budget import _WARNED

MIB = 2**20
MACHINE_MEMORY = budget.machine_memory
"""The function itself, which the tests replace so that plans are the same on every machine."""


# -- the default -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "default"),
    [(0, 512 * MIB), (2**30, 512 * MIB), (4 * 2**30, 512 * MIB), (16 * 2**30, 2 * 2**30), (2**40, 2**37)],
)
def test_default_is_an_eighth_of_the_total_memory_and_at_least_512_mebibytes(
    monkeypatch: pytest.MonkeyPatch, total: int, default: int
) -> None:
    monkeypatch.setattr(budget, "machine_memory", lambda: total)
    shape = (4, 8)
    assert qkv.explain(shape, shape, shape).requested.memory == default


def test_total_memory_is_known_and_the_same_at_each_call() -> None:
    assert 0 < MACHINE_MEMORY() == MACHINE_MEMORY()


def group(root: Path, path: str, name: str, text: str) -> None:
    """Write a limit of a control group."""
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text + "\n")


def test_limit_of_every_enclosing_control_group_is_read(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("0::/pod/one\n")
    group(tmp_path, "", "memory.max", "max")
    group(tmp_path, "pod", "memory.max", str(3 * MIB))
    group(tmp_path, "pod/one", "memory.max", "max")
    assert budget.container_limits(groups, tmp_path) == [3 * MIB]


def test_limits_of_the_first_version_of_control_groups_are_read(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("5:cpu,cpuacct:/job\n4:memory:/job/a\n0::/\n")
    group(tmp_path, "memory", "memory.limit_in_bytes", "9223372036854771712")
    group(tmp_path, "memory/job/a", "memory.limit_in_bytes", str(2 * MIB))
    group(tmp_path, "job", "memory.max", str(MIB))  # of no group of this process
    assert budget.container_limits(groups, tmp_path) == [9223372036854771712, 2 * MIB]


def test_no_limits_are_read_where_there_are_no_control_groups(tmp_path: Path) -> None:
    assert budget.container_limits(tmp_path / "cgroup", tmp_path) == []


def test_limit_of_a_container_is_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "container_limits", lambda *_: [2**60, 2**33])
    monkeypatch.setattr(budget, "_physical_memory", lambda: 2**36)
    assert MACHINE_MEMORY.__wrapped__() == 2**33
    monkeypatch.setattr(budget, "_physical_memory", lambda: 0)  # unknown
    assert MACHINE_MEMORY.__wrapped__() == 2**33


@pytest.mark.parametrize("memory", [0, -1, "", "12 parsecs", 1.5, True])
def test_budget_that_is_no_amount_is_refused(memory: Any) -> None:
    with pytest.raises(OptionError, match="memory must be a positive amount"):
        qkv.explain((4, 8), (4, 8), (4, 8), memory=memory)


# -- scratch memory counts, results do not ---------------------------------------------------------------


def test_batch_of_sequences_of_1024_tokens_with_gradient_runs_on_the_fastest_kernel() -> None:
    """The results have 384 MiB; while they counted, a kernel 5.8 × slower ran without notice."""
    shape = (32, 12, 1024, 64)
    plans = [
        qkv.explain(shape, shape, shape, library="torch", gradient=True, memory=memory)
        for memory in ("512 MiB", "1 TiB")
    ]
    assert plans[0].kernel == plans[1].kernel
    assert plans[0].slowdown is None
    assert "fused" not in dict(plans[0].refused)


@pytest.mark.parametrize("gradient", [False, True])
def test_one_sequence_of_8192_tokens_and_32_heads_is_not_refused(gradient: bool) -> None:
    shape = (1, 32, 8192, 128)
    plan = qkv.explain(shape, shape, shape, library="torch", gradient=gradient, memory="512 MiB")
    assert plan.kernel.name == "fused"
    assert plan.cost.scratch < 512 * MIB < plan.cost.peak + (0 if gradient else 2**30)


def test_results_do_not_count_but_are_part_of_the_peak() -> None:
    shape = (3, 100, 8)
    plan = qkv.explain(shape, shape, (3, 100, 5), library="torch", gradient=True, kernel="dense")
    assert plan.cost.peak - plan.cost.scratch == 4 * 3 * 100 * (5 + 8 + 8 + 5)


def test_readouts_count_because_they_can_be_left_out() -> None:
    shape = (3, 100, 8)
    without = qkv.explain(shape, shape, shape, kernel="dense")
    whole = qkv.explain(shape, shape, shape, kernel="dense", readouts=[readouts.Dense()])
    assert whole.cost.scratch - without.cost.scratch == 4 * 3 * 100 * 100
    assert whole.cost.results == without.cost.results


def test_gradients_of_learned_parts_are_results() -> None:
    torch = pytest.importorskip("torch")
    x, weight = torch.ones(10, 8), torch.ones(8, 8, requires_grad=True)
    plan = qkv.explain(x, x, x, score=scores.Bilinear(weight))
    assert plan.cost.results == 4 * (4 * 10 * 8 + 8 * 8)


# -- refusals --------------------------------------------------------------------------------------------

SCORES = {
    "scaled dot": scores.ScaledDot(),
    "gaussian": scores.Gaussian(),
    "laplace": scores.Laplace(),
    "additive": scores.Additive(np.ones((7, 8)), np.ones((7, 8)), None, np.ones(7)),
    "custom": scores.Custom(lambda query, key: query @ key.mT),
    "softcap": scores.Softcap(scores.ScaledDot(), 9.0),
}
NORMALIZERS = [normalizers.Softmax(), normalizers.Sparsemax(), normalizers.Sigmoid(), normalizers.TopK(3)]


@given(
    kernel=st.sampled_from(KERNELS),
    library=st.sampled_from(["numpy", "torch", "jax"]),
    gradient=st.booleans(),
    score=st.sampled_from(sorted(SCORES)),
    normalizer=st.sampled_from(NORMALIZERS),
    mask=st.sampled_from([None, masks.Causal("end")]),
    batch=st.integers(1, 40),
    q=st.integers(1, 5000),
    k=st.integers(1, 5000),
    memory=st.integers(1, 2**24),
)
def test_named_budget_is_the_smallest_with_which_a_kernel_can_run(**drawn: Any) -> None:
    batch, q, k = drawn["batch"], drawn["q"], drawn["k"]

    def plan(memory: int | str) -> Any:
        return qkv.explain(
            (batch, q, 8),
            (batch, k, 8),
            (batch, k, 6),
            score=SCORES[drawn["score"]],
            normalizer=drawn["normalizer"],
            mask=drawn["mask"],
            positions=qkv.Positions(align="end"),
            library=drawn["library"],
            gradient=drawn["gradient"] and drawn["library"] != "numpy",
            kernel=drawn["kernel"].name,
            memory=memory,
        )

    message = ""
    try:
        assert plan(drawn["memory"]).cost.scratch <= drawn["memory"]
        assert plan(2 * drawn["memory"]).cost.scratch <= 2 * drawn["memory"]  # more memory is never refused
    except RefusedError as error:
        message = str(error)
    named = re.search(r"Pass memory='([^']+)' or more", message)
    assert (named is None) == ("would allocate" not in message)
    if named is not None:
        budget = memory_bytes(named[1])
        assert budget > drawn["memory"]
        assert plan(named[1]).cost.scratch <= budget
        with pytest.raises(RefusedError):
            plan(int(budget / 1.02) - 1)  # the text has two decimals


def test_refusal_of_every_kernel_names_a_budget_with_which_the_call_runs() -> None:
    query, key = np.ones((30, 8)), np.ones((40, 8))
    with pytest.raises(RefusedError) as refusal:
        qkv.attend(query, key, key, memory=100)
    named = re.search(r"Pass memory='([^']+)' or more, with which (\w+) can run", str(refusal.value))
    assert named is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoryBudgetWarning)
        found = qkv.observe(query, key, key, memory=named[1])
    assert found.plan.kernel.name == named[2]
    np.testing.assert_allclose(found.output, 1.0)


@pytest.mark.parametrize("holds_arrays", [False, True])
def test_cached_plan_runs_with_the_tiles_that_fit_its_budget(holds_arrays: bool) -> None:
    x = np.random.default_rng(0).normal(size=(64, 8))
    score = scores.Bilinear(np.eye(8)) if holds_arrays else scores.Dot()
    normalizer = normalizers.Sigmoid()
    smallest = budget.smallest_budget(
        next(kernel for kernel in KERNELS if kernel.name == "numpy_blocks"),
        qkv.explain(x, x, x, score=score, normalizer=normalizer).problem,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoryBudgetWarning)
        plans = [
            qkv.observe(x, x, x, score=score, normalizer=normalizer, kernel="numpy_blocks", memory=smallest).plan
            for _ in range(2)
        ]
    assert plans[0].problem.memory == plans[1].problem.memory < plans[0].requested.memory == smallest
    assert str(plans[0]) == str(plans[1])


@given(st.integers(1, 2**50))
def test_rounded_amounts_are_at_least_the_amount_and_at_most_a_percent_more(amount: int) -> None:
    assert amount <= memory_bytes(rounded_up(amount)) <= 1.01 * amount + 1


# -- the warning -----------------------------------------------------------------------------------------

SLOW: dict[str, Any] = {"score": scores.Custom(lambda query, key: query @ key.mT), "memory": "80 KiB"}
"""A call of which the budget allows only small row blocks or tiles."""


def slow_call(n: int = 600) -> Any:
    torch = pytest.importorskip("torch")
    x = torch.ones(n, 8)
    return qkv.attend(x, x, x, **SLOW)


def test_call_that_its_budget_slows_down_warns_once_and_names_a_sufficient_budget() -> None:
    _WARNED.clear()
    with pytest.warns(MemoryBudgetWarning, match=r"Pass memory='[^']+' or more\.$") as caught:
        slow_call()
    assert Path(qkv.__file__).parent not in Path(caught[0].filename).parents  # the warning is attributed to the caller
    named = re.search(r"memory='([^']+)'", str(caught[0].message))
    assert named is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slow_call()
        qkv.plan.cache.PLANS.clear()
        slow_call()  # planned again
        slow_call(601)  # as good as the same
        shape = (600, 8)
        options = SLOW | {"memory": named[1]}
        assert qkv.explain(shape, shape, shape, library="torch", **options).slowdown is None
    with pytest.warns(MemoryBudgetWarning):
        slow_call(1200)


def test_plan_states_the_slowdown_and_explain_does_not_warn() -> None:
    shape = (600, 8)
    plan = qkv.explain(shape, shape, shape, library="torch", **SLOW)
    assert plan.slowdown is not None
    assert plan.slowdown.factor > 1.5
    assert "without a memory budget. Pass memory=" in " ".join(str(plan).split())


@given(n=st.integers(1, 3000), batch=st.integers(1, 64), gradient=st.booleans(), score=st.sampled_from(sorted(SCORES)))
def test_default_budget_slows_no_call_down_whose_pairs_fit_it(n: int, batch: int, gradient: bool, score: str) -> None:
    shape = (batch, n, 8)
    plan = qkv.explain(shape, shape, shape, score=SCORES[score], library="torch", gradient=gradient, memory="512 MiB")
    unlimited = qkv.explain(shape, shape, shape, score=SCORES[score], library="torch", gradient=gradient, memory=2**60)
    assert unlimited.slowdown is None
    if plan.slowdown is None:
        if plan.cost.measured == unlimited.cost.measured:
            assert plan.cost.seconds <= 1.5 * unlimited.cost.seconds
    else:
        again = qkv.explain(
            shape, shape, shape, score=SCORES[score], library="torch", gradient=gradient, memory=plan.slowdown.budget
        )
        assert again.slowdown is None
