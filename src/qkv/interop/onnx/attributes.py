"""The attributes of the `Attention` operator by version, and their valid values.

Source: https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np

from qkv.errors import OptionError

__all__ = ["OPSETS", "Attributes", "require_opset"]

OPSETS = (23, 24, 25)
"""Versions of the operator; a version holds until the next one."""

_SINCE = {"left_window_size": 25, "right_window_size": 25}
_PRECISIONS = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}


@dataclass(frozen=True)
class Attributes:
    """The attributes of a node; None, or −1 for a window size, if the node does not set it.

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
        """Validate the attributes of a node.

        Raises:
            OptionError: the opset has no such attribute, or a value is out of range.
        """
        require_opset(opset)
        known = [field.name for field in fields(cls) if _SINCE.get(field.name, 0) <= opset]
        for name in attributes:
            if name not in known:
                since = f" It requires opset {_SINCE[name]}." if name in _SINCE else ""
                raise OptionError(
                    f"attributes of Attention in opset {opset} must be {', '.join(known)}, got {name!r}.{since}"
                )
        checked = {name: _CHECKS[name](name, value) for name, value in attributes.items() if value is not None}
        return cls(**checked)  # type: ignore[arg-type]

    @property
    def window(self) -> tuple[int | None, int | None]:
        """Number of keys before and after its own position that a query may attend to; None for all."""
        before = None if self.left_window_size < 0 else self.left_window_size
        after = None if self.right_window_size < 0 else self.right_window_size
        return before, 0 if self.is_causal else after

    @property
    def float64_softmax(self) -> bool:
        """Whether the softmax must be computed in float64."""
        return self.softmax_precision == 11


def require_opset(opset: int) -> None:
    """Raise an `OptionError` unless the operator has this version."""
    if opset not in OPSETS:
        raise OptionError(
            f"opset must be 23, 24 or 25, got {opset!r}. Use the largest of these that is not larger than the "
            "opset of your model."
        )


def _integer(name: str, value: object, minimum: int, condition: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < minimum:
        raise OptionError(f"{name} must be {condition}, got {value!r}.")
    return int(value)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, (bool, int, np.integer, np.bool_)) or value not in (0, 1):
        raise OptionError(f"{name} must be 0 or 1, got {value!r}.")
    return bool(value)


def _heads(name: str, value: object) -> int:
    return _integer(name, value, 1, "an integer of at least 1")


def _window_size(name: str, value: object) -> int:
    return _integer(name, value, -1, "an integer of at least 0, or -1 for all keys on that side")


def _number(name: str, value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float, np.integer, np.floating))
        or not 0 <= float(value) < math.inf
    ):
        raise OptionError(f"{name} must be a finite number of at least 0, got {value!r}.")
    return float(value)


def _mode(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value not in (0, 1, 2, 3):
        raise OptionError(
            f"{name} must be 0 (product of query and key), 1 (after softcap), 2 (with bias) or 3 (weights), got "
            f"{value!r}."
        )
    return int(value)


def _precision(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value not in _PRECISIONS:
        choices = ", ".join(f"{number} ({dtype})" for number, dtype in _PRECISIONS.items())
        raise OptionError(f"{name} must be one of {choices}, got {value!r}.")
    return int(value)


_CHECKS: dict[str, Callable[[str, object], float]] = {
    "is_causal": _flag,
    "kv_num_heads": _heads,
    "left_window_size": _window_size,
    "q_num_heads": _heads,
    "qk_matmul_output_mode": _mode,
    "right_window_size": _window_size,
    "scale": _number,
    "softcap": _number,
    "softmax_precision": _precision,
}
