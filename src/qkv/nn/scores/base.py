"""Base of learned scores: modules that declare their parameters and the score that these are passed to.

Called without arguments, a learned score returns a value of `qkv.scores` that holds its parameters. All learned
scores have one signature, so that a class can be an argument: `MultiHeadAttention(64, 8, score=nn.Additive)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypedDict, Union, Unpack

import torch
from torch import Tensor

from qkv import scores
from qkv.errors import KindError, OptionError
from qkv.nn.multihead_options import FactoryKwargs
from qkv.nn.part_module import PartModule

__all__ = ["Common", "Initial", "LearnedScore", "ScoreLike", "WrapperCommon", "WrapperScore", "build_score"]

ScoreLike = Union[scores.Score, type[scores.Score], "LearnedScore", Callable[..., object], None]
"""A score, a learned score, or a callable that builds one from `(query_width, key_width, heads=heads)`."""


class Common(TypedDict, total=False):
    """Options of every learned score; see `LearnedScore`."""

    heads: int | None
    device: torch.device | str | None
    dtype: torch.dtype | None


class WrapperCommon(Common, total=False):
    """Options of every learned score around another one; see `WrapperScore`."""

    score: ScoreLike


class Initial(NamedTuple):
    """Declaration of one parameter.

    Attributes:
        shape: shape for one head; None: the score has no such parameter.
        fill: function that sets the initial values of the stored tensor in place.
        learned: whether the parameter gets a gradient.
        log: whether the stored tensor, `log_<name>`, is the logarithm, which keeps the array positive.
    """

    shape: tuple[int, ...] | None
    fill: Callable[[Tensor], object]
    learned: bool = True
    log: bool = False


class LearnedScore(torch.nn.Module):
    """Score with parameters.

    To write one, set `core` to a class of `qkv.scores` and declare its arrays in `__init__` with `declare`.
    Override `forward` where the score takes more arguments than these arrays.

    Args:
        query_width: width of the queries.
        key_width: width of the keys; None means `query_width`.
        heads: number of heads, each with its own parameters; None means one set of parameters for all heads.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Raises:
        OptionError: if a width or the number of heads is not a positive integer.
    """

    core: ClassVar[Callable[..., scores.Score]]

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        heads: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        key_width = query_width if key_width is None else key_width
        for name, number in (("query_width", query_width), ("key_width", key_width), ("heads", heads)):
            if number is not None and (not isinstance(number, int) or number < 1):
                raise OptionError(f"{name} of {type(self).__name__} must be a positive integer, got {name}={number!r}.")
        self.query_width, self.key_width, self.heads = query_width, key_width, heads
        self.factory_kwargs: FactoryKwargs = {"device": device, "dtype": dtype}
        self.initial: dict[str, Initial] = {}

    def declare(self, **initial: Initial) -> None:
        """Create the parameters, each of shape `(heads, *shape)`, or `shape` without heads, and fill them."""
        lead = () if self.heads is None else (self.heads,)
        for name, one in initial.items():
            parameter = None
            if one.shape is not None:
                empty = torch.empty((*lead, *one.shape), **self.factory_kwargs)
                parameter = torch.nn.Parameter(empty, requires_grad=one.learned)
            self.register_parameter(f"log_{name}" if one.log else name, parameter)
        self.initial = initial
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the parameters to their initial values."""
        with torch.no_grad():
            for name, one in self.initial.items():
                parameter = getattr(self, f"log_{name}" if one.log else name)
                if parameter is not None:
                    one.fill(parameter)

    def parameters_by_name(self) -> dict[str, Tensor | None]:
        """Return the declared arrays of the score, by name; None for those that it does not have."""
        arrays = {}
        for name, one in self.initial.items():
            arrays[name] = getattr(self, f"log_{name}").exp() if one.log else getattr(self, name)
        return arrays

    def build_inner(self, score: ScoreLike) -> LearnedScore | PartModule[scores.Score]:
        """Build an inner score for the widths and heads of this one; see `build_score`."""
        return build_score(score, self.query_width, self.key_width, self.heads, **self.factory_kwargs)

    def forward(self) -> scores.Score:
        """Return the score with the parameters of this module."""
        return type(self).core(**self.parameters_by_name())

    def extra_repr(self) -> str:
        """Return widths and heads for `print`."""
        text = f"query_width={self.query_width}, key_width={self.key_width}"
        return text if self.heads is None else f"{text}, heads={self.heads}"


class WrapperScore(LearnedScore):
    """Learned score around another score, learned or not.

    Args:
        query_width: width of the queries.
        key_width: width of the keys; None means `query_width`.
        score: the inner score: a score, a learned score, or a callable that builds one; None means
            `ScaledDot()`.
        common: `heads`, `device` and `dtype`, as in `LearnedScore`; they are passed on to the inner score.
    """

    def __init__(
        self, query_width: int, key_width: int | None = None, *, score: ScoreLike = None, **common: Unpack[Common]
    ) -> None:
        super().__init__(query_width, key_width, **common)
        self.score = self.build_inner(score)

    def reset_parameters(self) -> None:
        """Set the parameters of this module and of the inner score to their initial values."""
        self.score.reset_parameters()
        super().reset_parameters()

    def forward(self) -> scores.Score:
        """Return the score with the inner score and the parameters of this module."""
        return type(self).core(self.score(), **self.parameters_by_name())


def build_score(
    score: ScoreLike,
    query_width: int,
    key_width: int,
    heads: int | None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> LearnedScore | PartModule[scores.Score]:
    """Return a module that returns the score when called.

    Raises:
        KindError: if `score` is neither a score nor a callable that builds one.
        OptionError: if the score was built for another number of heads.
    """
    if score is None:
        return PartModule(scores.ScaledDot())
    if isinstance(score, scores.Score):
        return PartModule(score)
    if isinstance(score, type) and issubclass(score, scores.Score):
        return PartModule(score())
    built: Any = score  # a callable may return anything, which is checked below
    if not isinstance(score, (LearnedScore, torch.nn.Module)) and callable(score):
        given = {name: value for name, value in (("device", device), ("dtype", dtype)) if value is not None}
        built = built(query_width, key_width, heads=heads, **given)
        if isinstance(built, scores.Score):
            return PartModule(built)
    if not isinstance(built, (LearnedScore, PartModule)):
        raise KindError(
            "score must be a score of qkv.scores, such as ScaledDot(), or of qkv.nn, such as nn.Additive, "
            f"got a {type(built).__name__}."
        )
    if isinstance(built, LearnedScore) and built.heads not in (None, heads):
        raise OptionError(
            f"score must have parameters for {heads} heads, got {built.heads} heads. Give the class, such as "
            "score=nn.Additive, or a score built with that many heads."
        )
    return built
