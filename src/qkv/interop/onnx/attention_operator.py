"""Implementation of ONNX's `Attention` operator on NumPy and PyTorch arrays by `qkv.attend`.

    Q * sqrt(scale) · K * sqrt(scale)  ->  Softcap  ->  + mask  ->  Softmax  ->  · V

A boolean mask, causality, windows and lengths become masks; a float mask becomes a bias. Arrays of q · k
elements are allocated only if the given mask has that size or the fourth output is requested.

Source: https://onnx.ai/onnx/operators/onnx__Attention.html, versions 23, 24 and 25, as corrected in onnx
1.23: a query that may attend to no key gives 0, not NaN, as everywhere in qkv.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from qkv.core.arrays import cast, dtype_name, is_array, is_floating, itemsize, library, namespace, zeros
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, Int, PairArray, Shaped
from qkv.engine import attend, observe
from qkv.errors import KindError, OptionError, ShapeError
from qkv.masks import AllowedKeys, AllowedPairs, Causal, Lengths, Mask, Window
from qkv.masks.base import and_masks
from qkv.normalizers import Normalizer
from qkv.readouts import Dense
from qkv.scores import Biased, Constant, ScaledDot, Score, Softcap

_OPSETS = (23, 24, 25)
"""Opsets that define a version of the operator; a version is valid until the next such opset."""


@dataclass(frozen=True)
class Attributes:
    """Attributes of an `Attention` node of ONNX, with default values for attributes that the node does not set.

    Example:
        >>> Attributes.parse(25, {"is_causal": 1, "left_window_size": 2}).window
        (2, 0)
    """

    is_causal: bool = False
    kv_num_heads: int | None = None
    left_window_size: int = -1
    q_num_heads: int | None = None
    qk_matmul_output_mode: int | None = None
    right_window_size: int = -1
    scale: float | None = None
    softcap: float = 0.0
    softmax_precision: int | None = None

    @classmethod
    def parse(cls, opset: int, attributes: Mapping[str, object]) -> Attributes:
        """Return the attributes of a node, after checking their names and values.

        Raises:
            OptionError: an attribute is unknown in this opset, or has an invalid value.
        """
        require_opset(opset)
        known = [name for name, rule in _RULES.items() if rule.since <= opset]
        for name in attributes:
            if name not in known:
                since = f"Use opset {_RULES[name].since}" if name in _RULES else "Correct its name"
                raise OptionError(
                    f"attributes of Attention in opset {opset} must be among {', '.join(known)}, got {name!r}. {since}."
                )
        checked = {name: _RULES[name].check(name, value) for name, value in attributes.items() if value is not None}
        return cls(**checked)  # type: ignore[arg-type]

    @property
    def window(self) -> tuple[int | None, int | None]:
        """Numbers of keys before and after its position that a query may attend to. None stands for all keys."""
        before = None if self.left_window_size < 0 else self.left_window_size
        after = None if self.right_window_size < 0 else self.right_window_size
        return before, 0 if self.is_causal else after


def require_opset(opset: int) -> None:
    """Raise an `OptionError` if the opset does not define a version of the `Attention` operator."""
    if opset not in _OPSETS:
        raise OptionError(
            f"opset must be 23, 24 or 25, got {opset!r}. Choose the largest of these that does not exceed the "
            "opset of the model."
        )


class _Rule(NamedTuple):
    """Valid values of an attribute of the `Attention` operator, and the opset that introduced the attribute."""

    convert: Callable[[float], bool | int | float]
    valid: Callable[[float], bool]
    condition: str
    since: int = 23

    def check(self, name: str, value: Any) -> bool | int | float:
        """Return the value, converted to the type of the attribute, or raise an `OptionError` if it is invalid."""
        flag = isinstance(value, (bool, np.bool_)) and self.convert is not bool
        accepted = isinstance(value, _ACCEPTED[self.convert]) and not flag
        if not accepted or not self.valid(value):
            raise OptionError(f"{name} must be {self.condition}, got {value!r}. Omit it to use the default of ONNX.")
        return self.convert(value)


_ACCEPTED: dict[Callable[[float], bool | int | float], tuple[type, ...]] = {
    bool: (bool, np.bool_, int, np.integer),
    int: (int, np.integer),
    float: (int, np.integer, float, np.floating),
}

_HEADS = _Rule(int, lambda n: n >= 1, "an integer of at least 1")
_WINDOW = _Rule(int, lambda n: n >= -1, "an integer of at least 0, or -1 for all keys on that side", since=25)
_NUMBER = _Rule(float, lambda n: 0 <= n < math.inf, "a finite number of at least 0")
_RULES = {
    "is_causal": _Rule(bool, lambda n: n in (0, 1), "0 or 1"),
    "kv_num_heads": _HEADS,
    "left_window_size": _WINDOW,
    "q_num_heads": _HEADS,
    "qk_matmul_output_mode": _Rule(
        int,
        lambda n: n in (0, 1, 2, 3),
        "0 (product of query and key), 1 (after softcap), 2 (with bias) or 3 (weights)",
    ),
    "right_window_size": _WINDOW,
    "scale": _NUMBER,
    "softcap": _NUMBER,
    "softmax_precision": _Rule(
        int, lambda n: n in (1, 10, 11, 16), "1 (float32), 10 (float16), 11 (float64) or 16 (bfloat16)"
    ),
}


class OperatorOutputs(NamedTuple):
    """The four outputs of ONNX's `Attention` operator.

    Attributes:
        Y: `(batch, q_num_heads, q, value_width)`, or `(batch, q, q_num_heads * value_width)` for inputs with
            three axes.
        present_key: `(batch, kv_num_heads, past + k, width)`, the past keys followed by the new keys.
        present_value: `(batch, kv_num_heads, past + k, value_width)`, the past values followed by the new values.
        qk_matmul_output: `(batch, q_num_heads, q, past + k)`; None unless `qk_matmul_output_mode` is given.

    Example:
        >>> import numpy as np
        >>> from qkv.interop import onnx
        >>> q, k, v = np.zeros((1, 1, 1, 4)), np.zeros((1, 1, 2, 4)), np.array([[[[1.0], [3.0]]]])
        >>> outputs = onnx.attention(q, k, v)
        >>> outputs.Y, outputs.present_key.shape, outputs.qk_matmul_output
        (array([[[[2.]]]]), (1, 1, 2, 4), None)
    """

    Y: Float[Array, "batch *q_num_heads q y_width"]
    present_key: Float[Array, "batch kv_num_heads past_and_k width"]
    present_value: Float[Array, "batch kv_num_heads past_and_k value_width"]
    qk_matmul_output: Float[Array, "batch q_num_heads q past_and_k"] | None


def attention(
    Q: Float[Array, "batch *q_num_heads q q_width"],
    K: Float[Array, "batch *kv_num_heads k k_width"],
    V: Float[Array, "batch *kv_num_heads k v_width"],
    attn_mask: Shaped[Array, "*_"] | None = None,
    past_key: Float[Array, "batch heads past width"] | None = None,
    past_value: Float[Array, "batch heads past value_width"] | None = None,
    nonpad_kv_seqlen: Int[Array, " batch"] | None = None,
    *,
    opset: int = 25,
    **attributes: bool | int | float | None,
) -> OperatorOutputs:
    """Run ONNX's `Attention` operator on NumPy or PyTorch arrays and return its four outputs.

        Y = softmax(softcap(scale · Q Kᵀ) + bias) V

    Three choices that the operator leaves to the implementation differ from the reference implementation of
    onnx. Half precision is accumulated in float32, and `softmax_precision` raises that precision further. NaN
    in a key or value that is excluded by a boolean mask, causality, a window or a length does not reach the
    output; NaN in a key that only a float mask excludes does. With mode 0 the fourth output is the product before
    the soft cap, as in the text and function body of the operator.

    Args:
        Q: `(batch, q_num_heads, q, width)`, or `(batch, q, q_num_heads * width)`.
        K: `(batch, kv_num_heads, k, width)`, or `(batch, k, kv_num_heads * width)`.
        V: `(batch, kv_num_heads, k, value_width)`, or `(batch, k, kv_num_heads * value_width)`.
        attn_mask: broadcasts to `(batch, q_num_heads, q, past + k)`. A boolean mask excludes the pairs
            that are False; a float mask is added to the logits. From opset 24 the last axis may be shorter; missing
            keys are masked.
        past_key: `(batch, kv_num_heads, past, width)`, prepended to K.
        past_value: `(batch, kv_num_heads, past, value_width)`, prepended to V.
        nonpad_kv_seqlen: `(batch,)`, the number of keys of each batch element that are not padding; requires
            opset 24, and no past. The queries are then aligned with the last of these keys.
        opset: version of the operator: 23, 24 or 25.
        attributes: attributes of the node by name: `is_causal`; `q_num_heads` and `kv_num_heads` (for inputs
            with three axes); `scale`; `softcap`; `softmax_precision`; `left_window_size` and
            `right_window_size` (from opset 25); and `qk_matmul_output_mode` (0 to 3), which also requests the
            fourth output.

    Returns:
        The four outputs, in the dtype of Q; `present_value` in the dtype of V.

    Raises:
        OptionError: an attribute is unknown in this opset, or has an invalid value.
        ShapeError: the shapes of the inputs do not match.
        KindError: the inputs belong to several libraries, or the mask holds integers.

    Example:
        >>> import numpy as np
        >>> q, k = np.zeros((1, 1, 2, 4)), np.zeros((1, 1, 2, 4))
        >>> v = np.array([[[[1.0], [3.0]]]])
        >>> attention(q, k, v, is_causal=1).Y
        array([[[[1.], [2.]]]])
        >>> attention(q, k, v, qk_matmul_output_mode=3).qk_matmul_output
        array([[[[0.5, 0.5], [0.5, 0.5]]]])
    """
    node = Attributes.parse(opset, attributes)
    inputs = {"Q": Q, "K": K, "V": V, "attn_mask": attn_mask, "past_key": past_key, "past_value": past_value}
    _check_kinds(inputs)
    three_axes = Q.ndim == 3
    query, key, value = _split_heads(Q, K, V, node, opset)
    present = _prepend_past(key, value, past_key, past_value, nonpad_kv_seqlen, opset)
    shape = _CallShape.check(query, *present)
    mask, bias = _mask_and_bias(shape, attn_mask, nonpad_kv_seqlen, node, opset)
    positions = _positions(shape, past_key, nonpad_kv_seqlen)

    query, key, value = (_compute_dtype(x, node) for x in (query, *present))
    grouped = shape.split(query, True), shape.split(key, False), shape.split(value, False)
    product: Score = Constant() if node.scale == 0 else ScaledDot(node.scale)
    capped = Softcap(product, node.softcap) if node.softcap else product
    score = capped if bias is None else Biased(capped, bias)

    xp, mode, matrix = namespace(query), node.qk_matmul_output_mode, None
    if mode in (2, 3):
        # The requested output is quadratic, so the memory limit must allow it.
        memory = 2**29 + 4 * shape.batch * shape.heads * shape.q * shape.k * max(4, itemsize(dtype_name(query)))
        readout = Dense() if mode == 3 else _Logits()
        result = observe(*grouped, score=score, mask=mask, positions=positions, readouts=[readout], memory=memory)
        output, matrix = result.output, result.readouts[0]
    else:
        output = attend(*grouped, score=score, mask=mask, positions=positions)
        if mode is not None:
            left, right = (cast(x, xp.float32) if itemsize(dtype_name(x)) < 4 else x for x in grouped[:2])
            matrix = (product if mode == 0 else capped)(left, right)
    if matrix is not None:
        matrix = cast(xp.reshape(matrix, (shape.batch, shape.heads, shape.q, shape.k)), Q.dtype)
    output = xp.reshape(cast(output, Q.dtype), (shape.batch, shape.heads, shape.q, output.shape[-1]))
    if three_axes:
        output = xp.reshape(xp.permute_dims(output, (0, 2, 1, 3)), (Q.shape[0], shape.q, -1))
    return OperatorOutputs(output, *present, matrix)


@dataclass(frozen=True, eq=False)
class _Logits(Dense):
    """Readout of all logits of a call, −inf where a key is masked."""

    def read(self, logits: PairArray, weights: PairArray, normalizer: Normalizer, tile: Tile) -> PairArray:
        """Return the logits of a tile unchanged."""
        return logits


@dataclass(frozen=True)
class _CallShape:
    """Lengths of the axes of a call, with methods that reshape arrays so that grouped heads broadcast."""

    batch: int
    heads: int
    kv_heads: int
    q: int
    k: int

    @classmethod
    def check(
        cls,
        query: Float[Array, "batch heads q width"],
        key: Float[Array, "batch kv_heads k width"],
        value: Float[Array, "batch kv_heads k value_width"],
    ) -> _CallShape:
        """Return the lengths of the axes of query, key and value, or raise a `ShapeError` if they do not match."""
        (batch, heads, q, width), (key_batch, kv_heads, k, key_width) = query.shape, key.shape
        if width != key_width:
            raise ShapeError(
                f"the heads of Q and K must have the same width, got width {width} for Q and {key_width} for K. "
                "Project Q or K to the width of the other input."
            )
        if key_batch != batch or value.shape[:3] != (batch, kv_heads, k):
            raise ShapeError(
                "Q, K and V must have the same batch size, and K and V the same number of heads and the same length, "
                f"got shapes {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)} as (batch, heads, "
                "length, width). "
                "Expand the arrays to equal sizes."
            )
        if heads % kv_heads:
            raise ShapeError(
                f"the number of heads of Q must be a multiple of the number of heads of K and V, {kv_heads}, got "
                f"{heads}. Check the shapes of Q and K or, for inputs with three axes, q_num_heads and kv_num_heads."
            )
        return cls(batch, heads, kv_heads, q, k)

    @property
    def grouped(self) -> bool:
        """Whether there are several key heads, each of which is shared by several query heads."""
        return self.kv_heads not in (1, self.heads)

    def split(
        self, x: Shaped[Array, "batch heads rows cols"], per_head: bool
    ) -> Shaped[Array, "batch *kv_heads_and_group rows cols"]:
        """Return an array whose head axis is split into (kv_heads, group) if heads are grouped, else unchanged.

        Without `per_head`, and for an array with one head, the group axis has length 1.
        """
        if self.grouped:
            batch, heads, *matrix = x.shape
            split = (self.kv_heads, self.heads // self.kv_heads) if per_head and heads != 1 else (heads, 1)
            x = namespace(x).reshape(x, (batch, *split, *matrix))
        return x

    def per_batch(self, x: Int[Array, " batch"]) -> Int[Array, "batch 1"] | Int[Array, "batch 1 1"]:
        """Return an array `(batch,)` reshaped so that it broadcasts over the heads of the call."""
        return namespace(x).reshape(x, (-1, 1, 1) if self.grouped else (-1, 1))


def _check_kinds(inputs: dict[str, Shaped[Array, "*_"] | None]) -> None:
    arrays = {name: x for name, x in inputs.items() if x is not None}
    for name, x in arrays.items():
        if not is_array(x):
            raise KindError(
                f"{name} must be a NumPy array or a PyTorch tensor, got a {type(x).__name__}. "
                "Convert it with numpy.asarray."
            )
    library(*arrays.values())
    for name, x in arrays.items():
        if not is_floating(x) and not (name == "attn_mask" and "bool" in dtype_name(x)):
            condition = (
                "booleans, True for pairs that may attend, or floating-point elements to add to the logits"
                if name == "attn_mask"
                else "floating-point elements"
            )
            raise KindError(f"{name} must hold {condition}, got dtype {dtype_name(x)}. Convert it to float32.")


def _split_heads(
    Q: Float[Array, "batch *q_num_heads q q_width"],
    K: Float[Array, "batch *kv_num_heads k k_width"],
    V: Float[Array, "batch *kv_num_heads k v_width"],
    node: Attributes,
    opset: int,
) -> tuple[
    Float[Array, "batch heads q width"],
    Float[Array, "batch kv_heads k width"],
    Float[Array, "batch kv_heads k value_width"],
]:
    """Return Q, K and V with four axes, (batch, heads, length, width)."""
    ranks = {Q.ndim, K.ndim, V.ndim}
    heads = {"q_num_heads": node.q_num_heads, "kv_num_heads": node.kv_num_heads}
    if ranks == {4}:
        for (name, n), x in zip(heads.items(), (Q, K), strict=True):
            if n is not None and (opset >= 25 or n != x.shape[1]):
                raise OptionError(
                    f"{name} must be omitted for inputs with four axes, got {n}. The length of the second axis, "
                    f"{x.shape[1]}, is the number of heads."
                )
        return Q, K, V
    if ranks != {3}:
        raise ShapeError(
            "Q, K and V must all have four axes, (batch, heads, length, width), or all have three axes, (batch, "
            f"length, heads * width), got {Q.ndim}, {K.ndim} and {V.ndim} axes. "
            "Reshape them to one of both forms."
        )
    for name, n in heads.items():
        if n is None:
            raise OptionError(f"{name} must be an integer for inputs with three axes, got None. Pass {name}=….")
    split = []
    for name, x, attribute in (("Q", Q, "q_num_heads"), ("K", K, "kv_num_heads"), ("V", V, "kv_num_heads")):
        xp, n, (batch, length, width) = namespace(x), heads[attribute] or 1, x.shape
        if width % n:
            raise ShapeError(
                f"the length of the last axis of {name} must be a multiple of {attribute}, {n}, got {width}. Pass the "
                "number of heads that the array holds side by side."
            )
        split.append(xp.permute_dims(xp.reshape(x, (batch, length, n, width // n)), (0, 2, 1, 3)))
    return split[0], split[1], split[2]


def _prepend_past(
    key: Float[Array, "batch kv_heads k width"],
    value: Float[Array, "batch kv_heads k value_width"],
    past_key: Float[Array, "batch kv_heads past width"] | None,
    past_value: Float[Array, "batch kv_heads past value_width"] | None,
    lengths: Int[Array, " batch"] | None,
    opset: int,
) -> tuple[Float[Array, "batch kv_heads past_and_k width"], Float[Array, "batch kv_heads past_and_k value_width"]]:
    """Return the keys preceded by `past_key` and the values preceded by `past_value`, if these are passed."""
    if (past_key is None) != (past_value is None):
        passed, missing = ("past_value", "past_key") if past_key is None else ("past_key", "past_value")
        raise OptionError(f"past_key and past_value must be passed together, got only {passed}. Pass {missing} too.")
    if lengths is not None and opset < 24:
        raise OptionError(
            f"opset must be at least 24 if nonpad_kv_seqlen is passed, got {opset}. Pass opset=24 or opset=25."
        )
    if past_key is None or past_value is None:
        return key, value
    if lengths is not None:
        raise OptionError(
            "nonpad_kv_seqlen must be None if past_key is passed, got an array. Omit it, or pass past and new keys "
            "together as K, and past and new values together as V."
        )
    xp = namespace(key)
    for name, past, new in (("past_key", past_key, key), ("past_value", past_value, value)):
        if past.ndim != 4 or past.shape[:2] != new.shape[:2] or past.shape[3] != new.shape[3]:
            expected = f"({new.shape[0]}, {new.shape[1]}, n, {new.shape[3]})"
            raise ShapeError(
                f"{name} must have shape {expected} for any n, got {tuple(past.shape)}. "
                "Pass the outputs present_key and present_value of the step before."
            )
    if past_key.shape[2] != past_value.shape[2]:
        raise ShapeError(
            f"past_key and past_value must have the same length along axis 2, got {past_key.shape[2]} and "
            f"{past_value.shape[2]}. "
            "Pass the keys and values of the same tokens."
        )
    return xp.concat([past_key, key], axis=2), xp.concat([past_value, value], axis=2)


def _mask_and_bias(
    shape: _CallShape,
    attn_mask: Shaped[Array, "*_"] | None,
    lengths: Int[Array, " batch"] | None,
    node: Attributes,
    opset: int,
) -> tuple[Mask | None, Float[Array, "*#batch #q #k"] | None]:
    """Return the mask that excludes pairs and the bias that is added to the logits. Each may be None."""
    masks: list[Mask] = []
    bias = None
    if node.window == (None, 0):
        masks.append(Causal())
    elif node.window != (None, None):
        masks.append(Window(*node.window))
    if lengths is not None:
        if tuple(lengths.shape) != (shape.batch,) or "int" not in dtype_name(lengths):
            raise ShapeError(
                f"nonpad_kv_seqlen must hold integers and have shape ({shape.batch},), got dtype {dtype_name(lengths)} "
                f"and shape {tuple(lengths.shape)}. Pass the number of keys of each batch element."
            )
        masks.append(Lengths(shape.per_batch(lengths)))
    if attn_mask is not None:
        array = shape.split(_broadcastable_mask(attn_mask, shape, opset), True)
        xp, by_key = namespace(array), array.shape[-2] == 1
        if not is_floating(array):
            masks.append(AllowedKeys(array[..., 0, :]) if by_key else AllowedPairs(array))
        elif by_key:
            # Fused kernels support a mask of keys and a finite bias of keys, but not a bias of −inf.
            array = _compute_dtype(array, node)
            excluded = xp.isinf(array) & (array < 0)
            masks.append(AllowedKeys(~excluded[..., 0, :]))
            bias = xp.where(excluded, xp.zeros_like(array), array)
        else:
            bias = _compute_dtype(array, node)
    return and_masks(*masks), bias


def _broadcastable_mask(
    mask: Shaped[Array, "*_"], call: _CallShape, opset: int
) -> Shaped[Array, "#batch #heads #q #k"]:
    """Return `mask` with four axes. Its last axis has the length of the keys or 1."""
    xp = namespace(mask)
    expected = (call.batch, call.heads, call.q, call.k)
    shape = (1,) * (4 - mask.ndim) + tuple(mask.shape)
    short = opset >= 24 and 0 <= shape[-1] < call.k
    if (
        len(shape) != 4
        or any(n not in (1, m) for n, m in zip(shape[:3], expected, strict=False))
        or not (short or shape[-1] in (1, call.k))
    ):
        raise ShapeError(
            f"attn_mask must broadcast to shape {expected}, got {tuple(mask.shape)}. Its axes are batch, heads, "
            f"queries, and past and new keys."
        )
    mask = xp.reshape(mask, shape)
    if short:
        rest = zeros(mask, (*shape[:3], call.k - shape[-1]))
        mask = xp.concat([mask, rest - math.inf if is_floating(mask) else rest], axis=-1)
    return mask


def _positions(
    shape: _CallShape, past_key: Float[Array, "batch kv_heads past width"] | None, lengths: Int[Array, " batch"] | None
) -> Positions:
    """Return the positions of the queries among the keys."""
    if lengths is not None:
        return Positions(query_start=shape.per_batch(lengths) - shape.q)
    return Positions(query_start=0 if past_key is None else int(past_key.shape[2]))


def _compute_dtype(x: Float[Array, "*shape"], node: Attributes) -> Float[Array, "*shape"]:
    """Return an array in the dtype in which attention is computed.

    The dtype is float64 if `softmax_precision` requires it, and float32 for NumPy's bfloat16, which has no arithmetic.
    Other arrays are returned unchanged.
    """
    xp = namespace(x)
    if node.softmax_precision == 11:  # float64 in ONNX
        return cast(x, xp.float64)
    return cast(x, xp.float32) if library(x) == "numpy" and dtype_name(x) == "bfloat16" else x
