"""Functions of users with parameters per batch element, compared with the functions evaluated on all pairs at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import masks, normalizers, scores
from qkv.core.arrays import namespace
from qkv.kernels.jax_loops.kernel import JaxLoopsKernel
from qkv.kernels.numpy_blocks.kernel import NumpyBlocksKernel
from qkv.kernels.row_blocks.kernel import RowBlocksKernel
from qkv.kernels.tensorflow_blocks.kernel import TensorflowBlocksKernel
from qkv.kernels.tiled.kernel import TiledKernel
from qkv.testing.libraries import Setting
from tests.effort import cases

KERNELS = {
    "numpy": (NumpyBlocksKernel(budget=16, row_block_budget=400), "dense", None),
    "torch": (TiledKernel(budget=16, row_block_budget=400), RowBlocksKernel(budget=400), "batched", None),
    "jax": (JaxLoopsKernel(budget=64, row_block_budget=400),),
    "tensorflow": (TensorflowBlocksKernel(budget=400),),
}


def product(q, k):
    return namespace(q).matmul(q, namespace(k).matrix_transpose(k))


# A function of query, key and a parameter, and the shape of the parameter for batch axes (…, heads) and a width.
SCORES = {
    "a number for each head": (lambda q, k, s: product(q, k) * s, lambda b, w: (*b[-1:], 1, 1)),
    "a vector with a number for each head": (lambda q, k, s: product(q, k) * s[:, None, None], lambda b, w: b[-1:]),
    "a number for each batch element": (lambda q, k, s: product(q, k) * s[..., None, None], lambda b, w: b),
    "the same number for the heads": (
        lambda q, k, s: product(q, k) * s[..., None, None],
        lambda b, w: (*b[:-1], *(1 for _ in b[-1:])),
    ),
    "a matrix for each head": (lambda q, k, s: product(namespace(q).matmul(q, s), k), lambda b, w: (*b[-1:], w, w)),
    "weights for each head": (lambda q, k, s: product(q * s[..., None, :], k), lambda b, w: (*b[-1:], w)),
    "a matrix for all": (lambda q, k, s: product(namespace(q).matmul(q, s), k), lambda b, w: (w, w)),
    "weights for all": (lambda q, k, s: product(q * s, k), lambda b, w: (w,)),
    "centres": (
        lambda q, k, s: -namespace(q).sum((product(q, k)[..., None] - s) ** 2, axis=-1),
        lambda b, w: b[-1:] or (3,),
    ),
    "a number": (lambda q, k, s: product(q, k) * s, lambda b, w: ()),
}
NORMALIZERS = {
    "none": None,
    "a power for each head": (
        lambda z, p: (namespace(z).exp(z) * p) / (1 + namespace(z).sum(namespace(z).exp(z), axis=-1, keepdims=True)),
        lambda b: (*b[-1:], 1, 1),
    ),
    "a power": (
        lambda z, p: (namespace(z).exp(z) * p) / (1 + namespace(z).sum(namespace(z).exp(z), axis=-1, keepdims=True)),
        lambda b: (),
    ),
}
MASKS = {
    "none": None,
    "a window for each head": (lambda q, k, n: abs(q - k) <= n, lambda b: (*b[-1:], 1, 1)),
    "a period for each batch element": (
        lambda q, k, n: ((q - k) % (n[..., None, None] + 1) == 0) | (q == k),
        lambda b: b,
    ),
    "a window": (lambda q, k, n: abs(q - k) <= n, lambda b: ()),
    "no parameter": (lambda q, k: k <= q, None),
}
BATCHES = st.sampled_from([(), (3,), (2, 3), (3, 3), (2, 1), (1, 3), (2, 1, 3), (4, 4)])


@st.composite
def calls(draw):
    batch, width = draw(BATCHES), draw(st.integers(1, 4))
    lengths = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    if draw(st.booleans()):
        lengths = lengths[0], lengths[0]
    shared = draw(st.sampled_from(["", "query", "key"]))
    names = [sorted(x) for x in (SCORES, NORMALIZERS, MASKS)]
    if not batch:  # functions for parameters that all batch elements share
        names = [[name for name in each if "each" not in name and "heads" not in name] for each in names]
    return batch, width, lengths, shared, *(draw(st.sampled_from(each)) for each in names)


def arrays_of(call, rng):
    batch, width, (q, k), shared, *names = call
    own = {"query": batch, "key": batch, "value": batch}
    if shared:
        own[shared] = batch[-1:] if len(batch) > 1 else ()
    sides = [
        rng.normal(size=(*own[name], n, m)) for name, n, m in (("query", q, width), ("key", k, width), ("value", k, 2))
    ]
    score = rng.uniform(0.5, 1.5, SCORES[names[0]][1](batch, width))
    power = None if NORMALIZERS[names[1]] is None else rng.uniform(0.5, 1.5, NORMALIZERS[names[1]][1](batch))
    mask = MASKS[names[2]]
    limit = None if mask is None or mask[1] is None else rng.integers(0, 9, mask[1](batch))
    return sides, score, power, limit


def at_once(call, sides, score, power, limit):
    """The output with all pairs in memory, written out."""
    _, _, (q, k), _, *names = call
    query, key, value = sides
    xp = namespace(query)
    logits = SCORES[names[0]][0](query, key, score)
    if MASKS[names[2]] is not None:
        rows, cols = np.arange(q)[:, None], np.arange(k)[None, :]
        allowed = MASKS[names[2]][0](rows, cols, *(() if limit is None else (limit,)))
        logits = xp.where(xp.asarray(np.asarray(allowed)), logits, xp.asarray(-np.inf, dtype=logits.dtype))
    if power is None:
        weights = xp.exp(logits - xp.max(logits, axis=-1, keepdims=True))
        weights = weights / xp.sum(weights, axis=-1, keepdims=True)
    else:
        weights = NORMALIZERS[names[1]][0](logits, power)
    return xp.matmul(weights, value)


def parts_of(call, array, score, power, limit):
    *_, names = call[3], call[4:]
    mask = MASKS[names[2]]
    return {
        "score": scores.Custom(SCORES[names[0]][0], (array(score),)),
        "normalizer": None if power is None else normalizers.Custom(NORMALIZERS[names[1]][0], (array(power),)),
        "mask": None
        if mask is None
        else masks.Custom(mask[0], () if limit is None else (array(limit),), align="start"),
    }


def check(library, call, kernel, seed):
    setting, rng = Setting(library, "float32" if library == "jax" else "float64"), np.random.default_rng(seed)
    sides, *given = arrays_of(call, rng)
    with np.errstate(invalid="ignore"):  # rows without an allowed key
        wanted = at_once(call, sides, *given)
    parts = parts_of(call, setting.array, *given)
    got = qkv.attend(*(setting.array(x) for x in sides), **parts, kernel=kernel)
    got, wanted = np.asarray(got), np.where(np.isnan(wanted), 0, wanted)
    tolerance = 1e-4 if library == "jax" else 1e-9
    assert np.allclose(got, np.broadcast_to(wanted, got.shape), rtol=tolerance, atol=tolerance), (call, kernel)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@settings(max_examples=cases(300), deadline=None)
@given(call=calls(), kernel=st.integers(0, 3), seed=st.integers(0, 9))
def test_parameters_are_divided_with_the_batch_in_every_kernel(library, call, kernel, seed):
    pytest.importorskip(library)
    kernels = KERNELS[library]
    chosen = kernels[kernel % len(kernels)]
    if chosen == "batched" or isinstance(chosen, TiledKernel):  # these do not support a normalizer of the user
        call = (*call[:5], "none", call[6])
    check(library, call, chosen, seed)


@pytest.mark.long
@pytest.mark.parametrize("library", ["jax", "tensorflow"])
@settings(max_examples=cases(24), deadline=None)
@given(call=calls(), seed=st.integers(0, 9))
def test_parameters_are_divided_with_the_batch_in_compiled_libraries(library, call, seed):
    pytest.importorskip(library)
    check(library, call, KERNELS[library][0], seed)


@settings(max_examples=cases(80), deadline=None)
@given(call=calls(), kernel=st.integers(0, 3), seed=st.integers(0, 9))
def test_gradients_of_divided_parameters_are_those_of_the_function_at_once(call, kernel, seed):
    torch = pytest.importorskip("torch")
    kernel = KERNELS["torch"][kernel]
    online = kernel == "batched" or isinstance(kernel, TiledKernel)
    call = (*call[:5], "none", "none") if online else (*call[:6], "none")
    sides, *given = arrays_of(call, np.random.default_rng(seed))
    leaves = [torch.tensor(x, requires_grad=True) for x in (*sides, *(x for x in given[:2] if x is not None))]
    parts = parts_of(call, lambda x: x, *[*leaves[3:], None, None][:2], None)
    got = qkv.attend(*leaves[:3], **parts, kernel=kernel)
    wanted = at_once(call, leaves[:3], *[*leaves[3:], None, None][:2], None)
    weight = torch.tensor(np.random.default_rng(seed + 1).normal(size=tuple(got.shape)))
    found = torch.autograd.grad((got * weight).sum(), leaves)
    expected = torch.autograd.grad((wanted * weight).sum(), leaves)
    for x, y in zip(found, expected, strict=True):
        assert torch.allclose(x, y, rtol=1e-8, atol=1e-8), (call, kernel)


def per_head(q, k, s):
    return q @ k.mT * s[:, None, None]


def near(q, k, width):
    return abs(q - k) <= width


def test_functions_get_all_query_heads_of_grouped_heads():
    torch = pytest.importorskip("torch")
    query, key = (torch.randn(2, heads, 9, 3, dtype=torch.float64) for heads in (8, 4))
    slopes, widths = torch.rand(8, dtype=torch.float64), torch.arange(8)[:, None, None]
    shared = key.repeat_interleave(2, dim=1)
    allowed = (torch.arange(9)[:, None] - torch.arange(9)).abs() <= widths
    wanted = per_head(query, shared, slopes).masked_fill(~allowed, -torch.inf).softmax(-1) @ shared
    parts = {"score": scores.Custom(per_head, (slopes,)), "mask": masks.Custom(near, (widths,))}
    assert torch.allclose(qkv.attend(query, key, key, **parts, enable_gqa=True), wanted)

    def einsum(q, k):
        return torch.einsum("bhqd,bhkd->bhqk", q, k)

    got = qkv.attend(query, key, key, score=scores.Custom(einsum), enable_gqa=True)
    assert torch.allclose(got, (query @ shared.mT).softmax(-1) @ shared)


def test_a_function_of_four_axes_gets_four_axes_in_every_tile():
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 3, 20, 4, dtype=torch.float64)
    score = scores.Custom(lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k))
    got = qkv.attend(x, x, x, score=score, kernel=TiledKernel(budget=16))
    assert torch.allclose(got, (x @ x.mT).softmax(-1) @ x)


def test_vmap_maps_the_parameters_of_a_function_or_what_it_compares():
    torch = pytest.importorskip("torch")
    x, slopes = torch.randn(5, 4, 9, 3, dtype=torch.float64), torch.rand(5, 4, dtype=torch.float64)

    def attend(x, s):
        return qkv.attend(x, x, x, score=scores.Custom(per_head, (s,)), kernel=TiledKernel(budget=16))

    wanted = torch.stack([per_head(a, a, s).softmax(-1) @ a for a, s in zip(x, slopes, strict=True)])
    assert torch.allclose(torch.func.vmap(attend)(x, slopes), wanted)
    wanted = torch.stack([per_head(a, a, slopes[0]).softmax(-1) @ a for a in x])
    assert torch.allclose(torch.func.vmap(attend, in_dims=(0, None))(x, slopes[0]), wanted)
