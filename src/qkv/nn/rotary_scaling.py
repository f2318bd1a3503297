"""Scalings of rotary position embeddings, which extend a model to longer sequences than those of its training."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.core.checks import check_integers
from qkv.core.typing import Float
from qkv.errors import OptionError

_LONGEST = 1e12


class RotaryScaling(ABC):
    """Base class of scalings, which change the rates of rotation of `nn.positions.Rotary`.

    Attributes:
        attention_factor: number by which the rotated elements of queries and keys are multiplied.

    Example:
        >>> from qkv import nn
        >>> scaling = nn.positions.LinearScaling(4.0)  # of a model that was trained on sequences a quarter as long
        >>> attention = nn.MultiHeadAttention(16, 4, positions=nn.positions.Rotary(4, scaling=scaling))
        >>> isinstance(scaling, nn.positions.RotaryScaling), scaling.attention_factor
        (True, 1.0)
    """

    attention_factor: float = 1.0

    @abstractmethod
    def scale(self, rates: Float[Tensor, " pairs"], theta: float) -> Float[Tensor, " pairs"]:
        """Return the scaled rates.

        Args:
            rates: angles per position, theta^(−2i / rotated), in float64.
            theta: the option `theta` of `Rotary`.
        """


@dataclass(frozen=True)
class LinearScaling(RotaryScaling):
    """Position interpolation: all rates are divided by `factor`.

    Args:
        factor: ratio of the new length to the length of training, at least 1.

    Raises:
        OptionError: if `factor` is less than 1.

    Source: Chen et al. (2023), Extending context window of large language models via positional interpolation,
    https://arxiv.org/abs/2306.15595.

    Example:
        >>> LinearScaling(4.0).scale(torch.tensor([1.0, 0.1]), 100.0)
        tensor([0.2500, 0.0250])
    """

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def scale(self, rates: Float[Tensor, " pairs"], theta: float) -> Float[Tensor, " pairs"]:
        return rates / self.factor


@dataclass(frozen=True)
class NTKScaling(RotaryScaling):
    """NTK-aware scaling: theta is multiplied by factor^(rotated / (rotated − 2)).

    The slowest rate is divided by `factor`, and the fastest is unchanged. "Dynamic NTK" for sequences of n tokens with
    training length L and factor s is `NTKScaling(s · n / L − (s − 1))`.

    Args:
        factor: ratio of the new length to the length of training, at least 1.

    Raises:
        OptionError: if `factor` is less than 1.

    Source: Peng et al. (2023), YaRN, section 3.1, https://arxiv.org/abs/2309.00071.

    Example:
        >>> NTKScaling(4.0).scale(torch.tensor([1.0, 0.1]), 100.0)
        tensor([1.0000, 0.0250])
    """

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def scale(self, rates: Float[Tensor, " pairs"], theta: float) -> Float[Tensor, " pairs"]:
        """Return the rates of the larger theta."""
        pairs = rates.shape[-1]
        steps = torch.arange(pairs, device=rates.device, dtype=rates.dtype) / max(1, pairs - 1)
        return rates * self.factor**-steps


@dataclass(frozen=True)
class YaRN(RotaryScaling):
    """YaRN: slow rates are divided by `factor`, fast rates are unchanged, with a ramp between both.

    Args:
        factor: ratio of the new length to the length of training, at least 1.
        original_length: length of the sequences of training.
        beta_fast: pairs with more rotations than this in `original_length` positions are unchanged.
        beta_slow: pairs with fewer rotations than this are divided by `factor`.
        attention: number by which rotated queries and keys are multiplied; None: 0.1 · ln(factor) + 1.
        truncate: whether the ends of the ramp are rounded to whole pairs, as in most models.

    Raises:
        OptionError: if `factor` is less than 1, or `original_length` is not a positive integer.

    Source: Peng et al. (2023), YaRN: efficient context window extension, section 3, https://arxiv.org/abs/2309.00071.

    Example:
        >>> YaRN(4.0, 64).scale(torch.tensor([1.0, 0.1]), 100.0)
        tensor([1.0000, 0.0625])
    """

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        check_integers(original_length=self.original_length)

    @property
    def attention_factor(self) -> float:  # type: ignore[override]
        """The number by which rotated queries and keys are multiplied."""
        return attention_scale(self.factor) if self.attention is None else self.attention

    def scale(self, rates: Float[Tensor, " pairs"], theta: float) -> Float[Tensor, " pairs"]:
        """Return the rates, divided by the factor where they are slow."""
        pairs = rates.shape[-1]

        def pair_of(rotations: float) -> float:
            return pairs * math.log(self.original_length / (rotations * 2 * math.pi)) / math.log(theta)

        low, high = pair_of(self.beta_fast), pair_of(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * pairs - 1)
        steps = torch.arange(pairs, device=rates.device, dtype=rates.dtype)
        slow = ((steps - low) / (high - low if high != low else 0.001)).clamp(0, 1)
        return rates / self.factor * slow + rates * (1 - slow)


@dataclass(frozen=True)
class Llama3Scaling(RotaryScaling):
    """Scaling of Llama 3.1: long wavelengths are multiplied by `factor`, short ones are unchanged.

    Args:
        factor: ratio of the new length to the length of training, at least 1.
        original_length: length of the sequences of training.
        low_frequency: wavelengths longer than original_length / low_frequency are multiplied by `factor`.
        high_frequency: wavelengths shorter than original_length / high_frequency are unchanged; the factor of
            those between both is interpolated.

    Raises:
        OptionError: if `factor` is less than 1, `original_length` is not a positive integer, or `high_frequency` is
            not greater than `low_frequency`.

    Source: Grattafiori et al. (2024), The Llama 3 herd of models, https://arxiv.org/abs/2407.21783, with the code of
    the release of Llama 3.1.

    Example:
        >>> Llama3Scaling(8.0).scale(torch.tensor([1.0, 1e-4]), 10_000.0)
        tensor([1.0000e+00, 1.2500e-05])
    """

    factor: float = 8.0
    original_length: int = 8192
    low_frequency: float = 1.0
    high_frequency: float = 4.0

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        check_integers(original_length=self.original_length)
        if not self.high_frequency > self.low_frequency:
            raise OptionError(
                f"high_frequency must be greater than low_frequency={self.low_frequency}, got {self.high_frequency}. "
                "Llama 3.1 has 1 and 4."
            )

    def scale(self, rates: Float[Tensor, " pairs"], theta: float) -> Float[Tensor, " pairs"]:
        """Return the rates, divided by the factor where the wavelength is long."""
        rotations = self.original_length * rates / (2 * math.pi)
        fast = ((rotations - self.low_frequency) / (self.high_frequency - self.low_frequency)).clamp(0, 1)
        return rates / self.factor * (1 - fast) + rates * fast


@dataclass(frozen=True)
class LongRoPE(RotaryScaling):
    """LongRoPE: each rate is divided by its own factor, found by a search.

    Args:
        factors: one factor per pair of rotated elements: the "long" factors of a model for sequences longer than those
            of its training, otherwise the "short" factors.
        attention: number by which rotated queries and keys are multiplied.

    Raises:
        OptionError: in a call, if the number of factors is not the number of pairs.

    Source: Ding et al. (2024), LongRoPE, https://arxiv.org/abs/2402.13753.

    Example:
        >>> LongRoPE((1.0, 4.0)).scale(torch.tensor([1.0, 0.1]), 100.0)
        tensor([1.0000, 0.0250])
    """

    factors: Sequence[float]
    attention: float = 1.0

    @property
    def attention_factor(self) -> float:  # type: ignore[override]
        """The number by which rotated queries and keys are multiplied."""
        return self.attention

    def scale(self, rates: Float[Tensor, " pairs"], theta: float) -> Float[Tensor, " pairs"]:
        if len(self.factors) != rates.shape[-1]:
            raise OptionError(
                f"factors of LongRoPE must have one number per pair of rotated elements, which are {rates.shape[-1]}, "
                f"got {len(self.factors)}. Pass as many factors, or change rotated."
            )
        return rates / torch.tensor(self.factors, device=rates.device, dtype=rates.dtype)


def attention_scale(factor: float, weight: float = 1.0) -> float:
    """Return 0.1 · weight · ln(factor) + 1, by which YaRN multiplies rotated queries and keys, or 1 for a factor ≤ 1.

    Example:
        >>> round(attention_scale(4.0), 4)
        1.1386
    """
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def read_scaling(
    parameters: Mapping[str, Any], max_length: int | None = None, length: int | None = None
) -> RotaryScaling | None:
    """Return the scaling that the dict `rope_parameters` of a Hugging Face configuration describes, or None.

    Args:
        parameters: the dict, with the key `rope_type` (formerly `type`).
        max_length: the option `max_position_embeddings` of the configuration.
        length: length of the sequences; None: at most that of training.

    Raises:
        OptionError: if the type of scaling is unknown.

    Example:
        >>> read_scaling({"rope_type": "linear", "factor": 4.0})
        LinearScaling(factor=4.0)
    """
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    original: Any = parameters.get("original_max_position_embeddings") or max_length
    factor: Any = parameters.get("factor")
    if factor is None and max_length and original:
        factor = max_length / original
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "dynamic":
        longer = max(1.0, (length or 0) / (max_length or 1))
        return NTKScaling(factor * longer - (factor - 1)) if longer > 1 else None
    if kind == "llama3":
        return Llama3Scaling(factor, original, parameters["low_freq_factor"], parameters["high_freq_factor"])
    if kind == "yarn":
        attention, each, all_dim = (parameters.get(n) for n in ("attention_factor", "mscale", "mscale_all_dim"))
        if attention is None and each and all_dim:
            attention = attention_scale(factor, each) / attention_scale(factor, all_dim)
        fast, slow = parameters.get("beta_fast") or 32.0, parameters.get("beta_slow") or 1.0
        return YaRN(factor, original, fast, slow, attention, parameters.get("truncate", True))
    if kind == "longrope":
        attention = parameters.get("attention_factor")
        if attention is None:
            attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        name = "long_factor" if length and length > original else "short_factor"
        return LongRoPE(tuple(parameters[name]), attention)
    raise OptionError(
        f'rope_type must be "default", "linear", "dynamic", "llama3", "yarn" or "longrope", got {kind!r}. Pass a '
        "subclass of nn.positions.RotaryScaling as scaling."
    )


def _check_factor(factor: float) -> None:
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1 <= factor < _LONGEST:
        raise OptionError(f"factor must be a number of at least 1, got {factor!r}. Pass 1 for no change.")
