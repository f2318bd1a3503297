"""Base classes of learned scores, which are modules that hold the parameters of a score.

Called without arguments, a learned score returns a value of `qkv.scores` that holds its parameters. All learned
scores share one signature, so a class can be passed as a score: `MultiHeadAttention(64, 8, score=nn.Additive)`.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any, ClassVar, NamedTuple, Union, cast

import torch
from torch import Tensor

from qkv import scores
from qkv.core.checks import check_integers, describe, takes_arguments
from qkv.errors import KindError, OptionError
from qkv.nn.multihead_options import FactoryKwargs
from qkv.nn.part_module import PartModule

ScoreLike = Union[scores.Score, type[scores.Score], "LearnedScore", Callable[..., object], None]
"""A score, a learned score, or a callable that builds one from `(query_width, key_width, heads=heads)`."""


class Initial(NamedTuple):
    """Declaration of a parameter: its shape, its initial values, and whether it is learned.

    Attributes:
        shape: shape for one head.
        fill: function that sets the initial values of the stored tensor in place.
        learned: whether the parameter gets a gradient.
        log: whether the stored tensor, `log_<name>`, is the logarithm, which keeps the array positive.

    Example:
        >>> from qkv import nn, scores
        >>> class Sharp(nn.LearnedScore):
        ...     core = scores.Cosine
        ...     def fields(self):
        ...         return {"temperature": nn.Initial((), lambda x: x.fill_(-2.0), log=True)}
        >>> Sharp(4)().temperature.item(), [name for name, _ in Sharp(4).named_parameters()]
        (0.1353352814912796, ['log_temperature'])
    """

    shape: tuple[int, ...]
    fill: Callable[[Tensor], object]
    learned: bool = True
    log: bool = False


class LearnedScore(torch.nn.Module):
    """Base class of modules that hold the learned parameters of a score.

    To write one, set `core` to a class of `qkv.scores` and override `fields`, which declares the fields of that
    class. Override `forward` if the score cannot be built from its fields alone.

    Args:
        query_width: width of the queries.
        key_width: width of the keys; None means `query_width`.
        heads: number of heads, each with its own parameters; None means one set of parameters for all heads.
        device: device of the parameters.
        dtype: dtype of the parameters.
        options: options of the subclass, as its `fields` takes them.

    Raises:
        OptionError: if a width or the number of heads is not a positive integer, or an option is unknown.

    Example:
        >>> import torch
        >>> from qkv import nn, scores
        >>> class Stretched(nn.LearnedScore):
        ...     core = scores.Gaussian
        ...     def fields(self):
        ...         return {"bandwidth": torch.tensor(2.0)}
        >>> Stretched(4)().bandwidth
        tensor(2.)
    """

    core: ClassVar[Callable[..., scores.Score]]
    __signature__: ClassVar[Signature]

    def __init_subclass__(cls) -> None:
        # What `help` and editors show: the arguments of every learned score, then the options of this one.
        common = [*signature(LearnedScore.__init__).parameters.values()][1:-1]
        declared = {**signature(cls.fields).parameters, **signature(cls.build).parameters}
        options = [each for each in declared.values() if each.kind is Parameter.KEYWORD_ONLY]
        cls.__signature__ = Signature([*common, *options])

    def __init__(
        self,
        query_width: int,
        key_width: int | None = None,
        *,
        heads: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: object,
    ) -> None:
        super().__init__()
        for name in options.keys() - self.__signature__.parameters:
            kind, known = type(self).__name__, ", ".join(self.__signature__.parameters)
            raise OptionError(f"arguments of {kind} must be among {known}, got {name!r}. Correct the name.")
        key_width = query_width if key_width is None else key_width
        check_integers(query_width=query_width, key_width=key_width, heads=heads)
        self.query_width, self.key_width, self.heads = query_width, key_width, heads
        self.factory_kwargs: FactoryKwargs = {"device": device, "dtype": dtype}
        self.options = options
        self.initial: dict[str, Initial | None] = {}
        self.build(**options)

    def fields(self, *args: Any, **options: Any) -> dict[str, object]:
        """Return the fields of the score by name, computed from the options of this class.

        An `Initial` declares a parameter with its initial values, and a `torch.nn.Parameter` is one. Other tensors and
        other values are constants.
        """
        return {}

    def build(self, *args: Any, **options: Any) -> None:
        """Create the parameters and constants of this module from the options of this class."""
        self.declare(**self.fields(**options))

    def declare(self, **fields: object) -> None:
        """Register fields of the score as parameters, buffers or attributes, and initialize the parameters.

        A parameter has shape `(heads, *shape)`, or `shape` if `heads` is None. Tensors become buffers.
        """
        lead = () if self.heads is None else (self.heads,)
        for name, field in fields.items():
            self.initial[name] = field if isinstance(field, Initial) else None
            if isinstance(field, Initial):
                empty = torch.empty((*lead, *field.shape), **self.factory_kwargs)
                parameter = torch.nn.Parameter(empty, requires_grad=field.learned)
                self.register_parameter(f"log_{name}" if field.log else name, parameter)
            elif isinstance(field, torch.nn.Parameter):
                self.register_parameter(name, field)
            elif isinstance(field, Tensor):
                self.register_buffer(name, field.to(self.factory_kwargs["device"]))
            else:
                setattr(self, name, field)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the parameters to initial values, drawn anew if they are random."""
        with torch.no_grad():
            for name, initial in self.initial.items():
                if initial is not None:
                    initial.fill(getattr(self, f"log_{name}" if initial.log else name))

    def current_fields(self) -> dict[str, object]:
        """Return the declared fields of the score by name, with the current parameters."""
        values = {}
        for name, initial in self.initial.items():
            log = initial is not None and initial.log
            values[name] = getattr(self, f"log_{name}").exp() if log else getattr(self, name)
        return values

    def forward(self) -> scores.Score:
        """Return the score of `qkv.scores` with the current parameters of this module."""
        return type(self).core(**self.current_fields())

    def extra_repr(self) -> str:
        """Return the widths and the number of heads as text for `print`."""
        text = f"query_width={self.query_width}, key_width={self.key_width}"
        return text if self.heads is None else f"{text}, heads={self.heads}"


