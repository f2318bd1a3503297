"""The `Attention` operator: onnx's node tests and reference implementation, gradients, memory, refusals."""

import importlib
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import KindError, OptionError, ShapeError
from qkv.interop.onnx import attention

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

NODE_TESTS = {"1.23.2": {23: 69, 24: 13, 25: 11}}
"""Number of node tests of Attention in a release of onnx, by opset."""


def to_torch(x: np.ndarray | None) -> Any:
    if x is None:
        return None
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(x.copy())


def to_numpy(x: Any) -> np.ndarray:
    if isinstance(x, np.ndarray):
        return x
    if x.dtype == torch.bfloat16:
        import ml_dtypes

        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.detach().numpy()


LIBRARIES: dict[str, Callable[[Any], Any]] = {"numpy": lambda x: x, "torch": to_torch}


@pytest.fixture(scope="module")
def node_tests() -> list[Any]:
    """All node tests of onnx whose model is one node of Attention."""
    from onnx.backend.test.case import node

    state = np.random.get_state()
    importlib.import_module(f"{node.__name__}.attention")  # collecting those of all operators takes seconds
    np.random.set_state(state)
    return [case for case in node._NodeTestCases if [node.op_type for node in case.model.graph.node] == ["Attention"]]


def attributes_of(node: Any) -> dict[str, Any]:
    """The attributes of a node; the mode of the fourth output only where that output is wanted."""
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    mode = found.pop("qk_matmul_output_mode", 0)
    return found | ({"qk_matmul_output_mode": mode} if len(node.output) > 3 and node.output[3] else {})


def test_every_node_test_of_onnx_was_collected(node_tests: list[Any]) -> None:
    wanted = NODE_TESTS.get(onnx.__version__)
    found = [case.model.opset_import[0].version for case in node_tests]
    if wanted is None:  # another release has others, and not fewer
        assert len(found) >= 93
    else:
        assert {opset: found.count(opset) for opset in set(found)} == wanted
        assert sum(wanted.values()) == 93


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_node_test_of_onnx_passes_at_its_own_tolerance(library: str, node_tests: list[Any]) -> None:
    from onnx.backend.test.runner import Runner

    failed, kinds = {}, set()
    for case in node_tests:
        (node,) = case.model.graph.node
        for inputs, wanted in case.data_sets:
            given = iter(inputs)
            arrays = [LIBRARIES[library](next(given)) if name else None for name in node.input]
            opset = case.model.opset_import[0].version
            outputs = attention(*arrays, opset=opset, **attributes_of(node))
            got = [to_numpy(x) for x, name in zip(outputs, node.output, strict=False) if name]
            kinds.add(wanted[0].dtype.name)
            try:
                Runner.assert_similar_outputs(wanted, got, case.rtol, case.atol)
            except AssertionError as error:
                failed[case.name] = str(error)
    assert not failed
    assert kinds == {"float16", "bfloat16", "float32"}


# -- against the reference implementation ---------------------------------------------------------------


@st.composite
def nodes(draw: Any) -> tuple[int, list[Any], dict[str, Any]]:
    """Opset, inputs and attributes of a node, in float64."""
    opset = draw(st.sampled_from([23, 24, 25]))
    kv_heads, group = draw(st.sampled_from([(1, 1), (1, 3), (2, 1), (2, 2), (3, 2)]))
    batch, q, k = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 6))
    width, value_width = draw(st.sampled_from([1, 4])), draw(st.sampled_from([1, 3]))
    r = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    heads = kv_heads * group
    Q, K = r.normal(size=(batch, heads, q, width)), r.normal(size=(batch, kv_heads, k, width))
    V = r.normal(size=(batch, kv_heads, k, value_width))
    attributes: dict[str, Any] = {"is_causal": draw(st.sampled_from([0, 1]))}
    cache = draw(st.sampled_from(["none", "past", "lengths"] if opset > 23 else ["none", "past"]))
    past_key = past_value = lengths = None
    if cache == "past":
        past = draw(st.integers(0, 4))
        past_key, past_value = r.normal(size=(batch, kv_heads, past, width)), None
        past_value = r.normal(size=(batch, kv_heads, past, value_width))
        k += past
    elif cache == "lengths":
        lengths = r.integers(0, k + 1, size=batch)
    mask = None
    kind = draw(st.sampled_from(["none", "bool", "float", "excluding"]))
    if kind != "none":
        shape = draw(
            st.sampled_from(
                [(k,), (1, k), (q, k), (heads, q, k), (batch, 1, 1, k), (batch, heads, q, k), (batch, 1, q, k)]
            )
        )
        if opset > 23 and k > 1 and draw(st.booleans()):
            shape = (*shape[:-1], k - 1)
        allowed = r.random(shape) < 0.7
        mask = allowed if kind == "bool" else r.normal(size=shape)
        if kind == "excluding":
            mask = np.where(allowed, mask, -np.inf)
    if opset == 25:
        sides = st.sampled_from([-1, 0, 1, 3])
        attributes |= {"left_window_size": draw(sides), "right_window_size": draw(sides)}
    attributes |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "scale": st.sampled_from([0.0, 0.3, 2.0]),
                "softcap": st.sampled_from([0.0, 0.7, 20.0]),
                "softmax_precision": st.just(11),
                "qk_matmul_output_mode": st.sampled_from([1, 2, 3]),
            },
        )
    )
    if draw(st.booleans()):
        Q, K, V = (x.transpose(0, 2, 1, 3).reshape(batch, x.shape[2], -1) for x in (Q, K, V))
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    return opset, [Q, K, V, mask, past_key, past_value, lengths], attributes


