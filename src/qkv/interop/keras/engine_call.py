"""Base class of the Keras layers of this package, which calls qkv on any backend of Keras."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import cast

import keras
import torch
from keras import ops

import qkv
from qkv.core.checks import check_choice
from qkv.core.equation import BoundCall, dense
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, Int, OutputArray, PairArray
from qkv.masks import Mask
from qkv.normalizers import NORMALIZERS, Softmax
from qkv.plan.spec import CallOptions
from qkv.readouts import Dense
from qkv.scores import Score

_START = Positions(align="start")

Weighted = tuple[OutputArray, PairArray | None]
"""The output, and the weights before dropout, or None if the weights were not requested."""


@dataclass(frozen=True)
class _EngineOptions:
    """Options of qkv that the Keras layers of this package accept and save in their configuration."""

    normalizer: str
    kernel: str | None
    memory: int | str

    def __post_init__(self) -> None:
        check_choice("normalizer", self.normalizer, NORMALIZERS)


class EngineLayer:
    """Mixin that adds the options of qkv to an attention layer of Keras and computes attention with qkv."""

    def __init__(
        self,
        *args: object,
        normalizer: str = "softmax",
        kernel: str | None = None,
        memory: int | str = "4 GiB",
        **kwargs: object,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.engine = _EngineOptions(normalizer, kernel, memory)

    def get_config(self) -> dict[str, object]:
        """Return the configuration of the Keras layer, extended by the options of qkv."""
        return {**super().get_config(), **asdict(self.engine)}  # type: ignore[misc]

    def attend(
        self,
        query: Float[Array, "*batch q width"],
        key: Float[Array, "*batch k width"],
        value: Float[Array, "*batch k value_width"],
        score: Score,
        mask: Mask | None,
        dropout: float,
        seed: Int[Array, " 2"] | None,
        return_weights: bool,
    ) -> Weighted:
        """Return the output, and the weights before dropout or None if they are not requested.

        Query 0 has the position of key 0.
        """
        call: CallOptions = {
            "score": score,
            "normalizer": NORMALIZERS[self.engine.normalizer](),
            "mask": mask,
            "positions": _START,
            "dropout": dropout,
            "seed": seed,
            "kernel": self.engine.kernel,
            "memory": self.engine.memory,
        }
        known = all(isinstance(n, int) for x in (query, key, value) for n in ops.shape(x))
        return (_observe_function() if known else _attend_unknown_lengths)(query, key, value, call, return_weights)


def _observe(
    query: Float[Array, "*batch q width"],
    key: Float[Array, "*batch k width"],
    value: Float[Array, "*batch k value_width"],
    call: CallOptions,
    return_weights: bool,
) -> Weighted:
    observation = qkv.observe(query, key, value, readouts=[Dense()] if return_weights else [], **call)
    return observation.output, observation.readouts[0] if return_weights else None


@cache
def _observe_function() -> Callable[..., Weighted]:
    """Return the function `_observe`, which `torch.compile` does not trace on the PyTorch backend.

    torch.compile cannot trace the seed generators of Keras or the optional weights.
    """
    if keras.backend.backend() != "torch":
        return _observe
    return cast("Callable[..., Weighted]", torch.compiler.disable(_observe))  # type: ignore[no-untyped-call]


def _attend_unknown_lengths(
    query: Float[Array, "*batch q width"],
    key: Float[Array, "*batch k width"],
    value: Float[Array, "*batch k value_width"],
    call: CallOptions,
    return_weights: bool,
) -> Weighted:
    """Return output and weights of the dense equation, for tensors of unknown length in a TensorFlow graph."""
    (*batch, q, _), k = ops.shape(query), ops.shape(key)[-2]
    seed = cast("Int[Array, ' 2'] | None", call["seed"])
    pair = None if seed is None else (seed[0], seed[1])
    half = keras.backend.standardize_dtype(value.dtype) in ("float16", "bfloat16")
    dtype = value.dtype
    query, key, value = (ops.cast(x, "float32") if half else x for x in (query, key, value))
    tile = Tile.whole(q, k, tuple(batch), _START, seed=pair)
    normalizer = call["normalizer"] or Softmax()
    bound = BoundCall(query, key, value, call["score"], normalizer, call["mask"], tile, call["dropout"], dtype)
    result = dense(bound)
    return result.output, ops.cast(result.weights, dtype) if return_weights else None
