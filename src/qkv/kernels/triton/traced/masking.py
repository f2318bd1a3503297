"""Zeros in the gradients of excluded pairs, computed once for a pair instead of once for each feature where possible.

The gradient of the logit of an excluded pair is 0. A product with it can still be NaN, because a derivative such as
that of a square root is infinite at 0, and an excluded key may be 0 in these programs.
"""

from __future__ import annotations

from collections.abc import Callable

from qkv.kernels.triton.traced.graph import Graph, Node

__all__ = ["masked_gradient"]

_FINITE = (
    "add",
    "sub",
    "mul",
    "neg",
    "abs",
    "where",
    "sign",
    "tanh",
    "sigmoid",
    "sin",
    "cos",
    "erf",
    "maximum",
    "float",
)
"""Operators that return finite numbers for finite numbers, unless they overflow."""
_CONDITIONS = ("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not")


def masked_gradient(graph: Graph, gradient: Node, is_finite: Callable[[int], bool]) -> Node:
    """Return a gradient that is 0 for excluded pairs.

    Args:
        graph: the graph.
        gradient: the gradient.
        is_finite: function of the index of an input that returns whether its elements are finite for excluded pairs.
    """
    return _masked(graph, gradient, is_finite) or graph.apply("masked", gradient)


def _masked(graph: Graph, node: Node, is_finite: Callable[[int], bool]) -> Node | None:
    """Return a node with its factors without features masked, or None if that does not mask it."""
    if node is graph.zero:
        return node
    if not node.features:
        return graph.apply("masked", node)
    if node.operator == "mul":
        first, second = sorted(node.arguments, key=lambda x: x.features)
        masked = _masked(graph, first, is_finite)
        return graph.mul(masked, second) if masked is not None and _bounded(second, is_finite) else None
    if node.operator in ("add", "sub", "neg", "where"):
        kept = node.arguments[:1] if node.operator == "where" else ()
        parts = [_masked(graph, x, is_finite) for x in node.arguments[len(kept) :]]
        found = [x for x in parts if x is not None]
        return graph.apply(node.operator, *kept, *found) if len(found) == len(parts) else None
    return None


def _bounded(node: Node, is_finite: Callable[[int], bool]) -> bool:
    """Return whether a node is finite for excluded pairs."""
    if node.operator == "input":
        return is_finite(int(node.value))
    if node.operator == "constant" or node.operator in _CONDITIONS:
        return True
    return node.operator in _FINITE and all(_bounded(x, is_finite) for x in node.arguments)
