"""What a learned score is: a module whose parameters are the arrays of a score.

Called without arguments it gives the score, a value of `qkv.scores`, with its parameters in it. All have one
signature, so that a class is an argument: `MultiHeadAttention(64, 8, score=nn.Additive)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Union

import torch

from qkv import scores
from qkv.errors import KindError, OptionError
from qkv.nn.held import Held

__all__ = ["LearnedScore", "ScoreLike", "WrapperScore", "made"]

ScoreLike = Union[scores.Score, type[scores.Score], "LearnedScore", Callable[..., Any], None]
"""A score, a learned score, or what makes one of `(query_width, key_width, heads=heads)`."""


class LearnedScore(torch.nn.Module, ABC):
    """A score with parameters. To write one: make them in `__init__`, fill them in `reset_parameters`, and
    build the score in `forward`.

    Args:
        query_width, key_width: of what is compared; a key as wide as the query where None.
        heads: one set of parameters for each head; None: one for all.
        device, dtype: of the parameters.

    Raises:
        OptionError: a width or a number of heads that is not positive.
    """

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        key_width = query_width if key_width is None else key_width
        for name, number in (("query_width", query_width), ("key_width", key_width), ("heads", heads)):
            if number is not None and (not isinstance(number, int) or number < 1):
                raise OptionError(f"{type(self).__name__} was given {name}={number!r}. Give a whole number, 1 or more.")
        self.query_width, self.key_width, self.heads = query_width, key_width, heads
        self.made_as = {"device": device, "dtype": dtype}

    def parameter(self, *shape: int, learned: bool = True) -> torch.nn.Parameter:
        """An empty parameter `(heads, *shape)`, or `shape` where all heads share it."""
        lead = () if self.heads is None else (self.heads,)
        return torch.nn.Parameter(torch.empty((*lead, *shape), **self.made_as), requires_grad=learned)

    def positive(self, name: str, number: float | None, usual: float) -> float:
        """The number, or the usual one where None.

        Raises:
            OptionError: it is not positive.
        """
        number = usual if number is None else number
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not number > 0:
            raise OptionError(f"{type(self).__name__} was given {name}={number!r}. Give a positive number.")
        return float(number)

    @abstractmethod
    def reset_parameters(self) -> None:
        """Fill the parameters with their initial values."""

    @abstractmethod
    def forward(self) -> scores.Score:
        """The score, with the parameters in it."""

    def extra_repr(self) -> str:
        """Widths and heads."""
        said = [f"query_width={self.query_width}", f"key_width={self.key_width}"]
        return ", ".join(said if self.heads is None else [*said, f"heads={self.heads}"])


class WrapperScore(LearnedScore, ABC):
    """A learned score around another one, learned or not.

    Args:
        score: the score within: a score, a learned score, or what makes one; `ScaledDot()` where None.
        query_width, key_width, heads, device, dtype: as in `LearnedScore`; handed to what makes the score.
    """

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        score: ScoreLike = None,
        heads: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_width, key_width, heads=heads, device=device, dtype=dtype)
        self.score = made(score, self.query_width, self.key_width, heads, **self.made_as)

    def reset_within(self) -> None:
        """Fill the parameters of the score within."""
        self.score.reset_parameters()

    def within(self) -> scores.Score:
        """The score within."""
        score: scores.Score = self.score()
        return score


def made(
    score: ScoreLike,
    query_width: int,
    key_width: int,
    heads: int | None,
    device: Any = None,
    dtype: Any = None,
) -> Any:
    """A module that gives the score when called.

    Raises:
        KindError: it is neither a score nor what makes one.
        OptionError: it was made for another number of heads.
    """
    if score is None:
        return Held(scores.ScaledDot())
    if isinstance(score, scores.Score):
        return Held(score)
    if isinstance(score, type) and issubclass(score, scores.Score):
        return Held(score())
    if not isinstance(score, torch.nn.Module) and callable(score):
        more = {name: value for name, value in (("device", device), ("dtype", dtype)) if value is not None}
        make: Any = score
        score = make(query_width, key_width, heads=heads, **more)
        if isinstance(score, scores.Score):
            return Held(score)
    if not isinstance(score, (LearnedScore, Held)):
        raise KindError(
            f"score is a {type(score).__name__}. Give one of qkv.scores, such as ScaledDot(), or of qkv.nn, "
            "such as nn.Additive."
        )
    if isinstance(score, LearnedScore) and score.heads not in (None, heads):
        raise OptionError(
            f"the score has parameters for {score.heads} heads, the module has {heads}. Give the class, such "
            "as score=nn.Additive, or a score made with that many heads."
        )
    return score