@pytest.mark.parametrize("library", LIBRARIES)
@given(node=nodes())
def test_every_attribute_has_the_meaning_of_the_reference_implementation(
    library: str, node: tuple[int, list[Any], dict[str, Any]]
) -> None:
    from onnx.reference.ops.op_attention import Attention_23, Attention_25

    opset, inputs, attributes = node
    reference = Attention_25 if opset == 25 else Attention_23
    told = list(inputs)
    if told[3] is not None:
        # It takes the rows of a mask for those of the query, so a row that is shared is written out for it.
        q = inputs[0].shape[-2]
        told[3] = np.broadcast_to(told[3], (*told[3].shape[:-2], q, told[3].shape[-1]))
    with np.errstate(all="ignore"):
        wanted = reference._run(reference, *told, **attributes)
    got = attention(*map(LIBRARIES[library], inputs), opset=opset, **attributes)
    asked = "qk_matmul_output_mode" in attributes
    assert (got.qk_matmul_output is not None) == asked
    for mine, theirs in zip(got[: 4 if asked else 3], wanted, strict=False):
        np.testing.assert_allclose(to_numpy(mine), theirs, rtol=1e-9, atol=1e-12)


def test_mode_0_is_the_product_before_the_soft_cap() -> None:
    # The function body of the operator has this node before the soft cap; the reference implementation after.
    r = np.random.default_rng(0)
    x = r.normal(size=(1, 2, 3, 4))
    seen = attention(x, x, x, softcap=0.1, scale=0.5, is_causal=1, qk_matmul_output_mode=0).qk_matmul_output
    np.testing.assert_allclose(seen, 0.5 * x @ x.swapaxes(-1, -2), rtol=1e-12)


# -- what qkv promises, at this border too --------------------------------------------------------------


def test_the_gradient_of_every_input_is_that_of_the_plain_formula() -> None:
    r = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, generator=r, dtype=torch.float64, requires_grad=True)

    shapes = [(2, 4, 3, 5), (2, 2, 3, 5), (2, 2, 3, 6), (1, 4, 3, 7), (2, 2, 4, 5), (2, 2, 4, 6)]
    inputs = [drawn(*shape) for shape in shapes]
    Q, K, V, bias, past_key, past_value = inputs
    got = attention(*inputs, is_causal=1, softcap=2.0, scale=0.4).Y
    keys = torch.cat([past_key, K], 2).repeat_interleave(2, 1)
    values = torch.cat([past_value, V], 2).repeat_interleave(2, 1)
    logits = 2.0 * torch.tanh(0.4 * Q @ keys.mT / 2.0) + bias
    logits = logits + torch.full((3, 7), -math.inf, dtype=torch.float64).triu(5)
    wanted = logits.softmax(-1) @ values
    out = torch.randn(got.shape, generator=r, dtype=torch.float64)
    for mine, theirs in zip(
        torch.autograd.grad(got, inputs, out), torch.autograd.grad(wanted, inputs, out), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("how", ["bool", "causal", "window", "lengths"])
def test_masked_values_do_not_reach_the_output(library: str, how: str) -> None:
    x = np.random.default_rng(0).normal(size=(1, 1, 2, 4))
    poisoned = np.concatenate([x, np.full_like(x, np.nan)], axis=2)
    mask = lengths = None
    attributes: dict[str, Any] = {}
    if how == "bool":
        mask = np.array([[True, True, False, False]] * 2)
    elif how == "lengths":
        lengths = np.array([2])
    else:
        attributes = {"is_causal": 1} if how == "causal" else {"left_window_size": 1, "right_window_size": 0}
        x = x[:, :, :2]
    to = LIBRARIES[library]
    got = attention(to(x), to(poisoned), to(poisoned), to(mask), None, None, to(lengths), **attributes).Y
    wanted = attention(to(x), to(x), to(x), **attributes).Y
    np.testing.assert_allclose(to_numpy(got), to_numpy(wanted), rtol=1e-12)


def test_memory_is_linear_unless_the_fourth_output_is_requested() -> None:
    n = 2048
    x = np.random.default_rng(0).normal(size=(1, 2, n, 16)).astype(np.float32)
    pairs = 2 * n * n * 4

    def peak(**attributes: Any) -> int:
        tracemalloc.start()
        try:
            attention(x, x, x, None, None, None, np.array([n - 5]), softcap=9.0, is_causal=1, **attributes)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak() < pairs / 2
    assert peak(qk_matmul_output_mode=3) >= pairs


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_as_exact_as_its_last_digit(dtype: str) -> None:
    # Many keys with equal logits: a sum in half precision stops growing long before the last.
    n = 8192
    q, k = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, n, 4)
    v = torch.linspace(1, 2, n).reshape(1, 1, n, 1).to(getattr(torch, dtype))
    got = attention(q.to(v.dtype), k.to(v.dtype), v).Y
    assert got.dtype == v.dtype
    assert abs(float(got.squeeze()) - float(v.double().mean())) <= torch.finfo(v.dtype).eps


