"""Maps over all heads and layers of a model: their mean, attention rollout and attention flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qkv.core.typing import Bool, Float
from qkv.look.rollout import flow, rollout
from qkv.look.views import ALL_HEADS, LayerMaps

__all__ = ["AllHeads", "all_heads"]

_MAX_FLOW_TOKENS = 32
"""Maximum tokens for attention flow, which takes 0.3 s for 32 tokens in six layers, and 3 s for 64 tokens."""


class AllHeads(NamedTuple):
    """Maps over all heads.

    Attributes:
        maps: the layer of these maps.
        layer_means: `(layers, n, n)`, from which the flow of single pairs is computed; None: the maps hold it.
        note: a remark for the page.
    """

    maps: LayerMaps
    layer_means: Float[np.ndarray, "layers n n"] | None
    note: str


def all_heads(means: Sequence[Float[np.ndarray, "n n"]], masks: Sequence[Bool[np.ndarray, "n n"]]) -> AllHeads:
    """Return the mean over all heads and layers, the rollout and, for short texts, the flow.

    Args:
        means: for each layer of self-attention, the mean over its heads; all methods need only these means.
        masks: for each layer, the pairs that at least one head may attend to.

    Example:
        >>> found = all_heads([np.eye(3), np.eye(3)], [np.ones((3, 3), bool)] * 2)
        >>> found.maps.heads
        ('mean', 'rollout', 'flow')
    """
    stacked = np.stack(means)[:, None]
    combined = {"mean": stacked.mean(axis=(0, 1), dtype=np.float64), "rollout": rollout(stacked)}
    note, layer_means = "", None
    if stacked.shape[-1] <= _MAX_FLOW_TOKENS:
        combined["flow"] = flow(stacked)
    else:
        note = (
            f"For more than {_MAX_FLOW_TOKENS} tokens, attention flow is computed for single pairs: select a pair "
            "in the map and press “Flow of this pair”. Exported files do not offer it."
        )
        layer_means = stacked[:, 0].astype(np.float32)
    # Tokens reach only earlier tokens in any number of causal layers; other masks may combine to more.
    causal = all(np.array_equal(mask, masks[0]) for mask in masks) and np.array_equal(masks[0], np.tril(masks[0]))
    allowed = np.tril(np.ones_like(masks[0])) if causal else None
    maps = LayerMaps.from_weights(ALL_HEADS, np.stack(list(combined.values())), list(combined), allowed)
    return AllHeads(maps, layer_means, note)
