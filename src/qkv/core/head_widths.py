"""Widths and numbers of heads of multi-head attention, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from qkv.core.checks import check_integers
from qkv.errors import OptionError


@dataclass(frozen=True)
class HeadWidths:
    """Widths and numbers of heads of a multi-head attention module."""

    width: int
    heads: int
    key_width: int
    value_width: int
    head_width: int
    head_value_width: int
    key_heads: int

    @classmethod
    def of(
        cls,
        width: int,
        heads: int,
        key_width: int | None = None,
        value_width: int | None = None,
        head_width: int | None = None,
        head_value_width: int | None = None,
        key_heads: int | None = None,
        **fields: Any,
    ) -> Self:
        """Return the widths after checking them, with the defaults of `nn.MultiHeadAttention` in place of None.

        Further fields of a subclass are passed on.

        Raises:
            OptionError: a number is not positive, or the heads do not divide the width or the key heads the heads.

        Example:
            >>> HeadWidths.of(16, 4, key_heads=2).head_width
            4
        """
        key_heads = heads if key_heads is None else key_heads
        key_width = width if key_width is None else key_width
        value_width = key_width if value_width is None else value_width
        check_integers(width=width, heads=heads, key_heads=key_heads, key_width=key_width, value_width=value_width)
        check_integers(head_width=head_width, head_value_width=head_value_width)
        if heads % key_heads:
            raise OptionError(
                f"key_heads must divide heads={heads}, got {key_heads}. Choose a divisor of heads, such as 1."
            )
        if head_width is None:
            if width % heads:
                raise OptionError(
                    f"width must be divisible by heads={heads}, got {width}. Change width or heads, or pass head_width."
                )
            head_width = width // heads
        head_value_width = head_width if head_value_width is None else head_value_width
        return cls(width, heads, key_width, value_width, head_width, head_value_width, key_heads, **fields)
