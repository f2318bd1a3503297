"""Graph of the numbers of one pair of a query and a key, from which the programs are generated.

Each node is a number for each pair, or one for each pair and feature. Equal nodes are one object, constants are
folded, and products with 0 and 1 are left out.

Derivatives are nodes of the same graph. Their rules are those of PyTorch, also where a function has no derivative: that
of |x| at 0 is 0, ties of a maximum share its gradient, and a bound passes the gradient of what equals it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from qkv.kernels.triton.traced.recording import TraceError


@dataclass(frozen=True, eq=False)
class Node:
    """Number for each pair, or for each pair and feature.

    Attributes:
        operator: the operator; "constant", "input", "slope" for the gradient of the logits.
        arguments: the nodes that it takes.
        value: the constant, the index of the input, or the index of the feature that it takes.
        features: number of features; 0 for one number for each pair.
        boolean: whether it is true or false.
        number: the number of nodes that were there before.
    """

    operator: str
    arguments: tuple[Node, ...] = ()
    value: float | int = 0
    features: int = 0
    boolean: bool = False
    number: int = 0


_BOOLEAN = ("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not")
_REDUCTIONS = ("sum", "max", "at")

_FOLDED: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "abs": abs,
}


class Graph:
    """Nodes of a graph, and functions that create them."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[object, ...], Node] = {}
        self.zero, self.one = self.constant(0.0), self.constant(1.0)

    def __len__(self) -> int:
        return len(self._nodes)

    def constant(self, value: float) -> Node:
        """Return a constant."""
        return self._node("constant", (), float(value))

    def input(self, index: int, features: int, boolean: bool = False) -> Node:
        """Return the input of an index."""
        return self._node("input", (), index, features, boolean)

    def slope(self) -> Node:
        """Return the gradient of the logit of a pair."""
        return self._node("slope", ())

    def product(self, left: int, right: int, width: int) -> Node:
        """Return the inner product of two inputs, one of the query and one of the key."""
        return self._node("product", (self.input(left, width), self.input(right, width)), width, -1)

    def sum(self, x: Node) -> Node:
        """Return the sum of a node over its features."""
        return self._node("sum", (self.number(x),), 0, -1) if x.features else x

    def max(self, x: Node) -> Node:
        """Return the largest of the numbers of a node over its features."""
        return self._node("max", (self.number(x),), 0, -1) if x.features else x

    def at(self, x: Node, index: int) -> Node:
        """Return a node at one feature."""
        if not x.features:
            return x
        if x.operator == "only":
            return x.arguments[0] if x.value == index else self.zero
        return self._node("at", (x,), index, -1, x.boolean)

    def only(self, x: Node, index: int, features: int) -> Node:
        """Return a node that is `x` at one feature and 0 at the others."""
        return self._node("only", (x,), index, features)

    def number(self, x: Node) -> Node:
        """Return a node whose numbers are 1 and 0 where those of `x` are true and false."""
        return self._node("float", (x,)) if x.boolean else x

    def add(self, a: Node, b: Node) -> Node:
        """Return a + b."""
        return b if a is self.zero else a if b is self.zero else self.apply("add", a, b)

    def sub(self, a: Node, b: Node) -> Node:
        """Return a − b."""
        return self.neg(b) if a is self.zero else a if b is self.zero else self.apply("sub", a, b)

    def mul(self, a: Node, b: Node) -> Node:
        """Return a · b."""
        if self.zero in (a, b):
            return self.zero
        if a.operator == "constant" and a.value == -1:
            return self.neg(b)
        if b.operator == "constant" and b.value == -1:
            return self.neg(a)
        return b if a is self.one else a if b is self.one else self.apply("mul", a, b)

    def div(self, a: Node, b: Node) -> Node:
        """Return a / b; a division by a power of two is a product."""
        if b.operator == "constant" and b.value != 0 and math.frexp(abs(b.value))[0] == 0.5:
            return self.mul(a, self.constant(1 / b.value))
        return self.zero if a is self.zero else self.apply("div", a, b)

    def neg(self, a: Node) -> Node:
        """Return −a, where the sign goes to a factor or branch without features, which is computed once for a pair."""
        if a.operator == "neg":
            return a.arguments[0]
        if a.features and a.operator == "mul" and not (a.arguments[0].features and a.arguments[1].features):
            single, other = sorted(a.arguments, key=lambda x: x.features)
            return self.mul(self.neg(single), other)
        if a.features and a.operator == "where" and not any(x.features for x in a.arguments[1:]):
            return self.where(a.arguments[0], self.neg(a.arguments[1]), self.neg(a.arguments[2]))
        return self.apply("neg", a)

    def where(self, condition: Node, a: Node, b: Node) -> Node:
        """Return a where a condition is true, and b elsewhere."""
        return a if a is b else self.apply("where", condition, a, b)

    def power(self, x: Node, exponent: float) -> Node:
        """Return x to the power of a constant."""
        if exponent == 0:
            return self.one
        if exponent < 0 and exponent != -0.5:
            return self.div(self.one, self.power(x, -exponent))
        if exponent == -0.5:
            return self.apply("rsqrt", x)
        whole = int(exponent)
        if exponent - whole in (0, 0.5) and whole <= 8:
            result = self.one if exponent == whole else self.apply("sqrt", x)
            square = x
            while whole:
                result = self.mul(result, square) if whole % 2 else result
                whole //= 2
                square = self.mul(square, square) if whole else square
            return result
        return self.apply("power", x, self.constant(exponent))

    def apply(self, operator: str, *arguments: Node) -> Node:
        """Return an elementwise operator of nodes, where those of one number for each pair are broadcast."""
        if operator not in ("where", "and", "or", "not", "detach"):
            arguments = tuple(map(self.number, arguments))
        if operator == "where":
            arguments = arguments[0], *map(self.number, arguments[1:])
        if operator in _FOLDED and all(x.operator == "constant" for x in arguments):
            return self.constant(_FOLDED[operator](*(x.value for x in arguments)))
        return self._node(operator, arguments, 0, 0, operator in _BOOLEAN)

    def _node(
        self,
        operator: str,
        arguments: tuple[Node, ...],
        value: float | int = 0,
        features: int = 0,
        boolean: bool = False,
    ) -> Node:
        if features == 0:
            counts = {x.features for x in arguments if x.features}
            if len(counts) > 1:
                raise TraceError(f"it combines {' and '.join(map(str, sorted(counts)))} features of a pair")
            features = counts.pop() if counts else 0
        features = max(features, 0)
        key = (operator, tuple(x.number for x in arguments), repr(value), features, boolean)
        if key not in self._nodes:
            self._nodes[key] = Node(operator, arguments, value, features, boolean, len(self._nodes))
        return self._nodes[key]


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
