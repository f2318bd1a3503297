"""Record the weights of the attention modules of a Flax NNX model while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import jax
from flax import nnx

from qkv.core.typing import Float
from qkv.interop.layer_weights import LayerWeights


@contextmanager
def record_modules(model: nnx.Module) -> Iterator[list[LayerWeights]]:
    """Record the weights of the `nnx.MultiHeadAttention` modules of a model in a `with` block.

    The weights are those that the attention function of each module sows, as `nnx.dot_product_attention` does. The
    model must run without `nnx.jit`.

    Args:
        model: a model of Flax NNX.

    Yields:
        A list, to which each call of a module adds its weights.

    Example:
        >>> module = nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(0))
        >>> with record_modules(module) as found:
        ...     _ = module(nnx.Rngs(0).normal((1, 3, 4)))
        >>> found[0].kind, found[0].weights.shape
        ('self', (1, 2, 3, 3))
    """
    found: list[LayerWeights] = []
    with ExitStack() as stack:
        for path, module in nnx.iter_modules(model):
            if isinstance(module, nnx.MultiHeadAttention):
                original = module.attention_fn
                stack.callback(setattr, module, "attention_fn", original)
                name = ".".join(map(str, path)) or type(module).__name__
                module.attention_fn = partial(_attend, original, name, found)
        yield found


class _Sower(Protocol):
    """A module that stores intermediate values."""

    def sow(self, kind: type, name: str, value: Float[jax.Array, "*batch heads q k"]) -> object: ...


@dataclass
class _Sink:
    """Stands for the module of an attention function, and collects the weights that the function sows."""

    module: _Sower | None
    name: str
    found: list[LayerWeights]

    def sow(self, kind: type, name: str, value: Float[jax.Array, "*batch heads q k"]) -> object:
        """Add the weights to the list."""
        several = value.reshape(-1, *value.shape[-3:])
        # Self- and cross-attention are told by the number of tokens, because the function gets projected arrays.
        role = "self" if several.shape[-2] == several.shape[-1] else "cross"
        self.found.append(LayerWeights(self.name, role, several))  # type: ignore[arg-type]
        return True if self.module is None else self.module.sow(kind, name, value)


def _attend(
    function: Callable[..., object],
    name: str,
    found: list[LayerWeights],
    *args: object,
    module: _Sower | None = None,
    **kwargs: object,
) -> object:
    return function(*args, module=_Sink(module, name, found), **kwargs)
