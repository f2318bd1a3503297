"""Masks of a user's function: which tiles kernels skip, and what they may remember."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv.core.equation import attend_dense
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.masks import AllowedKeys, Causal, Custom, Window
from qkv.normalizers import Softmax, Sparsemax
from qkv.scores import Additive, Dot
from qkv.testing.libraries import LIBRARIES, settings_of

RULES = {
    "causal": (lambda q, k: k <= q, Causal()),
    "window": (lambda q, k: abs(q - k) <= 2, Window(2, 2)),
    "all": (lambda q, k: k >= 0, Window(None, None)),
}
RANGE = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted).map(tuple)


@pytest.mark.parametrize("rule", RULES)
@given(rows=RANGE, cols=RANGE, start=st.integers(-3, 9))
def test_the_coverage_of_a_bound_mask_is_exact(rule, rows, cols, start):
    function, known = RULES[rule]
    tile = Tile.whole(12, 12, (), Positions(query_start=start)).restrict(rows, cols)
    allowed = known.slice(slice(*rows), slice(*cols)).allowed(tile, np.zeros(()))
    exact = "all" if allowed.all() else "part" if allowed.any() else "none"
    assert Custom(function).bind(np.zeros(()), ()).coverage(tile) == exact


def test_a_mask_that_is_not_bound_to_a_call_covers_tiles_in_part():
    assert Custom(lambda q, k: k <= q).coverage(Tile.whole(4, 4).restrict((0, 2), (2, 4))) == "part"


class Recorder:
    """Causal rule that records the shapes and ranges of the positions with which it is called."""

    def __init__(self):
        self.calls = []

    def __call__(self, query, key):
        self.calls.append((int(query.min()), int(query.max()), int(key.min()), int(key.max())))
        return key <= query


@pytest.mark.filterwarnings("ignore::qkv.errors.MemoryBudgetWarning")
@pytest.mark.parametrize(("kernel", "memory"), [("tiled", "4 MiB"), ("row_blocks", "24 MiB")])
def test_kernels_call_the_function_once_per_tile_for_all_heads(kernel, memory):
    torch = pytest.importorskip("torch")
    rule, heads, n = Recorder(), 6, 700
    x = torch.randn(heads, n, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    normalizer = Sparsemax() if kernel == "row_blocks" else Softmax()
    score = Additive(torch.ones(3, 4), torch.ones(3, 4), None, torch.ones(3))
    mask = Custom(rule)
    qkv.attend(x[:, :2], x[:, :2], x[:, :2], mask=mask)  # with the trial of the function
    rule.calls.clear()
    got = qkv.attend(x, x, x, score=score, normalizer=normalizer, mask=mask, kernel=kernel, memory=memory)
    got.sum().backward()
    assert len(rule.calls) == len(set(rule.calls)), "the function was called twice for one tile"
    gradient, x.grad = x.grad.clone(), None
    wanted = qkv.attend(x, x, x, score=score, normalizer=normalizer, mask=Causal(), kernel=kernel, memory=memory)
    wanted.sum().backward()
    assert torch.allclose(got, wanted, atol=1e-6)
    assert torch.allclose(gradient, x.grad, atol=1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_arrays_and_numbers_of_the_function_may_change_between_calls(library):
    if library in ("jax",):
        pytest.skip("JAX compiles the function, as every function that it traces")
    (setting,) = settings_of((library,), ("float32",))
    limit = np.array([2])
    mask = Custom(lambda q, k: k < int(limit[0]))
    x = np.random.default_rng(0).normal(size=(2, 9, 4))
    for n in (2, 7, 0, 9):
        limit[0] = n
        got = qkv.attend(*(setting.array(x) for _ in range(3)), score=Dot(), mask=mask)
        wanted = attend_dense(x, x, x, score=Dot(), normalizer=Softmax(), mask=AllowedKeys(np.arange(9) < n)).output
        assert np.abs(np.asarray(got) - wanted).max() < 1e-5


@pytest.mark.parametrize("library", LIBRARIES)
def test_parameters_may_change_between_calls_in_every_library(library):
    (setting,) = settings_of((library,), ("float32",))
    x = np.random.default_rng(0).normal(size=(2, 9, 4))
    rule = lambda q, k, limit: k < limit + 0 * q  # noqa: E731 -- one function for all calls
    for n in (2, 7, 0, 9):
        got = qkv.attend(*(setting.array(x) for _ in range(3)), score=Dot(), mask=Custom(rule, (np.array(n),)))
        wanted = attend_dense(x, x, x, score=Dot(), normalizer=Softmax(), mask=AllowedKeys(np.arange(9) < n)).output
        assert np.abs(np.asarray(got) - wanted).max() < 1e-5


def test_jitted_calls_with_parameters_do_not_reuse_the_coverage_of_other_parameters():
    jax = pytest.importorskip("jax")
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)

    @jax.jit
    def attend(x, limit):
        mask = Custom(lambda q, k, limit: k < limit + 0 * q, (limit,))
        return qkv.attend(x, x, x, mask=mask, kernel="jax_loops")

    for n in (3, 290):
        wanted = qkv.attend(x, x, x, mask=AllowedKeys(np.arange(300) < n))
        assert np.abs(np.asarray(attend(jax.numpy.asarray(x), n)) - wanted).max() < 1e-5


def test_a_decoding_step_gets_the_row_of_the_whole_sequence():
    x = np.random.default_rng(1).normal(size=(2, 20, 4))
    mask = Custom(lambda q, k: (k <= q) & ((k < 2) | (q - k < 5)))  # sinks and a window
    whole = qkv.attend(x, x, x, mask=mask)
    last = qkv.attend(x[:, -1:], x, x, mask=mask, positions=Positions(align="end"))
    each = qkv.attend(x[:, 7:9], x, x, mask=mask, positions=Positions(query_start=np.array([7, 7])))
    assert np.abs(last - whole[:, -1:]).max() < 1e-12
    assert np.abs(each - whole[:, 7:9]).max() < 1e-12


def test_torch_compile_and_export_keep_the_mask():
    torch = pytest.importorskip("torch")
    mask = Custom(lambda q, k: (k <= q) & (k % 2 == 0))
    x = torch.randn(2, 12, 4, generator=torch.Generator().manual_seed(0))

    def call(x):
        return qkv.attend(x, x, x, mask=mask)

    compiled = torch.compile(call, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(x), call(x), atol=1e-6)
