"""From what Keras hands a layer to one call of the engine, on any backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import keras
from keras import ops

import qkv
from qkv.core.equation import BoundCall, dense
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.errors import OptionError
from qkv.masks import Mask
from qkv.normalizers import NORMALIZERS, Normalizer
from qkv.readouts import Dense
from qkv.scores import Score

__all__ = ["EngineOptions", "attend", "and_masks", "next_seed"]

_START = Positions(align="start")


class EngineOptions:
    """What the layers take beside Keras' arguments, and keep in their files.

    Args:
        normalizer: how scores become weights: a name in `qkv.normalizers`, such as "sparsemax".
        kernel: name of the kernel that must run it; None: the planner chooses.
        memory: what may be allocated beyond inputs and output.

    Raises:
        OptionError: there is no such normalizer.
    """

    def __init__(self, normalizer: str, kernel: str | None, memory: int | str) -> None:
        if normalizer not in NORMALIZERS:
            raise OptionError(f"there is no normalizer {normalizer!r}. Choose one of {', '.join(NORMALIZERS)}.")
        self.normalizer, self.kernel, self.memory = normalizer, kernel, memory

    def build_normalizer(self) -> Normalizer:
        """The normalizer."""
        return NORMALIZERS[self.normalizer]()

    def config(self) -> dict[str, Any]:
        """For `get_config`."""
        return {"normalizer": self.normalizer, "kernel": self.kernel, "memory": self.memory}


def attend(
    query: Any,
    key: Any,
    value: Any,
    score: Score,
    mask: Mask | None,
    options: EngineOptions,
    dropout: float,
    seed: Any,
    with_scores: bool,
) -> tuple[Any, Any]:
    """Output and, where they are wanted, weights before dropout. Query 0 stands at key 0."""
    normalizer = options.build_normalizer()
    if not all(isinstance(n, int) for x in (query, key, value) for n in ops.shape(x)):
        return _unknown(query, key, value, score, normalizer, mask, dropout, seed, with_scores)
    asked = {
        "score": score,
        "normalizer": normalizer,
        "mask": mask,
        "positions": _START,
        "dropout": dropout,
        "seed": seed,
        "kernel": options.kernel,
        "memory": options.memory,
    }
    return _observer()(query, key, value, [Dense()] if with_scores else [], asked)


def _observed(query: Any, key: Any, value: Any, readouts: list[Any], asked: Any) -> tuple[Any, Any]:
    seen = qkv.observe(query, key, value, readouts=readouts, **asked)
    return seen.output, seen.readouts[0] if readouts else None


@cache
def _observer() -> Callable[..., tuple[Any, Any]]:
    """What calls the engine. torch.compile leaves it out of its graph: Keras' own seeds and the weights that
    a layer may be asked for are nothing it could look into.
    """
    if keras.backend.backend() != "torch":
        return _observed
    import torch

    found: Callable[..., tuple[Any, Any]] = torch.compiler.disable(_observed)  # type: ignore[no-untyped-call]
    return found


def _unknown(
    query: Any,
    key: Any,
    value: Any,
    score: Score,
    normalizer: Normalizer,
    mask: Mask | None,
    dropout: float,
    seed: Any,
    with_scores: bool,
) -> tuple[Any, Any]:
    """The dense equation, where TensorFlow's graph does not know how long its tensors will be."""
    (*batch, q, _), k = ops.shape(query), ops.shape(key)[-2]
    seed = None if seed is None else (seed[0], seed[1])
    half = keras.backend.standardize_dtype(value.dtype) in ("float16", "bfloat16")
    dtype = value.dtype
    query, key, value = (ops.cast(x, "float32") if half else x for x in (query, key, value))
    tile = Tile.whole(q, k, tuple(batch), _START, seed=seed)
    seen = dense(BoundCall(query, key, value, score, normalizer, mask, tile, dropout, dtype))
    return seen.output, ops.cast(seen.weights, dtype) if with_scores else None


def and_masks(left: Mask | None, right: Mask | None) -> Mask | None:
    """What both masks allow; None allows all."""
    return right if left is None else left if right is None else left & right


def next_seed(generator: Any) -> Any:
    """A seed of the engine from the next state of a Keras generator: another one for each call."""
    return generator.next()  # two words, which the engine takes as they are