def test_float64_softmax_of_float32_inputs_is_taken_in_float64() -> None:
    r = np.random.default_rng(0)
    x = (30 * r.normal(size=(1, 1, 64, 16))).astype(np.float32)
    exact = attention(*(x.astype(np.float64),) * 3).Y
    got = attention(x, x, x, softmax_precision=11).Y
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, exact.astype(np.float32))


X = np.zeros((1, 2, 3, 4), np.float32)
F = np.zeros((1, 3, 8), np.float32)
REFUSED: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
    (OptionError, "opset", (X, X, X), {"opset": 22}),
    (OptionError, "left_window_size.*opset 25", (X, X, X), {"opset": 24, "left_window_size": 1}),
    (OptionError, "is_causal.*'casual'", (X, X, X), {"casual": 1}),
    (OptionError, "is_causal", (X, X, X), {"is_causal": 2}),
    (OptionError, "right_window_size", (X, X, X), {"right_window_size": -2}),
    (OptionError, "scale", (X, X, X), {"scale": -1.0}),
    (OptionError, "softcap", (X, X, X), {"softcap": math.nan}),
    (OptionError, "softmax_precision", (X, X, X), {"softmax_precision": 7}),
    (OptionError, "qk_matmul_output_mode", (X, X, X), {"qk_matmul_output_mode": 4}),
    (OptionError, "q_num_heads", (X, X, X), {"q_num_heads": 2}),
    (OptionError, "kv_num_heads", (F, F, F), {"q_num_heads": 2}),
    (OptionError, "past_value", (X, X, X, None, X), {}),
    (OptionError, "at least 24 if nonpad_kv_seqlen", (X, X, X, None, None, None, np.array([3])), {"opset": 23}),
    (OptionError, "nonpad_kv_seqlen.*past_key", (X, X, X, None, X, X, np.array([3])), {}),
    (ShapeError, "nonpad_kv_seqlen", (X, X, X, None, None, None, np.array([3, 3])), {}),
    (ShapeError, "multiple of q_num_heads, 3", (F, F, F), {"q_num_heads": 3, "kv_num_heads": 1}),
    (ShapeError, "3, 4 and 4 axes", (F, X, X), {}),
    (ShapeError, "multiple", (X, X[:, [0, 1, 1]], X[:, [0, 1, 1]]), {}),
    (ShapeError, "width 4.*3", (X, X[..., :3], X), {}),
    (ShapeError, "same", (X, X, X[:, :, :2]), {}),
    (ShapeError, "attn_mask", (X, X, X, np.ones((2, 3), bool)), {}),
    (ShapeError, "attn_mask", (X, X, X, np.ones((3, 2), bool)), {"opset": 23}),
    (ShapeError, "past_key", (X, X, X, None, X[..., :2], X), {}),
    (KindError, "attn_mask.*int64", (X, X, X, np.ones((3, 3), int)), {}),
    (KindError, "Q.*int64", (X.astype(int), X, X), {}),
    (KindError, "list", ([[0.0]], X, X), {}),
    (KindError, "numpy and torch", (X, torch.zeros(1, 2, 3, 4), X), {}),
]


@pytest.mark.parametrize(
    ("error", "said", "inputs", "attributes"), REFUSED, ids=[f"{n}-{r[1][:20]}" for n, r in enumerate(REFUSED)]
)
def test_invalid_inputs_and_attributes_are_refused_by_name(
    error: type[Exception], said: str, inputs: tuple[Any, ...], attributes: dict[str, Any]
) -> None:
    with pytest.raises(error, match=said):
        attention(*inputs, **attributes)
