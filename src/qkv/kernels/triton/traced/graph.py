"""Graph of the numbers of one pair of a query and a key, from which the programs are generated.

Each node is a number for each pair, or one for each pair and feature. Equal nodes are one object, constants are
folded, and products with 0 and 1 are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from qkv.kernels.triton.traced.recording import TraceError

__all__ = ["Graph", "Node"]


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
