"""The dense kernel on JAX: eager calls are compiled once per plan, and functions of users are never compiled."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, readouts, scores
from qkv.testing.cases import Case
from qkv.testing.execution import oracle_of, run
from qkv.testing.kernel_harness import assert_agrees
from qkv.testing.libraries import Setting, assert_close

jax = pytest.importorskip("jax")
pytest.importorskip("torch")  # the oracle's gradients


@contextmanager
def _compilations() -> Iterator[list[str]]:
    """Yield a list that gets an element whenever JAX compiles a function."""
    found: list[str] = []
    listening = True

    def listen(event: str, seconds: float, **_: Any) -> None:
        if listening and "backend_compile" in event:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        listening = False
        if hasattr(jax.monitoring, "unregister_event_duration_listener"):  # JAX 0.8 and later
            jax.monitoring.unregister_event_duration_listener(listen)


def test_new_shape_compiles_two_functions_and_a_known_one_none() -> None:
    rng = np.random.default_rng(0)
    query, key, weight = (jax.numpy.asarray(rng.normal(size=n), dtype="float32") for n in ((5, 3), (13, 3), (3, 3)))
    options: dict[str, Any] = {"kernel": "dense", "normalizer": normalizers.Entmax15()}
    with _compilations() as first:
        one = qkv.attend(query, key, key, score=scores.Bilinear(weight), **options)
    assert 1 <= len(first) <= 2
    other = weight * 2
    with _compilations() as second:
        two = qkv.attend(query, key, key, score=scores.Bilinear(other), **options)
    assert not second
    wanted = qkv.attend(*map(np.asarray, (query, key, key)), score=scores.Bilinear(np.asarray(other)), **options)
    assert_close(two, wanted, 1e-5)
    assert not np.allclose(one, two)


def test_nan_in_later_data_is_noticed_by_the_compiled_function() -> None:
    setting, call = Setting("jax", "float32"), Case("scaled dot", "softmax", "keys").call()
    assert_agrees(run(call, setting, "dense"), oracle_of(call, setting), setting)
    hurt = call.key.copy()
    hurt[..., 0, :] = np.nan
    arrays = [setting.array(x) for x in (call.query, hurt, call.value)]
    allowed = np.arange(11) != 0
    assert np.isfinite(qkv.attend(*arrays, mask=masks.AllowedKeys(allowed), kernel="dense")).all()
    assert np.isnan(qkv.attend(*arrays, kernel="dense")).all()


def test_function_of_a_user_may_inspect_elements_and_read_variables_that_change() -> None:
    factor = [1.0]

    def score(query: Any, key: Any) -> Any:
        assert float(query.sum()) > 0
        return factor[0] * (query @ key.mT)

    x = jax.numpy.arange(6.0).reshape(3, 2)
    calls = [qkv.attend(x, x, x, score=scores.Custom(score), kernel="dense")]
    factor[0] = -1.0
    calls.append(qkv.attend(x, x, x, score=scores.Custom(score), kernel="dense"))
    for got, sign in zip(calls, (1.0, -1.0), strict=True):
        assert_close(got, qkv.attend(*[np.asarray(x)] * 3, score=scores.Dot() if sign > 0 else _negated()), 1e-6)


def _negated() -> scores.Score:
    return scores.Bilinear(-np.eye(2, dtype=np.float32))


@pytest.mark.parametrize("normalizer", [normalizers.Softmax(0.37), normalizers.Softmax(), normalizers.Sparsemax()])
def test_weights_sum_to_1_however_large_logits_are(normalizer: normalizers.Normalizer) -> None:
    query, key = (np.random.default_rng(n).normal(size=(2, 40, 8)).astype(np.float32) for n in range(2))
    for score in (scores.ALiBi(scores.Dot(1e9), 1.37e6), scores.Decay(scores.Dot(1e9), log_decay=-0.01)):
        parts = {"score": score, "normalizer": normalizer, "positions": qkv.Positions("end")}
        output = qkv.attend(*map(jax.numpy.asarray, (query, key, np.ones((2, 40, 1), np.float32))), **parts)
        assert_close(output, np.ones((2, 40, 1)), 1e-5)


@pytest.mark.parametrize("readout", [readouts.LogSumExp(), readouts.Dense(), readouts.ColumnSum()], ids=str)
def test_a_compiled_call_allocates_few_arrays_of_all_pairs_although_data_may_not_be_finite(readout) -> None:
    draw = np.random.default_rng(0)
    q, bias = jax.numpy.asarray(draw.standard_normal((2, 256, 16), np.float32)), jax.numpy.zeros((256, 256))
    mask = masks.AllowedPairs(jax.numpy.asarray(draw.random((256, 256)) > 0.3))

    def call(q):
        seen = qkv.observe(q, q, q, score=scores.Biased(scores.Dot(), bias), mask=mask, readouts=[readout])
        return seen.output, seen.readouts

    assert qkv.explain(q, q, q, mask=mask, readouts=[readout]).kernel.name == "dense"
    memory = jax.jit(call).lower(q).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 4.5 * 2 * 256 * 256 * 4


@pytest.mark.parametrize("hurt", [None, 0, 1], ids=["finite", "key", "value"])
def test_gradients_of_many_pairs_are_those_with_guards_of_each_pair(hurt, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    sides = [draw.standard_normal((257, 5), np.float32) for _ in range(3)]
    if hurt is not None:
        sides[1 + hurt][7] = np.nan
    allowed = (draw.random((257, 257)) > 0.3) & (np.arange(257) != 7) & (np.arange(257)[:, None] != 9)
    query, key, value = map(jax.numpy.asarray, sides)

    def loss(query, key, value):
        seen = qkv.observe(
            query, key, value, mask=masks.AllowedPairs(jax.numpy.asarray(allowed)), readouts=[readouts.Entropy()],
            kernel="dense",
        )  # fmt: skip
        return (seen.output**2).sum() + (seen.readouts[0] ** 2).sum(), seen.output

    def results():
        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(query, key, value)

    found = results()
    monkeypatch.setattr("qkv.kernels.dense.kernel._LEAST_PAIRS", math.inf)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(results()), strict=True):
        assert np.isfinite(one).all()
        assert_close(one, other, 1e-4)
