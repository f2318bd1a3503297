"""Translation of a recording to a graph of the numbers of one pair of a query and a key.

What depends on queries or keys alone is left to PyTorch, which computes it once before the program; the program gets
the results as inputs. Operators of pairs must be among those of `operators.py`, or one of these: sums, means, maxima,
norms, variances and log-sum-exps over the features of a pair, inner products of queries and keys, products of the
features of a pair and a vector, distances, and operators that move axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from qkv.kernels.triton.traced.graph import Graph, Node
from qkv.kernels.triton.traced.operators import ELEMENTWISE, norm
from qkv.kernels.triton.traced.recording import KEYS, QUERIES, Operation, Recorded, Recording, TraceError

Label = tuple[str, ...]
Axes = tuple[Label, ...]
_UNKNOWN: Label = ("?",)


def combine(*axes: Axes, name: str = "") -> Axes:
    """Return the axes of arrays that are broadcast against each other.

    Raises:
        TraceError: an axis of one kind meets an axis of another.
    """
    count = max((len(x) for x in axes), default=0)
    result: list[Label] = [()] * count
    for each in axes:
        for n, label in enumerate(each, count - len(each)):
            mine = result[n]
            if label and all(word == "?" for word in mine):
                result[n] = label
            elif label != mine and any(word != "?" for word in label):
                raise TraceError(f"the operator {name} combines an axis of {_words(mine)} and one of {_words(label)}")
    return tuple(result)


def output_axes(operation: Operation, result: Recorded, known: dict[Recorded, Axes]) -> Axes:
    """Return the axes of a result of an operation.

    Raises:
        TraceError: the operation mixes axes of different kinds.
    """
    arrays = [x for x in operation.arrays() if x in known]
    name, shape = operation.name, result.shape
    found: Axes | None = None
    if name in ("view", "_unsafe_view", "reshape", "_reshape_alias"):
        found = _viewed(known[arrays[0]], arrays[0].shape, shape, name)
    elif name in ("permute", "transpose", "t", "unsqueeze", "squeeze", "select", "expand", "slice"):
        found = _moved(operation, known[arrays[0]], arrays[0].shape, shape)
    elif name in ("mm", "bmm", "mv", "dot"):
        found = _multiplied(known[arrays[0]], known[arrays[1]], name)
    elif name in ("_cdist_forward", "_euclidean_dist"):
        left, right = known[arrays[0]], known[arrays[1]]
        found = (*combine(left[:-2], right[:-2], name=name), left[-2], right[-2])
    elif len(arrays) and any(len(x.shape) for x in arrays) and _broadcast([x.shape for x in arrays]) == shape:
        found = combine(*(known[x] for x in arrays), name=name)
    elif len(arrays) == 1:
        found = _reduced(known[arrays[0]], arrays[0].shape, shape, operation)
    return _corrected(found, shape)


def _words(label: Label) -> str:
    kinds = {"q": "queries", "k": "keys", "f": "features", "?": "a parameter"}
    return " and ".join(kinds.get(name, "batch elements") for name in label)


def _corrected(found: Axes | None, shape: tuple[int, ...]) -> Axes:
    """Return axes in which those of length 1, or of the length of queries or keys, have their own label."""
    labels = list(found) if found is not None and len(found) == len(shape) else [_UNKNOWN] * len(shape)
    for n, length in enumerate(shape):
        if length == 1:
            labels[n] = ()
        elif length in (QUERIES, KEYS):
            labels[n] = ("q",) if length == QUERIES else ("k",)
        elif not labels[n]:
            labels[n] = _UNKNOWN
    return tuple(labels)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    count = max(map(len, shapes))
    padded = [(1,) * (count - len(x)) + x for x in shapes]
    result = tuple(max(column) if 0 not in column else 0 for column in zip(*padded, strict=True))
    fits = all(n in (1, m) for x in padded for n, m in zip(x, result, strict=True))
    return result if fits else None


def _viewed(axes: Axes, old: tuple[int, ...], new: tuple[int, ...], name: str) -> Axes:
    """Return the axes after a change of shape, where groups of axes have equal products."""
    result: list[Label] = []
    mine = [(label, n) for label, n in zip(axes, old, strict=True) if n != 1]
    lengths = [n for n in new if n != 1]
    while lengths:
        length, group = lengths.pop(0), [mine.pop(0)] if mine else []
        if not group:
            raise TraceError(f"the operator {name} changes the shape of an empty array")
        while math.prod(n for _, n in group) < length and mine:
            group.append(mine.pop(0))
        product = math.prod(n for _, n in group)
        if product == length:
            result.append(tuple(word for label, _ in group for word in label))
            continue
        if len(group) != 1 or product % length or not _split(group[0], length, lengths):
            raise TraceError(f"the operator {name} mixes axes of different kinds")
        first, rest = _split(group[0], length, lengths) or ((), ())
        result.append(first)
        mine.insert(0, (rest, product // length))
    labels = iter(result)
    return tuple(() if n == 1 else next(labels) for n in new)


def _split(axis: tuple[Label, int], length: int, following: Sequence[int]) -> tuple[Label, Label] | None:
    """Return the labels of the two axes into which an axis is split; None if it is not known where its parts end."""
    label, total = axis
    if len(label) == 1 and label[0] in ("f", "?"):
        return label, label
    if len(label) < 2:
        return None
    if len(label) == 2:
        return label[:1], label[1:]
    # As many names as axes remain until the product is reached.
    count, product = 1, length
    for n in following:
        if product == total:
            break
        count, product = count + 1, product * n
    if count == len(label):
        return label[:1], label[1:]
    for name, size in (("q", QUERIES), ("k", KEYS)):
        if length % size == 0 and name in label:
            end = label.index(name) + 1
            return label[:end], label[end:]
        if total // length % size == 0 and name in label:
            start = label.index(name)
            return (label[:start], label[start:]) if start else None
    return None


def _moved(operation: Operation, axes: Axes, old: tuple[int, ...], new: tuple[int, ...]) -> Axes:
    """Return the axes after an operator that moves, adds or removes whole axes."""
    name, rest, count = operation.name, operation.arguments[1:], len(axes)
    if name == "permute":
        return tuple(axes[n] for n in rest[0])
    if name in ("transpose", "t"):
        order = list(range(count))
        first, second = rest if name == "transpose" else (0, 1)
        if count > 1:
            order[first], order[second] = order[second], order[first]
        return tuple(axes[n] for n in order)
    if name == "unsqueeze":
        place = rest[0] % (count + 1)
        return (*axes[:place], (), *axes[place:])
    if name == "select":
        place = rest[0] % count
        return (*axes[:place], *axes[place + 1 :])
    if name == "squeeze":
        dims = range(count) if not rest else [rest[0]] if isinstance(rest[0], int) else rest[0]
        gone = {n % count for n in dims if old[n] == 1}
        return tuple(label for n, label in enumerate(axes) if n not in gone)
    if name == "expand":
        return (*((),) * (len(new) - count), *axes)
    if name == "slice":
        place = (rest[0] if rest else 0) % count
        if old != new and axes[place] not in (("f",), _UNKNOWN):
            raise TraceError("the operator slice takes a part of the queries, keys or batch elements")
    return axes


def _multiplied(left: Axes, right: Axes, name: str) -> Axes:
    """Return the axes of a matrix product."""
    if name == "dot":
        return ()
    if name == "mv":
        return left[:-1]
    rows, columns = left[-2], right[-1]
    return (*combine(left[:-2], right[:-2], name=name), rows, columns)


def _reduced(axes: Axes, old: tuple[int, ...], new: tuple[int, ...], operation: Operation) -> Axes | None:
    """Return the axes after an operator that reduces axes, or removes them."""
    if len(old) == len(new):
        return tuple(
            label if n == m else () if m == 1 else _UNKNOWN for label, n, m in zip(axes, old, new, strict=True)
        )
    dims = next((x for x in operation.arguments[1:] if isinstance(x, (list, tuple))), None)
    if dims is None and len(operation.arguments) > 1 and isinstance(operation.arguments[1], int):
        dims = [operation.arguments[1]]
    if dims is None:
        return None
    gone = {n % len(old) for n in dims}
    remaining = tuple(label for n, label in enumerate(axes) if n not in gone)
    return remaining if len(remaining) == len(new) else None


@dataclass(frozen=True)
class Input:
    """Array that a program reads.

    Attributes:
        array: the array of the recording.
        axes: its axes.
        rows: "q" if it has a number for each query, "k" for each key, "" for neither.
        features: number of features; 0 for one number.
        batched: whether it has batch axes.
        product: whether it is a factor of an inner product of queries and keys.
    """

    array: Recorded
    axes: Axes
    rows: str
    features: int
    batched: bool
    product: bool = False

    @property
    def boolean(self) -> bool:
        """Whether its elements are true or false."""
        import torch

        return self.array.dtype == torch.bool


@dataclass(frozen=True)
class Translation:
    """Graph of the logit of a pair.

    Attributes:
        graph: the graph.
        logit: the node of the logit.
        inputs: arrays that the program reads.
        operators: names of the translated operators, in their order, with the number of features that they reduce.
    """

    graph: Graph
    logit: Node
    inputs: tuple[Input, ...]
    operators: tuple[str, ...]


def translate(recording: Recording, batch: tuple[int, ...]) -> Translation:
    """Translate a recording whose first two arguments are query and key, with all batch axes of the call.

    Raises:
        TraceError: an operator of pairs has no translation; the message names it.
    """
    translator = _Translator(recording, batch)
    for operation, results in recording.operations:
        translator.operation(operation, results)
    output = recording.output
    if not translator.is_pair(output):
        raise TraceError("its logits do not depend on both query and key")
    expected = (*((f"b{n}",) if length > 1 else () for n, length in enumerate(batch)), ("q",), ("k",))
    axes = translator.axes[output]
    if combine(axes, expected) != expected or len(axes) > len(expected):
        raise TraceError("the axes of its logits are not batch axes, queries and keys in this order")
    logit = translator.nodes[output]
    if logit.features:
        raise TraceError("its logits have features")
    return Translation(translator.graph, logit, tuple(translator.inputs), tuple(translator.operators))


MOVES = ("view", "_unsafe_view", "reshape", "_reshape_alias", "permute", "transpose", "t", "unsqueeze", "squeeze")
_FILLS = {"zeros_like": 0.0, "ones_like": 1.0, "new_zeros": 0.0, "new_ones": 1.0, "zeros": 0.0, "ones": 1.0}


class _Translator:
    """State of a translation: axes of all arrays, and nodes of those that depend on both query and key."""

    def __init__(self, recording: Recording, batch: tuple[int, ...]) -> None:
        self.graph = Graph()
        self.axes: dict[Recorded, Axes] = {}
        self.nodes: dict[Recorded, Node] = {}
        self.inputs: list[Input] = []
        self.operators: list[str] = []
        self.depends: dict[Recorded, frozenset[str]] = {}
        for n, x in enumerate((*recording.arguments, *recording.constants)):
            labels: list[Label] = [("?",) if length > 1 else () for length in x.shape]
            if n < 2:
                labels = [*((f"b{m}",) if length > 1 else () for m, length in enumerate(batch)), ("qk"[n],), ("f",)]
                labels[-1] = ("f",) if x.shape[-1] > 1 else ()
            self.axes[x], self.depends[x] = tuple(labels), frozenset("qk"[n]) if n < 2 else frozenset()

    def is_pair(self, x: Recorded) -> bool:
        """Return whether an array depends on both query and key, or has both axes."""
        return x in self.nodes

    def operation(self, operation: Operation, results: tuple[Recorded, ...]) -> None:
        """Translate one operation."""
        arrays = operation.arrays()
        depends = frozenset().union(*(self.depends[x] for x in arrays))
        for x in results:
            self.axes[x], self.depends[x] = output_axes(operation, x, self.axes), depends
        words = [{word for label in self.axes[x] for word in label} for x in results]
        if not (len(depends) == 2 or any({"q", "k"} <= each for each in words)):
            if not depends and any(n in (QUERIES, KEYS) for x in results for n in x.shape):
                raise TraceError(f"the operator {operation.name} depends on positions")
            return
        result = results[0]
        kind = str(result.dtype).removeprefix("torch.")
        if kind not in ("float32", "bool"):
            raise TraceError(f"the operator {operation.name} returns {kind} numbers")
        self.axes[result] = tuple(tuple("f" if word == "?" else word for word in label) for label in self.axes[result])
        if sum(label.count("f") for label in self.axes[result]) > 1:
            raise TraceError(f"the operator {operation.name} returns more than one axis of features for each pair")
        self.nodes[result] = self._translated(operation, result)
        if operation.name in ELEMENTWISE and operation.name not in ("expand", "clone", "alias"):
            self.operators.append(operation.name)

    def _translated(self, operation: Operation, result: Recorded) -> Node:
        name, graph = operation.name, self.graph
        if name in _FILLS or name in ("full_like", "new_full", "full", "scalar_tensor"):
            return graph.constant(_FILLS[name] if name in _FILLS else float(operation.arguments[-1]))
        if name in MOVES:
            return self._node(operation.arguments[0], self.axes[result])
        if name == "select":
            return self._selected(operation)
        if name in ("mm", "bmm", "mv"):
            return self._multiplied(operation.arguments[0], operation.arguments[1], name)
        if name == "addmm":
            raise TraceError("the operator addmm multiplies the features of a pair by a matrix")
        if name in ("_cdist_forward", "_euclidean_dist"):
            order = operation.arguments[2] if name == "_cdist_forward" else 2.0
            self.operators.append(f"cdist ({operation.arguments[0].shape[-1]} features)")
            return norm(graph, self._difference(*operation.arguments[:2]), float(order))
        if name in _REDUCTIONS:
            return self._reduced(operation)
        function = ELEMENTWISE.get(name)
        if function is None:
            raise TraceError(f"the operator {name} of pairs has no translation")
        axes = self.axes[result]
        operands = [self._operand(x, axes) for x in operation.arguments]
        options = {key: self._option(key, x, axes) for key, x in operation.options.items() if x is not None}
        for key in ("dtype", "layout", "device", "pin_memory", "non_blocking", "memory_format", "implicit"):
            options.pop(key, None)
        try:
            return function(graph, *(operands[:1] if name in ("expand", "clone", "_to_copy") else operands), **options)
        except TypeError as error:
            raise TraceError(f"the operator {name} has options without a translation") from error

    def _operand(self, x: object, axes: Axes) -> Any:
        if isinstance(x, Recorded):
            return self._node(x, axes)
        if isinstance(x, (int, float)) and not isinstance(x, bool):
            return self.graph.constant(float(x))
        return x

    def _option(self, key: str, x: Any, axes: Axes) -> Any:
        return float(x) if key == "alpha" else self._operand(x, axes)

    def _node(self, x: Recorded, axes: Axes) -> Node:
        """Return the node of an array, which is an input if it depends on queries or keys alone."""
        if x in self.nodes:
            return self.nodes[x]
        if len(self.depends[x]) == 2:
            raise TraceError("it uses the indices of an extremum")
        if (value := _known(x)) is not None:
            return self.graph.constant(value)
        own = self.axes[x]
        aligned = axes[len(axes) - len(own) :] if len(own) <= len(axes) else own
        resolved = tuple(
            other if label and all(word == "?" for word in label) and other else label
            for label, other in zip(own, aligned, strict=True)
        )
        return self._input(x, resolved)

    def _input(self, x: Recorded, axes: Axes, product: bool = False) -> Node:
        """Return the node of an input."""
        axes = tuple(tuple("f" if word == "?" else word for word in label) for label in axes)
        words = [word for label in axes for word in label]
        if words.count("f") > 1:
            raise TraceError("it combines a pair with a matrix")
        if x.dtype.is_complex or not (x.dtype.is_floating_point or str(x.dtype) == "torch.bool"):
            raise TraceError(f"it computes with {str(x.dtype).removeprefix('torch.')} arrays")
        features = 0
        if "f" in words:
            (where,) = (n for n, label in enumerate(axes) if "f" in label)
            if len(axes[where]) > 1:
                raise TraceError("it merges features with another axis")
            features = x.shape[where]
        rows = "q" if "q" in words else "k" if "k" in words else ""
        if product and not features:
            features = 1
        made = Input(x, axes, rows, features, any(word[0] == "b" for word in words) or bool(rows), product)
        if made not in self.inputs:
            self.inputs.append(made)
        return self.graph.input(self.inputs.index(made), features, made.boolean)

    def _selected(self, operation: Operation) -> Node:
        x, dim, index = operation.arguments
        place = dim % len(x.shape)
        label = self.axes[x][place]
        node = self.nodes[x]
        if label == ():
            return node
        if label != ("f",):
            raise TraceError("the operator select takes one of the queries, keys or batch elements")
        return self.graph.at(node, index % x.shape[place])

    def _multiplied(self, left: Recorded, right: Recorded, name: str) -> Node:
        """Return the node of a matrix product."""
        if left in self.nodes and right in self.nodes:
            raise TraceError(f"the operator {name} multiplies two arrays of pairs")
        if left in self.nodes or right in self.nodes:
            return self._contracted(left, right, name)
        (a, b), width = (self.axes[left], self.axes[right]), left.shape[-1]
        batch = combine(a[:-2], b[:-2], name=name)
        if any(word[0] != "b" for label in batch for word in label):
            raise TraceError(f"the operator {name} multiplies matrices for each feature")
        inner = combine((a[-1],), (b[-2],), name=name)[0]
        if inner not in ((), ("f",), ("?",)) or {a[-2], b[-1]} != {("q",), ("k",)}:
            raise TraceError(f"the operator {name} does not multiply each query and each key")
        feature: Label = ("f",) if width > 1 else ()
        first = self._input(left, (*combine(a[:-2], batch), a[-2], feature), product=True)
        second = self._input(right, (*combine(b[:-2], batch), feature, b[-1]), product=True)
        self.operators.append(f"{name} ({width} features)")
        if a[-2] == ("k",):
            first, second = second, first
        return self.graph.product(int(first.value), int(second.value), width)

    def _contracted(self, left: Recorded, right: Recorded, name: str) -> Node:
        """Return the product of the features of a pair and a vector."""
        swapped = right in self.nodes
        pair, other = (right, left) if swapped else (left, right)
        mine, theirs = self.axes[pair], self.axes[other]
        inner = mine[-2] if swapped else mine[-1]
        free = () if name == "mv" else theirs[-2] if swapped else theirs[-1]
        if inner not in (("f",), ()) or free != ():
            raise TraceError(f"the operator {name} multiplies the features of a pair by a matrix")
        batch = combine(theirs[:-2], mine[:-2], name=name) if name == "bmm" else ()
        axes = (inner,) if name == "mv" else (*batch, (), inner) if swapped else (*batch, inner, ())
        if name == "bmm":
            axes = tuple(label if n != 1 else () for label, n in zip(axes, other.shape, strict=True))
        self.operators.append(f"{name} ({pair.shape[-2 if swapped else -1]} features)")
        return self.graph.sum(self.graph.mul(self.nodes[pair], self._input(other, axes)))

    def _difference(self, left: Recorded, right: Recorded) -> Node:
        """Return the differences of the features of two arrays of vectors, one of queries and one of keys."""
        if left in self.nodes or right in self.nodes:
            raise TraceError("the distance is one of arrays of pairs")
        a, b = self.axes[left], self.axes[right]
        batch = combine(a[:-2], b[:-2], name="cdist")
        if {a[-2], b[-2]} != {("q",), ("k",)} or any(word[0] != "b" for label in batch for word in label):
            raise TraceError("the distance is not one of each query and each key")
        sides = [(x, (*combine(y[:-2], batch), *y[-2:])) for x, y in ((left, a), (right, b))]
        return self.graph.sub(*(self._input(x, y) for x, y in sides))

    def _reduced(self, operation: Operation) -> Node:
        """Return the node of a reduction over the features of a pair."""
        x, name = operation.arguments[0], operation.name
        function, place = _REDUCTIONS[name]
        dims = operation.arguments[place] if len(operation.arguments) > place else operation.options.get("dim")
        count = len(x.shape)
        dims = range(count) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
        labels = [(self.axes[x][n % count], x.shape[n % count]) for n in dims]
        if any(label not in ((), ("f",)) for label, _ in labels):
            raise TraceError(f"the operator {name} reduces queries, keys or batch elements")
        node = self._node(x, self.axes[x])
        length = math.prod(n for _, n in labels)
        if length > 1:
            self.operators.append(f"{name} ({length} features)")
        return function(self.graph, node, length, operation)


def _known(x: Recorded) -> float | None:
    """Return the number of an array that the function made of one number, or None for other arrays."""
    if x.source is None or x.shape:
        return None
    given = x.source.arguments[0]
    if x.source.name == "scalar_tensor":
        return float(given)
    if x.source.name == "lift_fresh" and given.constant is not None and given.constant.device.type == "cpu":
        return float(given.constant)
    return _known(given) if x.source.name in ("clone", "detach", "alias") else None


def _sum(g: Graph, x: Node, length: int, _: Operation | None = None) -> Node:
    x = g.number(x)
    return g.sum(x) if x.features else g.mul(x, g.constant(float(length)))


def _mean(g: Graph, x: Node, length: int, _: Operation | None = None) -> Node:
    return g.mul(_sum(g, x, length), g.constant(1 / length))


def _smallest(g: Graph, x: Node, length: int, _: Operation) -> Node:
    return g.neg(g.max(g.neg(x)))


def _norm(g: Graph, x: Node, length: int, operation: Operation) -> Node:
    order = operation.arguments[1] if len(operation.arguments) > 1 else operation.options.get("ord", 2)
    if not x.features and length > 1:
        raise TraceError("the norm is one of equal features")
    return norm(g, x, 2.0 if order is None else float(order))


def _variance(g: Graph, x: Node, length: int, operation: Operation) -> Node:
    correction = operation.options.get("correction", 1)
    centred = g.sub(x, _mean(g, x, length))
    return g.mul(_sum(g, g.mul(centred, centred), length), g.constant(1 / max(length - (correction or 0), 1e-45)))


def _log_sum_exp(g: Graph, x: Node, length: int, _: Operation) -> Node:
    largest = g.apply("detach", g.max(x))
    shift = g.where(g.apply("eq", g.apply("abs", largest), g.constant(math.inf)), g.zero, largest)
    return g.add(shift, g.apply("log", _sum(g, g.apply("exp", g.sub(x, shift)), length)))


_REDUCTIONS: dict[str, tuple[Callable[..., Node], int]] = {
    "sum": (_sum, 1),
    "mean": (_mean, 1),
    "amax": (lambda g, x, length, _: g.max(x), 1),
    "amin": (_smallest, 1),
    "max": (lambda g, x, length, _: g.max(x), 1),
    "min": (_smallest, 1),
    "linalg_vector_norm": (_norm, 2),
    "norm": (_norm, 2),
    "var": (_variance, 1),
    "std": (lambda g, x, length, op: g.apply("sqrt", _variance(g, x, length, op)), 1),
    "logsumexp": (_log_sum_exp, 1),
}
"""Reductions by name, and the index of the argument that states the axes."""
