"""Check that the arrays of a call are of a kind that attention can be computed from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from qkv.core.arrays import dtype_name, is_array, is_tensor, is_text
from qkv.core.parts import Part
from qkv.errors import KindError

__all__ = ["check_arrays", "check_data"]

_NUMBERS = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64|80|96|128)|bfloat16")
"""Names of the dtypes of numbers that can be converted to a floating-point dtype in which sums are accumulated."""


def check_arrays(query: object, key: object, value: object, parts: Iterable[object] = ()) -> None:
    """Check that query, key and value are dense arrays of real numbers or, for query and key, text.

    The tensors of `parts` must be dense too, and hold data.

    Raises:
        KindError: an array is sparse, nested, quantized, masked, without data, or holds other elements, such as
            dates or 8-bit floating-point numbers.
    """
    for part in parts:
        for array in part.arrays() if isinstance(part, Part) else ():
            if is_tensor(array):
                _check_tensor(f"each array of {type(part).__name__}", array)
                check_data(f"each array of {type(part).__name__}", array)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not is_array(x):
            continue
        if is_tensor(x):
            _check_tensor(name, x)
        elif type(x).__name__ == "MaskedArray":
            raise KindError(
                f"{name} must be an array without a mask of its own, got a MaskedArray. Pass its data, and its mask as "
                "masks.Keys or masks.Pairs."
            )
        text = is_text(x) and name != "value"
        if not text and not _NUMBERS.fullmatch(dtype_name(x)):
            raise KindError(
                f"{name} must hold real numbers, got {dtype_name(x)} elements. Convert them to real numbers first, for "
                "example of dtype float32."
            )


def _check_tensor(name: str, x: Any) -> None:
    if x.is_nested:
        raise KindError(
            f"{name} must be a tensor without ragged axes, got a nested tensor. Convert it with to_padded_tensor(0), "
            "and exclude the padding with masks.Lengths."
        )
    if str(x.layout) != "torch.strided":
        layout = str(x.layout).removeprefix("torch.")
        raise KindError(f"{name} must be a dense tensor, got a tensor in the layout {layout}. Call to_dense().")
    if x.is_quantized:
        raise KindError(f"{name} must be a tensor of plain numbers, got a quantized tensor. Call dequantize().")


def check_data(name: str, x: object) -> None:
    """Check that an array is not a tensor that has a shape alone.

    Raises:
        KindError: the tensor is on the device meta, or a fake tensor of a tracer.
    """
    kind = "tensor on the device meta" if getattr(x, "is_meta", False) else "fake tensor"
    if kind != "fake tensor" or hasattr(x, "fake_mode"):
        raise KindError(f"{name} must hold data, got a {kind}. Call qkv.explain for a plan without data.")
