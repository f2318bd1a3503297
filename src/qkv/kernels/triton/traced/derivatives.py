"""Derivatives of a graph: the gradient of each input, as nodes of the same graph.

The rules are those of PyTorch, also where a function has no derivative: that of |x| at 0 is 0, ties of a maximum share
its gradient, and a bound passes the gradient of what equals it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from qkv.kernels.triton.traced.graph import Graph, Node

__all__ = ["input_gradients", "reachable"]

Rule = Callable[[Graph, Node, Node], tuple[Node | None, ...]]
"""Function of the graph, a node and its gradient that returns the gradient of each argument."""


def reachable(*roots: Node) -> list[Node]:
    """Return all nodes on which nodes depend, each after its arguments."""
    found: dict[Node, None] = {}
    stack = [(node, False) for node in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if done:
            found[node] = None
        elif node not in found:
            stack.append((node, True))
            stack += [(x, False) for x in reversed(node.arguments) if x not in found]
    return list(found)


def input_gradients(graph: Graph, logit: Node) -> tuple[dict[Node, Node], dict[Node, Node]]:
    """Return the gradients of the inputs, for one pair, given that of the logit.

    Returns:
        The gradient of each input that is a number, or a number for each feature; and the gradient of each inner
        product, whose factors are differentiated by matrix products.
    """
    gradients: dict[Node, Node] = {logit: graph.slope()}
    inputs: dict[Node, Node] = {}
    products: dict[Node, Node] = {}
    for node in reversed(reachable(logit)):
        gradient = gradients.pop(node, None)
        if gradient is None or gradient is graph.zero:
            continue
        if node.operator == "input":
            if not node.boolean:
                inputs[node] = gradient
            continue
        if node.operator == "product":
            products[node] = gradient
            continue
        rule = _RULES.get(node.operator)
        if rule is None:  # constants, comparisons, signs and other operators whose derivative is 0
            continue
        for argument, part in zip(node.arguments, rule(graph, node, gradient), strict=True):
            if part is None or part is graph.zero:
                continue
            # An argument with one number for each pair was broadcast over the features.
            if node.features and not argument.features:
                part = graph.sum(part) if part.features else graph.mul(part, graph.constant(node.features))
            gradients[argument] = graph.add(gradients[argument], part) if argument in gradients else part
    return inputs, products


def _scaled(derivative: Callable[[Graph, Node], Node]) -> Rule:
    """Return the rule of a function of one argument, from its derivative."""
    return lambda g, node, gradient: (g.mul(gradient, derivative(g, node)),)


def _argument(node: Node) -> Node:
    return node.arguments[0]


def _div(g: Graph, node: Node, gradient: Node) -> tuple[Node | None, ...]:
    denominator = node.arguments[1]
    share = g.div(gradient, denominator)
    return share, None if denominator.operator == "constant" else g.neg(g.mul(share, node))


def _mul(g: Graph, node: Node, gradient: Node) -> tuple[Node | None, ...]:
    x, y = node.arguments
    if x is y:
        return g.mul(g.mul(g.constant(2.0), gradient), x), None
    return g.mul(gradient, y), g.mul(gradient, x)


def _abs(g: Graph, node: Node, gradient: Node) -> tuple[Node | None, ...]:
    x = _argument(node)
    below = g.where(g.apply("lt", x, g.zero), g.neg(gradient), g.zero)
    return (g.where(g.apply("gt", x, g.zero), gradient, below),)


def _maximum(g: Graph, node: Node, gradient: Node) -> tuple[Node | None, ...]:
    x, y = node.arguments
    tied = g.where(g.apply("eq", x, y), g.mul(g.constant(0.5), gradient), g.zero)
    return tuple(g.where(g.apply("gt", *order), gradient, tied) for order in ((x, y), (y, x)))


def _where(g: Graph, node: Node, gradient: Node) -> tuple[Node | None, ...]:
    condition = node.arguments[0]
    return None, g.where(condition, gradient, g.zero), g.where(condition, g.zero, gradient)


def _power(g: Graph, node: Node, gradient: Node) -> tuple[Node | None, ...]:
    x, exponent = node.arguments
    if exponent.operator == "constant":
        return g.mul(gradient, g.mul(exponent, g.power(x, exponent.value - 1))), None
    slope = g.mul(exponent, g.apply("power", x, g.sub(exponent, g.one)))
    # As in PyTorch: 0 where the exponent is 0, and for the exponent where the base is 0.
    slope = g.where(g.apply("eq", exponent, g.zero), g.zero, slope)
    none = g.apply("and", g.apply("eq", x, g.zero), g.apply("ge", exponent, g.zero))
    return g.mul(gradient, slope), g.mul(gradient, g.where(none, g.zero, g.mul(node, g.apply("log", x))))


def _max(g: Graph, node: Node, gradient: Node) -> tuple[Node | None, ...]:
    x = _argument(node)
    largest = g.apply("eq", x, node)
    count = g.sum(g.number(largest))
    return (g.where(largest, g.div(gradient, count), g.zero),)


def _logistic(g: Graph, node: Node) -> Node:
    return g.mul(node, g.sub(g.one, node))


_BELL = 2 / math.sqrt(math.pi)

_RULES: dict[str, Rule] = {
    "add": lambda g, node, gradient: (gradient, gradient),
    "sub": lambda g, node, gradient: (gradient, g.neg(gradient)),
    "mul": _mul,
    "div": _div,
    "neg": lambda g, node, gradient: (g.neg(gradient),),
    "abs": _abs,
    "exp": _scaled(lambda g, node: node),
    "exp2": _scaled(lambda g, node: g.mul(g.constant(math.log(2.0)), node)),
    "expm1": _scaled(lambda g, node: g.add(node, g.one)),
    "log": lambda g, node, gradient: (g.div(gradient, _argument(node)),),
    "log1p": lambda g, node, gradient: (g.div(gradient, g.add(g.one, _argument(node))),),
    "sqrt": lambda g, node, gradient: (g.div(g.mul(g.constant(0.5), gradient), node),),
    "rsqrt": _scaled(lambda g, node: g.mul(g.constant(-0.5), g.power(node, 3))),
    "sin": _scaled(lambda g, node: g.apply("cos", _argument(node))),
    "cos": _scaled(lambda g, node: g.neg(g.apply("sin", _argument(node)))),
    "tanh": _scaled(lambda g, node: g.sub(g.one, g.mul(node, node))),
    "sigmoid": _scaled(_logistic),
    "softplus": _scaled(lambda g, node: g.apply("sigmoid", _argument(node))),
    "erf": _scaled(lambda g, node: g.mul(g.constant(_BELL), g.apply("exp", g.neg(g.power(_argument(node), 2))))),
    "maximum": _maximum,
    "where": _where,
    "power": _power,
    "sum": lambda g, node, gradient: (gradient,),
    "max": _max,
    "at": lambda g, node, gradient: (g.only(gradient, int(node.value), _argument(node).features),),
}
