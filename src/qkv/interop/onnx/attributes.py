"""Attributes of ONNX's `Attention` operator, and their valid values in each opset.

Source: https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from qkv.errors import OptionError

__all__ = ["Attributes", "require_opset"]

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
                since = f" {name} requires opset {_RULES[name].since}." if name in _RULES else ""
                raise OptionError(
                    f"attributes of Attention in opset {opset} must be among {', '.join(known)}, got {name!r}.{since}"
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

    def check(self, name: str, value: object) -> bool | int | float:
        """Return the value, converted to the type of the attribute, or raise an `OptionError` if it is invalid."""
        flag = isinstance(value, (bool, np.bool_)) and self.convert is not bool
        if flag or not isinstance(value, _ACCEPTED[self.convert]) or not self.valid(cast(float, value)):
            raise OptionError(f"{name} must be {self.condition}, got {value!r}.")
        return self.convert(cast(float, value))


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
