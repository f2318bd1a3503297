"""The `Attention` operator of ONNX, said in qkv's words and run by its engine.

    Q * sqrt(scale) · K * sqrt(scale)  ->  Softcap  ->  + mask  ->  Softmax  ->  · V

A boolean mask, causality, windows and lengths become masks; a float mask becomes a bias. Nothing of the size
of queries times keys is made unless the mask is of that size or the fourth output is asked for.

Source: https://onnx.ai/onnx/operators/onnx__Attention.html, versions 23, 24 and 25, as corrected in onnx
1.23: a query that may attend to no key gives 0, not NaN, which is qkv's rule too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

from qkv.core.arrays import (
    Array,
    cast,
    dtype_name,
    is_array,
    is_floating,
    itemsize,
    library,
    namespace,
    zeros,
)
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.engine import attend, observe
from qkv.errors import KindError, OptionError, ShapeError
from qkv.interop.onnx.attributes import Attributes
from qkv.masks import Causal, Keys, Lengths, Mask, Pairs, Window
from qkv.readouts import Dense
from qkv.scores import Biased, Constant, ScaledDot, Softcap

__all__ = ["AttentionOutputs", "attention"]


class AttentionOutputs(NamedTuple):
    """The four outputs of the operator.

    Attributes:
        Y: `(batch, q_num_heads, q, value_width)`, or `(batch, q, q_num_heads * value_width)` of inputs with
            three axes.
        present_key: `(batch, kv_num_heads, k, width)`: the past and what is new.
        present_value: `(batch, kv_num_heads, k, value_width)`.
        qk_matmul_output: `(batch, q_num_heads, q, k)`; None unless `qk_matmul_output_mode` is given.
    """

    Y: Array
    present_key: Array
    present_value: Array
    qk_matmul_output: Array | None


def attention(
    Q: Array,
    K: Array,
    V: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    opset: int = 25,
    **attributes: Any,
) -> AttentionOutputs:
    """Run the `Attention` operator of ONNX on NumPy or PyTorch arrays.

        Y = softmax(softcap(scale · Q Kᵀ) + bias) V

    What a node leaves to its implementation is done as everywhere in qkv, and differs from the reference
    implementation of onnx in three points: half precision is accumulated in float32, and `softmax_precision`
    asks for at least that precision; a NaN under a boolean mask, causality, a window or a length is not read
    (a float mask is added to what it finds there, so it stays NaN); and with mode 0 the fourth output is the
    product before the soft cap, as the operator's text and function body say.

    Args:
        Q: `(batch, q_num_heads, q, width)`, or `(batch, q, q_num_heads * width)`.
        K: `(batch, kv_num_heads, k, width)`, or `(batch, k, kv_num_heads * width)`.
        V: `(batch, kv_num_heads, k, value_width)`, or `(batch, k, kv_num_heads * value_width)`.
        attn_mask: broadcasts to `(batch, q_num_heads, q, past + k)`. Booleans, True may attend; or numbers,
            which are added. From opset 24 its last axis may be shorter: what it leaves out is masked.
        past_key, past_value: `(batch, kv_num_heads, past, ·)`, put before K and V.
        nonpad_kv_seqlen: how many keys of each batch element are real, `(batch,)`. From opset 24, without a
            past. Queries then stand at the end of the real keys.
        opset: version of the operator: 23, 24 or 25.
        attributes: of the node, by their names: `is_causal`, `q_num_heads` and `kv_num_heads` (of inputs with
            three axes), `scale`, `softcap`, `softmax_precision`, `left_window_size` and `right_window_size`
            (from opset 25), and `qk_matmul_output_mode`, 0 to 3, which here also asks for the fourth output.

    Returns:
        The four outputs, in the dtype of Q (the present value in that of V).

    Raises:
        OptionError: an attribute that the version does not have, or a value it must not have.
        ShapeError: inputs that do not fit each other.
        KindError: inputs of several libraries, or a mask of integers.

    Example:
        >>> import numpy as np
        >>> q, k = np.zeros((1, 1, 2, 4)), np.zeros((1, 1, 2, 4))
        >>> v = np.array([[[[1.0], [3.0]]]])
        >>> attention(q, k, v, is_causal=1).Y
        array([[[[1.], [2.]]]])
        >>> attention(q, k, v, qk_matmul_output_mode=3).qk_matmul_output
        array([[[[0.5, 0.5], [0.5, 0.5]]]])
    """
    node = Attributes.of(opset, attributes)
    inputs = {"Q": Q, "K": K, "V": V, "attn_mask": attn_mask, "past_key": past_key, "past_value": past_value}
    _check_kinds(inputs)
    flat = Q.ndim == 3
    query, key, value = _with_heads(Q, K, V, node, opset)
    present = _present(key, value, past_key, past_value, nonpad_kv_seqlen, opset)
    sizes = _CallShape.of(query, *present)
    mask, bias = _masks(sizes, attn_mask, nonpad_kv_seqlen, node, opset)
    positions = _positions(sizes, past_key, nonpad_kv_seqlen)

    query, key, value = (_wide(x, node) for x in (query, *present))
    grouped = sizes.split(query, True), sizes.split(key, False), sizes.split(value, False)
    product = Constant() if node.scale == 0 else ScaledDot(node.scale)
    capped = Softcap(product, node.softcap) if node.softcap else product
    score = capped if bias is None else Biased(capped, bias)

    mode, seen = node.qk_matmul_output_mode, None
    if mode in (2, 3):
        # Quadratic memory was asked for; the planner need not be told no.
        memory = 2**29 + 4 * sizes.pairs * max(4, itemsize(dtype_name(query)))
        readout = Dense() if mode == 3 else _Logits()
        result = observe(*grouped, score=score, mask=mask, positions=positions, readouts=[readout], memory=memory)
        output, seen = result.output, result.readouts[0]
    else:
        output = attend(*grouped, score=score, mask=mask, positions=positions)
        if mode is not None:
            seen = (product if mode == 0 else capped)(*(_at_least_single(x) for x in grouped[:2]))
    xp = namespace(output)
    if seen is not None:
        seen = cast(xp.reshape(seen, (*sizes.batch_heads, sizes.q, sizes.k)), Q.dtype)
    output = xp.reshape(cast(output, Q.dtype), (*sizes.batch_heads, sizes.q, output.shape[-1]))
    if flat:
        output = xp.reshape(xp.permute_dims(output, (0, 2, 1, 3)), (Q.shape[0], sizes.q, -1))
    return AttentionOutputs(output, *present, seen)


@dataclass(frozen=True, eq=False)
class _Logits(Dense):
    """All logits, −inf where a key is excluded."""

    def read(self, logits: Array, weights: Array, normalizer: Any, tile: Tile) -> Array:
        """The logits."""
        return logits


@dataclass(frozen=True)
class _CallShape:
    """The axes of a call. Where several heads of the query share one of the key, they become an axis."""

    batch: int
    heads: int
    kv_heads: int
    q: int
    k: int

    @classmethod
    def of(cls, query: Array, key: Array, value: Array) -> _CallShape:
        """Those of query, key and value with four axes."""
        (batch, heads, q, width), (key_batch, kv_heads, k, key_width) = query.shape, key.shape
        if width != key_width:
            raise ShapeError(
                f"the heads of Q have width {width}, those of K {key_width}. The operator takes their inner "
                "product: give both the same width."
            )
        if key_batch != batch or value.shape[:3] != (batch, kv_heads, k):
            raise ShapeError(
                f"Q, K and V have shapes {tuple(query.shape)}, {tuple(key.shape)} and "
                f"{tuple(value.shape)} as (batch, heads, length, width). The batch must be the same, and K "
                "and V must have the same heads and length."
            )
        if heads % kv_heads:
            raise ShapeError(
                f"Q has {heads} heads, K and V have {kv_heads}. q_num_heads must be a multiple of "
                "kv_num_heads, so that each head of K serves as many of Q."
            )
        return cls(batch, heads, kv_heads, q, k)

    @property
    def grouped(self) -> bool:
        """Whether heads must be split: one head of the key for all of them broadcasts by itself."""
        return self.kv_heads not in (1, self.heads)

    @property
    def batch_heads(self) -> tuple[int, int]:
        """Batch axes of the outputs."""
        return self.batch, self.heads

    @property
    def pairs(self) -> int:
        """How many pairs of query and key there are."""
        return self.batch * self.heads * self.q * self.k

    def split(self, x: Array, per_head: bool) -> Array:
        """`(batch, heads, n, m)` as `(batch, kv_heads, group, n, m)`, where heads are split."""
        if not self.grouped:
            return x
        xp, (batch, heads, *core) = namespace(x), x.shape
        split = (self.kv_heads, self.heads // self.kv_heads) if per_head and heads != 1 else (heads, 1)
        return xp.reshape(x, (batch, *split, *core))

    def per_batch(self, x: Array) -> Array:
        """`(batch,)` as one number for each batch element of the call."""
        return namespace(x).reshape(x, (-1, 1, 1) if self.grouped else (-1, 1))


def _check_kinds(inputs: dict[str, Any]) -> None:
    arrays = {name: x for name, x in inputs.items() if x is not None}
    for name, x in arrays.items():
        if not is_array(x):
            raise KindError(f"{name} is a {type(x).__name__}. Give NumPy or PyTorch arrays.")
    library(*arrays.values())
    for name, x in arrays.items():
        numbers = is_floating(x)
        if not numbers and not (name == "attn_mask" and "bool" in dtype_name(x)):
            wanted = (
                "booleans, True means may attend, or floating-point numbers, which are added to the logits"
                if name == "attn_mask"
                else "floating-point numbers"
            )
            raise KindError(f"{name} holds {dtype_name(x)}. The operator takes {wanted}.")


def _with_heads(Q: Array, K: Array, V: Array, node: Attributes, opset: int) -> tuple[Array, Array, Array]:
    """Query, key and value with four axes."""
    ranks = {Q.ndim, K.ndim, V.ndim}
    heads = {"q_num_heads": node.q_num_heads, "kv_num_heads": node.kv_num_heads}
    if ranks == {4}:
        for (name, n), x in zip(heads.items(), (Q, K), strict=True):
            if n is not None and (opset >= 25 or n != x.shape[1]):
                raise OptionError(
                    f"the attribute {name} is {n}, for inputs with four axes, of which the second says the "
                    f"heads ({x.shape[1]}). Leave it out."
                )
        return Q, K, V
    if ranks != {3}:
        raise ShapeError(
            f"Q, K and V have {Q.ndim}, {K.ndim} and {V.ndim} axes. They must all have four, (batch, heads, "
            "length, width), or all three, (batch, length, heads * width)."
        )
    for name, n in heads.items():
        if n is None:
            raise OptionError(f"inputs with three axes need the attribute {name}, which is missing.")
    split = []
    for name, x, attribute in (("Q", Q, "q_num_heads"), ("K", K, "kv_num_heads"), ("V", V, "kv_num_heads")):
        xp, n, (batch, length, width) = namespace(x), heads[attribute] or 1, x.shape
        if width % n:
            raise ShapeError(f"the last axis of {name} is {width}, which {attribute}={n} does not divide.")
        split.append(xp.permute_dims(xp.reshape(x, (batch, length, n, width // n)), (0, 2, 1, 3)))
    return split[0], split[1], split[2]


def _present(
    key: Array,
    value: Array,
    past_key: Array | None,
    past_value: Array | None,
    lengths: Array | None,
    opset: int,
) -> tuple[Array, Array]:
    """Keys and values with those of the past before them."""
    if (past_key is None) != (past_value is None):
        raise OptionError("only one of past_key and past_value is given. Give both or none.")
    if lengths is not None and opset < 24:
        raise OptionError(f"nonpad_kv_seqlen came with opset 24, this call is of opset {opset}.")
    if past_key is None or past_value is None:
        return key, value
    if lengths is not None:
        raise OptionError(
            "nonpad_kv_seqlen is given together with past_key. It says how much of K and V is real where "
            "they are the whole cache; leave one of them out."
        )
    xp = namespace(key)
    for name, past, new in (("past_key", past_key, key), ("past_value", past_value, value)):
        if past.ndim != 4 or past.shape[:2] != new.shape[:2] or past.shape[3] != new.shape[3]:
            wanted = f"({new.shape[0]}, {new.shape[1]}, past, {new.shape[3]})"
            raise ShapeError(f"{name} has shape {tuple(past.shape)}. It must be {wanted}, as what is new.")
    if past_key.shape[2] != past_value.shape[2]:
        raise ShapeError(
            f"past_key has length {past_key.shape[2]}, past_value {past_value.shape[2]}. They must be equal."
        )
    return xp.concat([past_key, key], axis=2), xp.concat([past_value, value], axis=2)


def _masks(
    sizes: _CallShape, attn_mask: Array | None, lengths: Array | None, node: Attributes, opset: int
) -> tuple[Mask | None, Array | None]:
    """What excludes pairs, as a mask; and what is added to their logits."""
    parts: list[Mask] = []
    bias = None
    if node.window == (None, 0):
        parts.append(Causal())
    elif node.window != (None, None):
        parts.append(Window(*node.window))
    if lengths is not None:
        if tuple(lengths.shape) != (sizes.batch,) or "int" not in dtype_name(lengths):
            raise ShapeError(
                f"nonpad_kv_seqlen has shape {tuple(lengths.shape)} and dtype {dtype_name(lengths)}. It must "
                f"be ({sizes.batch},) integers, one for each batch element."
            )
        parts.append(Lengths(sizes.per_batch(lengths)))
    if attn_mask is not None:
        found = sizes.split(_fitted(attn_mask, sizes, opset), True)
        xp, by_key = namespace(found), found.shape[-2] == 1
        if not is_floating(found):
            parts.append(Keys(found[..., 0, :]) if by_key else Pairs(found))
        elif by_key:
            # Fused kernels take a mask of keys and a finite bias of keys, not a bias of −inf.
            found = _wide(found, node)
            parts.append(Keys((found != -math.inf)[..., 0, :]))
            bias = xp.where(found == -math.inf, xp.zeros_like(found), found)
        else:
            bias = _wide(found, node)
    return reduce(lambda left, right: left & right, parts) if parts else None, bias


def _fitted(mask: Array, sizes: _CallShape, opset: int) -> Array:
    """The mask with four axes, its last one as long as the keys."""
    xp = namespace(mask)
    wanted = (sizes.batch, sizes.heads, sizes.q, sizes.k)
    shape = (1,) * (4 - mask.ndim) + tuple(mask.shape)
    short = opset >= 24 and 0 <= shape[-1] < sizes.k
    if (
        len(shape) != 4
        or any(n not in (1, m) for n, m in zip(shape[:3], wanted, strict=False))
        or not (short or shape[-1] in (1, sizes.k))
    ):
        raise ShapeError(
            f"attn_mask has shape {tuple(mask.shape)}, which does not broadcast to {wanted}: batch, heads, "
            "queries, and keys with those of the past."
        )
    mask = xp.reshape(mask, shape)
    if not short:
        return mask
    rest = zeros(mask, (*shape[:3], sizes.k - shape[-1]))
    return xp.concat([mask, rest - math.inf if is_floating(mask) else rest], axis=-1)


def _positions(sizes: _CallShape, past_key: Array | None, lengths: Array | None) -> Positions:
    """Where query 0 stands among the keys."""
    if lengths is not None:
        return Positions(query_start=sizes.per_batch(lengths) - sizes.q)
    return Positions(query_start=0 if past_key is None else int(past_key.shape[2]))


def _wide(x: Array, node: Attributes) -> Array:
    """In float64 where the softmax is to be. NumPy's bfloat16 in float32: it cannot calculate with it."""
    xp = namespace(x)
    if node.double:
        return cast(x, xp.float64)
    return cast(x, xp.float32) if library(x) == "numpy" and dtype_name(x) == "bfloat16" else x


def _at_least_single(x: Array) -> Array:
    """In float32 where it is in half precision."""
    return cast(x, namespace(x).float32) if itemsize(dtype_name(x)) < 4 else x