class LearnedWrapper(LearnedScore):
    """Base class of modules that hold the learned parameters of a score that wraps an inner score.

    Args:
        query_width: width of the queries.
        key_width: width of the keys; None means `query_width`.
        score: the inner score: a score, a learned score, or a callable that builds one; None means
            `ScaledDot()`.
        options: `heads`, `device` and `dtype`, as in `LearnedScore`, which are passed on to the inner score, and
            options of the subclass.

    Example:
        >>> from qkv import nn
        >>> nested = nn.Softcap(8, score=nn.Additive, cap=5.0)  # the logits of an additive score, bounded by 5
        >>> sorted(name for name, _ in nested.named_parameters())
        ['log_cap', 'score.bias', 'score.key_weight', 'score.query_weight', 'score.vector']
    """

    def build(self, *, score: ScoreLike = None, **options: Any) -> None:
        self.score = build_score(score, self.query_width, self.key_width, self.heads, **self.factory_kwargs)
        super().build(**options)

    def reset_parameters(self) -> None:
        self.score.reset_parameters()
        super().reset_parameters()

    def forward(self) -> scores.Score:
        return type(self).core(self.score(), **self.current_fields())


def wrap_score(score: ScoreLike) -> LearnedScore | PartModule[scores.Score]:
    """Return a module that holds `score`, for modules that do not know the widths of queries and keys.

    Raises:
        KindError: if `score` is a class of learned scores, which needs these widths, or no score.
    """
    portable = isinstance(score, type) and issubclass(score, scores.Score)
    if not (score is None or portable or isinstance(score, (scores.Score, torch.nn.Module))):
        name = score.__name__ if isinstance(score, type) and issubclass(score, LearnedScore) else "Additive"
        raise KindError(
            f"score must be a score of qkv.scores, or an instance of a learned score, got {describe(score)}. Pass an "
            f"instance, such as scores.Dot() or nn.{name}(query_width, key_width), or wrap a function of query and key "
            "as scores.Custom(function)."
        )
    return build_score(score, 1, 1, getattr(score, "heads", None))


def build_score(
    score: ScoreLike,
    query_width: int,
    key_width: int,
    heads: int | None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> LearnedScore | PartModule[scores.Score]:
    """Return a module that holds `score`, or the score that `score` builds, and returns it when called.

    Raises:
        KindError: if `score` is neither a score nor a callable that builds one.
        OptionError: if the score was built for another number of heads.
    """
    if score is None:
        return PartModule(scores.ScaledDot())
    if isinstance(score, scores.Score):
        return PartModule(score)
    if isinstance(score, type) and issubclass(score, scores.Score):
        if not takes_arguments(score):
            raise KindError(
                f"score must be an instance of {score.__name__}, which has required arguments, got the class. Pass an "
                f"instance, {score.__name__}(...)."
            )
        return PartModule(score())
    built: object = score
    if not isinstance(score, (LearnedScore, torch.nn.Module)) and callable(score):
        given = {name: value for name, value in (("device", device), ("dtype", dtype)) if value is not None}
        build = cast(Callable[..., object], score)
        if not takes_arguments(build, query_width, key_width, heads=heads, **given):
            expected = ", ".join(["query_width", "key_width", "heads=heads", *(f"{name}={name}" for name in given)])
            raise KindError(
                f"score must be a score, or a callable that builds one from ({expected}), got {describe(score)}. Pass "
                "a class such as nn.Additive, or wrap a function of query and key as scores.Custom(function)."
            )
        built = build(query_width, key_width, heads=heads, **given)
        if isinstance(built, scores.Score):
            return PartModule(built)
    if not isinstance(built, (LearnedScore, PartModule)):
        raise KindError(
            f"score must be a score of qkv.scores, or a learned score of qkv.nn, got {describe(built)}. Pass "
            "scores.ScaledDot() or nn.Additive, for example."
        )
    if isinstance(built, LearnedScore) and built.heads not in (None, heads):
        raise OptionError(
            f"score must be built with heads={heads}, got a score for {built.heads} heads. Pass the class, such as "
            f"score=nn.Additive, or a score built with heads={heads}."
        )
    return built
