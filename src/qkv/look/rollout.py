"""Attention through several layers at once, and weights that count what they carry.

    rollout(weights)          how much of each input token is in each output token, if layers only mixed
    flow(weights)             how much could pass from input to output, each layer's weights being pipes
    gradient_weighted(weights, g)   weights times how much the result depends on them
    norm_weighted(weights, v) weights times the length of what they carry

All take the weights of one input, `(layers, heads, queries, keys)`, as arrays of any library, and give NumPy.
"""

from typing import Any

import numpy as np

from qkv.errors import MissingPackageError, OptionError, ShapeError

__all__ = ["gradient_weighted", "norm_weighted", "flow", "rollout"]

_UNIT = 2**24
"""Parts of a pipe of capacity 1: maximum flow is exact on whole numbers, so it is off by roundings alone."""


def rollout(weights: Any, residual: float = 0.5) -> np.ndarray:
    """The product of the layers' mean maps, each mixed with the residual connection:

        Â_l = residual · I + (1 − residual) · mean over heads of A_l,     R = Â_L ⋯ Â_2 Â_1

    Args:
        weights: `(layers, heads, tokens, tokens)`.
        residual: the share of a token that goes past the attention.

    Returns:
        `(tokens, tokens)`: rows are tokens at the last layer, columns input tokens; rows sum to 1 where the
        rows of the weights do.

    Raises:
        ShapeError: the maps are not square, or there are not four axes.
        OptionError: the residual is not in [0, 1].

    Source:
        Abnar and Zuidema 2020, Quantifying attention flow in transformers, equation 1.

    Example:
        >>> previous = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> rollout(np.stack([previous, previous])[:, None])[2].tolist()
        [0.25, 0.5, 0.25]
    """
    mixed = _mixed(weights, residual)
    through = mixed[0]
    for layer in mixed[1:]:
        through = layer @ through
    return np.asarray(through)


def flow(weights: Any, residual: float = 0.5, *, queries: list[int] | None = None) -> np.ndarray:
    """The maximum flow from each token of the last layer to each input token.

    The layers' maps, mixed with the residual connection as in `rollout`, are the capacities of pipes between
    the tokens of neighbouring layers.

    Args:
        weights: `(layers, heads, tokens, tokens)`.
        residual: the share of a token that goes past the attention.
        queries: these tokens of the last layer alone; None: all. Each costs one maximum flow for each token.

    Returns:
        `(queries, tokens)`, between 0 and 1.

    Raises:
        ShapeError, OptionError: see `rollout`.
        MissingPackageError: scipy is not installed.

    Source:
        Abnar and Zuidema 2020, section 3. Solved by Dinic's algorithm of scipy.

    Example:
        >>> previous = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> flow(np.stack([previous, previous])[:, None])[2].tolist()
        [0.5, 1.0, 0.5]
    """
    try:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import maximum_flow
    except ImportError:
        raise MissingPackageError('flow needs scipy, which is not installed. Run: pip install "qkv[look]"') from None
    mixed = _mixed(weights, residual)
    layers, tokens = mixed.shape[:2]
    level, above, below = np.nonzero(mixed > 0)
    capacity = np.rint(mixed[level, above, below] * _UNIT).astype(np.int32)
    # Token t after layer l is node (l + 1)·tokens + t; the inputs are nodes 0 … tokens − 1.
    size = (layers + 1) * tokens
    pipes = coo_array((capacity, ((level + 1) * tokens + above, level * tokens + below)), shape=(size, size)).tocsr()
    asked = range(tokens) if queries is None else queries
    found = np.zeros((len(asked), tokens))
    for row, query in enumerate(asked):
        for key in range(tokens):
            found[row, key] = maximum_flow(pipes, layers * tokens + query, key).flow_value / _UNIT
    return found


def gradient_weighted(weights: Any, gradients: Any) -> np.ndarray:
    """Weights times the positive part of their gradient: what raises the result, and by how much.

        max(0, ∂y/∂A ⊙ A)

    Args:
        weights: of any shape.
        gradients: of the result that is asked about, in the same shape.

    Raises:
        ShapeError: the shapes differ.

    Source:
        Chefer, Gur and Wolf 2021, Transformer interpretability beyond attention visualization, equation 13
        (without its relevance propagation).

    Example:
        >>> gradient_weighted([[0.5, 0.5]], [[2.0, -2.0]]).tolist()
        [[1.0, 0.0]]
    """
    weights, gradients = _array(weights), _array(gradients)
    if weights.shape != gradients.shape:
        raise ShapeError(
            f"weights of shape {weights.shape} have gradients of shape {gradients.shape}. "
            "Give the gradient of these weights."
        )
    return np.asarray(np.maximum(weights * gradients, 0.0))


def norm_weighted(weights: Any, values: Any, output_map: Any = None) -> np.ndarray:
    """Weights times the length of what they carry, ‖a_ij v_j W_O‖: a short value counts for little.

    Args:
        weights: `(…, heads, queries, keys)`.
        values: `(…, heads, keys, value_width)`.
        output_map: `(heads, value_width, width)`, the parts of W_O; None: the length of the value.

    Returns:
        The shape of the weights.

    Raises:
        ShapeError: the shapes do not fit.

    Source:
        Kobayashi, Kuribayashi, Yokoi and Inui 2020, Attention is not only a weight, equation 5.

    Example:
        >>> norm_weighted([[[0.5, 0.5]]], [[[3.0, 4.0], [0.0, 0.0]]]).tolist()
        [[[2.5, 0.0]]]
    """
    weights, values = _array(weights), _array(values)
    carried = values if output_map is None else _product(values, _array(output_map))
    if carried.shape[:-1] != (*weights.shape[:-2], weights.shape[-1]):
        raise ShapeError(
            f"weights of shape {weights.shape} and values of shape {values.shape} do not belong together. "
            "Values are (…, heads, keys, value_width), weights (…, heads, queries, keys)."
        )
    return np.asarray(weights * np.linalg.norm(carried, axis=-1)[..., None, :])


def _product(values: np.ndarray, output_map: np.ndarray) -> np.ndarray:
    if output_map.ndim != 3 or output_map.shape[:2] != (values.shape[-3], values.shape[-1]):
        raise ShapeError(
            f"an output map of shape {output_map.shape} does not take values of shape {values.shape}. "
            f"Give ({values.shape[-3]}, {values.shape[-1]}, width): a block for each head."
        )
    return np.asarray(values @ output_map)


def _mixed(weights: Any, residual: float) -> np.ndarray:
    """`(layers, tokens, tokens)`: the mean over heads, mixed with the identity."""
    array = _array(weights)
    if array.ndim != 4 or array.shape[-1] != array.shape[-2] or not array.size:
        raise ShapeError(
            f"weights have the shape {array.shape}, and (layers, heads, tokens, tokens) is wanted: "
            "the self-attention of one input through all layers."
        )
    if not 0.0 <= residual <= 1.0:
        raise OptionError(f"the residual is {residual!r}, and a share between 0 and 1 is wanted.")
    return np.asarray(residual * np.eye(array.shape[-1]) + (1.0 - residual) * array.mean(axis=1))


def _array(array: Any) -> np.ndarray:
    if hasattr(array, "detach"):
        array = array.detach().cpu()
    return np.asarray(array, np.float64)
