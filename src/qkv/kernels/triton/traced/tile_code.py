"""Code of a tile: the lines of a program that compute nodes of a graph for the pairs of a block.

A number for each pair is an array of queries × keys. Features are never an axis of an array: a loop passes over them,
and every reduction over features of which the arguments are known is computed in the same loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from qkv.kernels.triton.traced.graph import Node, reachable

Loads = Callable[[Node, str], str]
"""Function of an input and the index of a feature that returns the expression that loads the input."""


@dataclass
class Counts:
    """Operations for each pair.

    Attributes:
        vector: multiply-adds, other additions and multiplications, comparisons and selections.
        special: special functions, among them divisions.
        matrix: multiply-adds of inner products.
    """

    vector: float = 0.0
    special: float = 0.0
    matrix: float = 0.0


_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
    "ne": "!=",
}  # fmt: skip
_LOGIC = {
    # The interpreter does not combine truth values of one number and of an array.
    "and": "tl.where({0}, tl.where({1}, 1.0, 0.0), 0.0) != 0.0",
    "or": "tl.where({0}, 1.0, tl.where({1}, 1.0, 0.0)) != 0.0",
    "not": "tl.where({0}, 0.0, 1.0) != 0.0",
}
_FUNCTIONS = {
    "abs": ("tl.abs", 1, 0), "exp": ("tl.exp", 1, 1), "exp2": ("tl.exp2", 0, 1), "log": ("tl.log", 1, 1),
    "sqrt": ("tl.sqrt", 0, 1), "rsqrt": ("tl.rsqrt", 0, 1), "sin": ("tl.sin", 20, 0), "cos": ("tl.cos", 20, 0),
    "erf": ("tl.erf", 20, 1), "floor": ("tl.floor", 1, 0), "ceil": ("tl.ceil", 1, 0), "log1p": ("log1p", 5, 2),
    "expm1": ("expm1", 5, 3), "tanh": ("tanh", 12, 2), "sigmoid": ("sigmoid", 4, 2), "softplus": ("softplus", 8, 3),
    "sign": ("sign", 2, 0), "maximum": ("maximum", 2, 0), "power": ("power", 8, 2),
}  # fmt: skip
"""Name of the function in a program, and its operations and special functions."""


@dataclass
class TileCode:
    """Lines of code that compute nodes.

    Attributes:
        load: function that returns the expression of an input.
        product: function that returns the expression of an inner product.
        indent: the spaces before each line.
        names: names of nodes that are computed already, by node and scope; the scope "" is outside of the loops.
        counts: operations of the code for each pair.
    """

    load: Loads
    product: Callable[[Node], str]
    indent: str
    names: dict[tuple[Node, str], str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    loops: int = 0

    def compute(self, *nodes: Node) -> list[str]:
        """Write the code of nodes with one number for each pair, and return their names."""
        self._reduce(nodes)
        return [self._name(node, "") for node in nodes]

    def accumulate(self, features: int, sums: Sequence[tuple[Node, Callable[[str, str], Sequence[str]]]]) -> None:
        """Write a loop over features, in which the function of each node adds lines for its name and the feature."""
        self._reduce([node for node, _ in sums])
        self._outside([node for node, _ in sums])
        scope = self._open(features)
        for node, lines in sums:
            for line in lines(self._name(node, scope), scope):
                self._write(line, scope)
            self.counts.vector += 3 * features

    # -- reductions ---------------------------------------------------------------------------------------

    def _reduce(self, nodes: Iterable[Node]) -> None:
        """Write the loops of all reductions that nodes need, those of one depth and length in one loop."""
        needed = [x for x in reachable(*nodes) if x.operator in ("sum", "max") and (x, "") not in self.names]
        depths: dict[Node, int] = {}
        for node in needed:
            inner = [depths[x] for x in reachable(node.arguments[0]) if x in depths]
            depths[node] = 1 + max(inner, default=0)
        for depth in sorted(set(depths.values())):
            group = [x for x in needed if depths[x] == depth]
            for features in sorted({x.arguments[0].features for x in group}):
                self._loop([x for x in group if x.arguments[0].features == features], features)

    def _loop(self, group: list[Node], features: int) -> None:
        self._outside([x.arguments[0] for x in group])
        for node in group:
            name = self.names[node, ""] = f"s{node.number}"
            start = "0.0" if node.operator == "sum" else '-float("inf")'
            self.lines.append(f"{self.indent}{name} = tl.full((BQ, BK), {start}, tl.float32)")
        scope = self._open(features)
        for node in group:
            name, value = self.names[node, ""], self._name(node.arguments[0], scope)
            self._write(f"{name} += {value}" if node.operator == "sum" else f"{name} = maximum({name}, {value})", scope)
            self.counts.vector += 0 if node.arguments[0].operator == "mul" else features

    def _open(self, features: int) -> str:
        """Write the head of a loop, and return the name of its feature, which is that of the scope."""
        self.loops += 1
        scope = f"f{self.loops}"
        self.lines.append(f"{self.indent}for {scope} in range(0, {features}):")
        self._length = features
        return scope

    def _outside(self, nodes: Iterable[Node]) -> None:
        """Write the arguments of nodes that do not depend on features, before a loop over features."""
        stack, seen = list(nodes), set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.features:
                stack += node.arguments
            elif node.operator != "constant":
                self._name(node, "")

    # -- expressions --------------------------------------------------------------------------------------

    def _name(self, node: Node, scope: str) -> str:
        """Return the name of a node, after the line that computes it.

        Args:
            scope: the feature, as the name of a loop variable or a number; "" for one number for each pair.
        """
        if node.operator == "constant":
            return _literal(float(node.value))
        scope = scope if node.features else ""
        if (node, scope) not in self.names:
            expression = self._expression(node, scope)
            name = f"t{node.number}" + (f"_{scope}" if scope else "")
            self._write(f"{name} = {expression}", scope)
            self.names[node, scope] = name
        return self.names[node, scope]

    def _expression(self, node: Node, scope: str) -> str:
        operator = node.operator
        if operator == "input":
            return self.load(node, scope)
        if operator == "product":
            self.counts.matrix += node.value
            return self.product(node)
        if operator == "at":
            return self._name(node.arguments[0], str(int(node.value)))
        names = [self._name(x, scope) for x in node.arguments]
        times = self._length if scope.startswith("f") else 1
        if operator == "only":
            self.counts.vector += times
            return f"tl.where({scope} == {int(node.value)}, {names[0]}, 0.0)"
        if operator == "detach":
            return names[0]
        if operator == "masked":
            self.counts.vector += times
            return f"tl.where(allowed, {names[0]}, 0.0)"
        if operator == "float":
            self.counts.vector += times
            return f"tl.where({names[0]}, 1.0, 0.0)"
        if operator == "where":
            self.counts.vector += times
            return f"tl.where({', '.join(names)})"
        if operator == "neg":
            self.counts.vector += times
            return f"-{names[0]}"
        if operator in _LOGIC:
            self.counts.vector += times
            return _LOGIC[operator].format(*names)
        if operator in _BINARY:
            # A product and a sum are one multiply-add.
            fused = operator in ("add", "sub") and "mul" in [x.operator for x in node.arguments]
            self.counts.vector += 0 if fused else times
            self.counts.special += times * (operator == "div")
            return f"{names[0]} {_BINARY[operator]} {names[1]}"
        function, vector, special = _FUNCTIONS[operator]
        self.counts.vector += times * vector
        self.counts.special += times * special
        return f"{function}({', '.join(names)})"

    def _write(self, line: str, scope: str) -> None:
        inner = "    " if scope.startswith("f") else ""
        self.lines.append(f"{self.indent}{inner}{line}")


def _literal(value: float) -> str:
    if math.isfinite(value):
        return repr(value) if value >= 0 else f"({value!r})"
    return "float('nan')" if math.isnan(value) else "float('inf')" if value > 0 else "(-float('inf'))"
