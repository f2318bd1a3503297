"""The attributes of the `Attention` operator, checked: which version has which, and what each may be.

Source: https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from qkv.errors import OptionError

__all__ = ["OPSETS", "Attributes"]

OPSETS = (23, 24, 25)
"""Versions of the operator; one of them holds until the next."""

_SINCE = {"left_window_size": 25, "right_window_size": 25}
_PRECISIONS = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}


@dataclass(frozen=True)
class Attributes:
    """What a node says besides its inputs; None, or −1 for windows, where it says nothing.

    Example:
        >>> Attributes.of(25, {"is_causal": 1, "left_window_size": 2}).window
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
    def of(cls, opset: int, given: dict[str, Any]) -> Attributes:
        """Those of a node of this version.

        Raises:
            OptionError: an attribute that this version does not have, or a value outside its range.
        """
        if opset not in OPSETS:
            raise OptionError(
                f"opset is {opset!r}. The versions of Attention are 23, 24 and 25; give the largest that is "
                "not larger than the opset of your model."
            )
        known = [field.name for field in fields(cls) if _SINCE.get(field.name, 0) <= opset]
        for name in given:
            if name not in known:
                since = f" It came with opset {_SINCE[name]}." if name in _SINCE else ""
                raise OptionError(
                    f"Attention of opset {opset} has no attribute {name!r}.{since} Its attributes are "
                    f"{', '.join(known)}."
                )
        checked = {name: _CHECKS[name](name, value) for name, value in given.items() if value is not None}
        return cls(**checked)

    @property
    def window(self) -> tuple[int | None, int | None]:
        """How many keys before and after its own position a query sees; None: all."""
        before = None if self.left_window_size < 0 else self.left_window_size
        after = None if self.right_window_size < 0 else self.right_window_size
        return before, 0 if self.is_causal else after

    @property
    def double(self) -> bool:
        """Whether the softmax is to be taken in float64."""
        return self.softmax_precision == 11


def _whole(name: str, value: Any, least: int, wanted: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise OptionError(f"the attribute {name} is {value!r}. It must be {wanted}.")
    return int(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, int, np.integer, np.bool_)) or value not in (0, 1):
        raise OptionError(f"the attribute {name} is {value!r}. It must be 0 or 1.")
    return bool(value)


def _heads(name: str, value: Any) -> int:
    return _whole(name, value, 1, "a whole number of at least 1")


def _side(name: str, value: Any) -> int:
    return _whole(name, value, -1, "a whole number from 0, or -1 for all keys on that side")


def _number(name: str, value: Any) -> float:
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not number or not 0 <= float(value) < math.inf:
        raise OptionError(f"the attribute {name} is {value!r}. It must be a number from 0, finite.")
    return float(value)


def _mode(name: str, value: Any) -> int:
    if isinstance(value, bool) or value not in (0, 1, 2, 3):
        raise OptionError(
            f"the attribute {name} is {value!r}. It must be 0 (product of query and key), 1 (after softcap), "
            "2 (with bias) or 3 (weights)."
        )
    return int(value)


def _precision(name: str, value: Any) -> int:
    if isinstance(value, bool) or value not in _PRECISIONS:
        said = ", ".join(f"{number} ({dtype})" for number, dtype in _PRECISIONS.items())
        raise OptionError(f"the attribute {name} is {value!r}. It must be one of {said}.")
    return int(value)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "is_causal": _flag,
    "kv_num_heads": _heads,
    "left_window_size": _side,
    "q_num_heads": _heads,
    "qk_matmul_output_mode": _mode,
    "right_window_size": _side,
    "scale": _number,
    "softcap": _number,
    "softmax_precision": _precision,
}
