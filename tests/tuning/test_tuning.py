"""Measurement of the kernels, and the coefficients fitted to it."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv import scores
from qkv.plan import time_model
from qkv.plan.cache import PLANS
from qkv.tuning import fit, fit_table, measure, measure_kernels, median_loss, save_table
from qkv.tuning.measure import Measurement


def measurement(seconds: dict[str, float], work: dict[str, dict[str, float]]) -> Measurement:
    return Measurement("product", (1, 16, 16), False, False, seconds, work)


@given(st.integers(0, 2**31), st.integers(1, 9))
def test_fitted_coefficients_are_nonnegative_and_no_worse_than_those_that_made_the_data(seed: int, terms: int) -> None:
    rng = np.random.default_rng(seed)
    a, x = rng.random((30, terms)), np.maximum(rng.normal(size=terms), 0)
    b = a @ x + 0.01 * rng.normal(size=30)
    fitted = fit._nonnegative_fit(a, b)
    assert (fitted >= 0).all()
    assert np.linalg.norm(a @ fitted - b) <= np.linalg.norm(a @ x - b) + 1e-9


def test_coefficients_that_made_the_times_are_found_again() -> None:
    rng = np.random.default_rng(0)
    truth = {"slow": {"call": 5e4, "pairs": 3.0}, "fast": {"call": 1e4, "pairs": 9.0}}
    rows = []
    for _ in range(30):
        work = dict.fromkeys(time_model.WORK, 0.0) | {"call": 1.0, "pairs": float(rng.integers(1, 10**6))}
        seconds = {key: 1e-9 * sum(c * work[name] for name, c in row.items()) for key, row in truth.items()}
        rows.append(measurement(seconds, dict.fromkeys(truth, work)))
    table = fit_table(rows)
    for key, row in truth.items():
        found = dict(zip(time_model.WORK, table[key], strict=True))
        assert {name: c for name, c in found.items() if c} == pytest.approx(row, rel=1e-3)
    assert median_loss(rows, table)["max"] == 1
    exchanged = {"slow": table["fast"], "fast": table["slow"]}
    assert median_loss(rows, exchanged)["max"] > 1


def test_the_row_of_a_normalizer_explains_the_time_that_the_score_with_softmax_does_not() -> None:
    rng, rows = np.random.default_rng(1), []
    for n in range(60):
        work = dict.fromkeys(time_model.WORK, 0.0) | {"call": 1.0, "pairs": float(rng.integers(1, 10**5))}
        softmax = 1e-9 * (3e4 + 2 * work["pairs"])
        key, seconds = ("k, dot", softmax) if n % 2 else ("k, dot + k, sparse", softmax + 7e-9 * work["pairs"])
        rows.append(measurement({key: seconds}, {key: work}))
    table = fit_table(rows)
    found = {key: {name: c for name, c in zip(time_model.WORK, row, strict=True) if c} for key, row in table.items()}
    assert found["k, dot"] == pytest.approx({"call": 3e4, "pairs": 2.0}, rel=1e-3)
    assert found["k, sparse"]["pairs"] == pytest.approx(7.0, rel=1e-3)
    total = dict(zip(time_model.WORK, time_model.coefficients_of(table, "k, dot + k, sparse") or (), strict=True))
    assert total["pairs"] == pytest.approx(9.0, rel=1e-3)
    assert time_model.coefficients_of(table, "k, dot + k, sigmoid") is None


def test_kernels_with_fewer_than_8_measurements_get_no_coefficients() -> None:
    work = dict.fromkeys(time_model.WORK, 1.0)
    assert fit_table([measurement({"x": 1.0}, {"x": work})] * 7) == {}
    assert list(fit_table([measurement({"x": 1.0}, {"x": work})] * 8)) == ["x"]


def test_measured_calls_state_time_and_work_for_every_kernel_that_can_run_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_MAX_ELEMENTS", dict.fromkeys(measure._MAX_ELEMENTS, 2e4))
    monkeypatch.setattr(measure, "MIN_CALLS", 1)
    monkeypatch.setattr(measure, "_ROUNDS", 2)
    measurements = measure_kernels(0.1)
    assert measurements
    assert {measured.kind for measured in measurements} == {*measure._MAX_ELEMENTS, *measure._NORMALIZERS}
    for measured in measurements:
        assert all(seconds > 0 for seconds in measured.seconds.values())
        assert measured.seconds.keys() == measured.work.keys()
        kernels = {key.split(",")[0] for key in measured.seconds}
        assert {"batched", "dense", "row_blocks"} <= kernels
        for key in measured.seconds:  # the normalizer's row is added to that of the score
            assert (" + " in key) == (measured.kind in measure._NORMALIZERS)
            kind = "product" if key.startswith("fused") and measured.kind == "biased product" else measured.kind
            assert key.endswith(f", {kind}, {'gradient' if measured.gradient else 'forward'}")
        assert all(set(time_model.WORK) <= work.keys() for work in measured.work.values())


def test_a_saved_table_decides_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    shape = (4, 64, 32)
    for fastest in ("tiled", "batched", "dense"):
        keys = [f"{kernel}, distance, forward" for kernel in ("batched", "dense", "row_blocks", "tiled")]
        zeros = [0.0] * (len(time_model.WORK) - 1)
        table = {key: [1.0 if key.startswith(fastest) else 2.0, *zeros] for key in keys}
        assert save_table(table) == tmp_path / "times.json"
        plan = qkv.explain(shape, shape, shape, score=scores.Laplace(), library="torch")
        assert (plan.kernel.name, plan.cost.seconds) == (fastest, 1e-9)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"nanoseconds": {"a": [1]}}', "\x00", '{"nanoseconds": 3}', "[" * 100_000, None]
)
def test_a_damaged_table_or_that_of_another_processor_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    if content is None:
        content = json.dumps({"processor": "another", "nanoseconds": {"a": [1.0] * len(time_model.WORK)}})
    (tmp_path / "times.json").write_text(content)
    time_model.load_table.cache_clear()
    assert time_model.load_table() == json.loads(time_model._DEFAULT.read_text())["nanoseconds"]


@pytest.fixture(autouse=True)
def _restore_table() -> object:
    yield
    time_model.load_table.cache_clear()
    PLANS.clear()


@pytest.mark.parametrize("kind", measure._MAX_ELEMENTS)
def test_calls_with_arrays_of_the_large_size_are_measured_for_each_kind_of_score(kind: str) -> None:
    draw = random.Random(0)
    per_logit = kind in ("tanh", "pairwise")
    shapes = [measure._draw_call(draw, kind, gradient=False).shape for _ in range(1000)]
    sizes = [4 * batch * length**2 * (width if per_logit else 1) for batch, length, width in shapes]
    assert sum(size >= time_model.LARGE_BYTES for size in sizes) >= 5
