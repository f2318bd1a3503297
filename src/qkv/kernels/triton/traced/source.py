"""Source text of the programs for a traced score: forward, and backward for queries and for keys.

The programs are those of `additive_programs.py` with the logits and their derivatives of the score in place of the
additive ones. Arrays with one number for each feature are (element, feature, row), factors of inner products are
(element, row, feature), and all are contiguous.
"""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from qkv.kernels.triton.program_kernel import power_of_two
from qkv.kernels.triton.traced.graph import Graph, Node, input_gradients
from qkv.kernels.triton.traced.tile_code import Counts, TileCode
from qkv.kernels.triton.traced.translation import MOVES, Input, Translation

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
    """Return a gradient that is 0 for excluded pairs."""
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
        condition = node.arguments[:1] if node.operator == "where" else ()
        parts = [_masked(graph, x, is_finite) for x in node.arguments[len(condition) :]]
        found = [x for x in parts if x is not None]
        return graph.apply(node.operator, *condition, *found) if len(found) == len(parts) else None
    return None


def _bounded(node: Node, is_finite: Callable[[int], bool]) -> bool:
    """Return whether a node is finite for excluded pairs."""
    if node.operator == "input":
        return is_finite(int(node.value))
    if node.operator == "constant" or node.operator in _CONDITIONS:
        return True
    return node.operator in _FINITE and all(_bounded(x, is_finite) for x in node.arguments)


@dataclass(frozen=True)
class Source:
    """Source text of the programs of a score.

    Attributes:
        text: the text of the module.
        forward, backward: operations for each pair of the forward program, and of both backward programs.
        differentiated: for each input, whether the programs compute its gradient.
    """

    text: str
    forward: Counts
    backward: Counts
    differentiated: tuple[bool, ...]


_HEAD = '''"""Programs that qkv generated from the operators of a score."""

import triton
import triton.language as tl

from qkv.kernels.triton.device_functions import (
    add_nonfinite_values, allowed_pairs, finish_rows, first_query, last_key, load_block, softmax_gradients,
    store_block, update_rows,
)
from qkv.kernels.triton.traced.tile_programs import (
    expm1, finite, log1p, maximum, power, row_products, sigmoid, sign, softplus, tanh,
)


'''

_SIZES = """    DV: tl.constexpr, DVP: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BQ: tl.constexpr, BK: tl.constexpr,
):
    element = tl.program_id(1).to(tl.int64)
"""

_QUERIES = """    rows = tl.program_id(0) * BQ + tl.arange(0, BQ)
    stop = last_key(k, offset, CAUSAL, BQ)
"""

_KEYS = """    cols = tl.program_id(0) * BK + tl.arange(0, BK)
    start = first_query(offset, CAUSAL, BQ, BK)
"""

_ROW = "tl.load({0} + element * q + rows, mask=rows < q, other=0.0)"

_LOGITS = 'tl.where(allowed, {0} + own[:, None] + bias[None, :], -float("inf"))'

_ALLOWED = "allowed = allowed_pairs(rows, cols, bias, q, k, offset, CAUSAL)"
_BIAS = 'bias = tl.load(key_bias + cols, mask=cols < k, other=-float("inf"))'

_SLOPES = (
    "weights, slopes = softmax_gradients({0} + own[:, None] + bias[None, :], known, dot, given, finite(values), "
    "allowed, PRECISION)"
)


def program_source(translation: Translation) -> Source:
    """Return the source text of the programs of a translated score."""
    nodes, products = input_gradients(translation.graph, translation.logit)
    gradients = [(int(node.value), gradient) for node, gradient in nodes.items()]
    found = {index for index, _ in gradients} | {int(x.value) for node in products for x in node.arguments}
    writer = _Writer(translation, gradients, products)
    forward, backward = Counts(), Counts()
    text = _HEAD + "\n\n\n".join(
        (writer.forward(forward), writer.backward("q", backward), writer.backward("k", backward))
    )
    inputs = range(len(translation.inputs))
    return Source(text + "\n", forward, backward, tuple(n in found for n in inputs))


_MODULES: dict[str, dict[str, Any]] = {}
"""Names of the programs of each source text."""
_LOCK = Lock()


def load_programs(source: Source) -> dict[str, Any]:
    """Return the programs of a source text by name: attend, differentiate_queries and differentiate_keys.

    Triton reads the text of a function from its file. The text has none, so it is put into the cache of lines from
    which Python's `inspect` reads, as interactive shells do; tracebacks show it, too.
    """
    name = f"<qkv programs {hashlib.sha256(source.text.encode()).hexdigest()[:16]}>"
    with _LOCK:
        if name not in _MODULES:
            linecache.cache[name] = len(source.text), None, source.text.splitlines(keepends=True), name
            found: dict[str, Any] = {"__name__": "qkv.kernels.triton.traced.generated"}
            exec(compile(source.text, name, "exec"), found)  # text that this package generated
            _MODULES[name] = found
        return _MODULES[name]


@dataclass(frozen=True)
class _Writer:
    """Writer of the text of the programs of a score."""

    translation: Translation
    gradients: Sequence[tuple[int, Node]]
    products: dict[Node, Node]

    @property
    def inputs(self) -> tuple[Input, ...]:
        return self.translation.inputs

    def forward(self, counts: Counts) -> str:
        """Return the text of the forward program."""
        own, other = self._loads("q", "    "), self._loads("k", "        ", own=False)
        lines = [
            "@triton.jit",
            "def attend(",
            f"    {self._pointers()}value, bad_value, any_bad, row_bias, key_bias,",
            "    output, log_sum_exp, q, k, offset,",
            *(_SIZES + _QUERIES).rstrip("\n").split("\n"),
            *self._bases(),
            f"    own = {_ROW.format('row_bias')}",
            *own,
            '    largest = tl.full((BQ,), -float("inf"), tl.float32)',
            "    total = tl.zeros((BQ,), tl.float32)",
            "    result = tl.zeros((BQ, DVP), tl.float32)",
            *self._logits(counts, other, "    "),
            "        values = load_block(value, cols, k, DV, DVP)",
            "        largest, total, result = update_rows(logits, largest, total, result, finite(values), PRECISION)",
            "    result, known = finish_rows(largest, total, result)",
            "    if tl.load(any_bad + element) != 0:",
            *self._logits(Counts(), other, "        "),
            '            read = allowed & (logits != -float("inf"))',
            "            result = add_nonfinite_values(result, read, value, bad_value, first, k, DV, DVP, BK)",
            "    store_block(output + element * q * DV, rows, q, result, DV, DVP)",
            "    tl.store(log_sum_exp + element * q + rows, known, mask=rows < q)",
        ]
        return "\n".join(lines)

    def backward(self, side: str, counts: Counts) -> str:
        """Return the text of the backward program for queries ("q"), which also differentiates parameters, or keys."""
        mine = [n for n in self._targets() if self.inputs[n].rows == side or (side == "q" and not self.inputs[n].rows)]
        name, other = ("differentiate_queries", "k") if side == "q" else ("differentiate_keys", "q")
        targets = [self.inputs[n] for n in mine]
        outputs = "".join([*(f"o{n}, " for n in mine), *(["value_gradient, "] if side == "k" else [])])
        outer = [f"    own = {_ROW.format('row_bias')}", f"    known = {_ROW.format('log_sum_exp')}"]
        outer += ["    given = load_block(gradient, rows, q, DV, DVP)"]
        if side == "q":
            outer += ["    dot = row_products(given, load_block(output, rows, q, DV, DVP), BQ, PRECISION)"]
            outer += ["    tl.store(dots + element * q + rows, dot, mask=rows < q)"]
        else:
            outer += [f"    dot = {_ROW.format('dots')}"]
        inner = [f"    {_BIAS}", "    values = load_block(value, cols, k, DV, DVP)"]
        first, second = (outer, inner) if side == "q" else (inner, outer)
        loop = "    for first in range(0, stop, BK):" if side == "q" else "    for first in range(start, q, BQ):"
        block = "cols = first + tl.arange(0, BK)" if side == "q" else "rows = first + tl.arange(0, BQ)"
        lines = [
            "@triton.jit",
            f"def {name}(",
            f"    {self._pointers()}value, row_bias, key_bias, gradient, output, log_sum_exp, dots,",
            f"    {outputs}q, k, offset,",
            *(_SIZES + (_QUERIES if side == "q" else _KEYS)).rstrip("\n").split("\n"),
            *self._bases(gradient=True),
            *self._units(),
            *first,
            *self._loads(side, "    "),
            *(f"    g{n} = {_zeros(x)}" for n, x in zip(mine, targets, strict=True)),
            *(["    value_sums = tl.zeros((BK, DVP), tl.float32)"] if side == "k" else []),
            loop,
            f"        {block}",
            *(f"    {line}" for line in second),
            f"        {_ALLOWED}",
            *self._loads(other, "        ", own=False),
            *self._tile_gradients(side, mine, counts),
            *(f"    {line}" for n, x in zip(mine, targets, strict=True) for line in _stores(n, x)),
        ]
        if side == "k":
            lines.append("    store_block(value_gradient + element * k * DV, cols, k, value_sums, DV, DVP)")
        return "\n".join(lines)

    def _targets(self) -> list[int]:
        """Return the indices of the inputs that have a gradient."""
        found = {index for index, _ in self.gradients}
        found |= {int(x.value) for node in self.products for x in node.arguments}
        return sorted(found)

    def _code(self, side: str, indent: str) -> TileCode:
        """Return the code of a tile, in which arrays of one number for each row of a side are loaded already."""
        code = TileCode(self._load, self._product, indent)
        for n, x in enumerate(self.inputs):
            if not x.features and x.rows in (side, ""):
                code.names[self.translation.graph.input(n, 0, x.boolean), ""] = f"r{n}"
        return code

    def _logits(self, counts: Counts, loads: Sequence[str], indent: str) -> list[str]:
        """Return the lines that pass over the keys and compute the logits of each tile."""
        code = self._code("q", f"{indent}    ")
        (logit,) = code.compute(self.translation.logit)
        _add(counts, code.counts)
        shift = " " * (len(indent) - 4)
        return [
            f"{indent}for first in range(0, stop, BK):",
            f"{indent}    cols = first + tl.arange(0, BK)",
            f"{indent}    {_BIAS}",
            f"{indent}    {_ALLOWED}",
            *(shift + line for line in loads),
            *code.lines,
            f"{indent}    logits = {_LOGITS.format(logit)}",
        ]

    def _tile_gradients(self, side: str, mine: Sequence[int], counts: Counts) -> list[str]:
        """Return the lines that add the gradients of a tile."""
        code = self._code(side, "        ")
        (logit,) = code.compute(self.translation.logit)
        code.lines.append(f"        {_SLOPES.format(logit)}")
        if side == "k":
            code.lines.append("        value_sums += tl.dot(tl.trans(weights), given, input_precision=PRECISION)")
        code.names[self.translation.graph.slope(), ""] = "slopes"
        axis = 1 if side == "q" else 0
        graph = self.translation.graph
        own = [(n, masked_gradient(graph, node, self._is_finite)) for n, node in self.gradients if n in mine]
        groups = sorted({self.inputs[n].features for n, _ in own})
        for features in groups:
            group = [(n, node) for n, node in own if self.inputs[n].features == features]
            if features:
                code.accumulate(features, [(node, _adder(n, self.inputs[n], axis)) for n, node in group])
                continue
            for (n, _), name in zip(group, code.compute(*(node for _, node in group)), strict=True):
                code.lines += [f"        {line}" for line in _adder(n, self.inputs[n], axis)(name, "")]
        for node, gradient in self.products.items():
            (slopes,) = code.compute(graph.apply("masked", gradient))
            left, right = (int(x.value) for x in node.arguments)
            slopes, factor, n = (slopes, right, left) if side == "q" else (f"tl.trans({slopes})", left, right)
            code.lines.append(f"        g{n} += tl.dot({slopes}, d{factor}, input_precision=PRECISION)")
            code.counts.matrix += node.value
        _add(counts, code.counts)
        return code.lines

    def _is_finite(self, index: int) -> bool:
        """Return whether an input holds elements of query or key, which are finite, at most moved."""
        x = self.inputs[index].array
        while x.source is not None and x.source.name in MOVES:
            x = x.source.arguments[0]
        return x.source is None and x.constant is None and x.index < 2 and self.inputs[index].rows != ""

    # -- arrays -------------------------------------------------------------------------------------------

    def _pointers(self) -> str:
        return "".join(f"x{n}, " for n in range(len(self.inputs)))

    def _bases(self, gradient: bool = False) -> list[str]:
        """Return the lines that move pointers to the batch element of the program."""
        lines = []
        for n, x in enumerate(self.inputs):
            length = f" * {x.rows}" if x.rows else ""
            if x.batched:
                lines.append(f"    x{n} += element * {max(1, x.features)}{length}")
        lines.append("    value += element * k * DV")
        lines.append("    key_bias += element * k")
        if gradient:
            return [*lines, "    gradient += element * q * DV", "    output += element * q * DV"]
        return [*lines, "    bad_value += element * k"]

    def _units(self) -> list[str]:
        counts = sorted({x.features for x in self.inputs if x.features})
        products = sorted({x.features for x in self.inputs if x.product})
        lines = [f"    u{n} = tl.arange(0, {_padded(n)})" for n in counts]
        return lines + [f"    w{n} = tl.arange(0, {power_of_two(n)})" for n in products]

    def _loads(self, side: str, indent: str, own: bool = True) -> list[str]:
        """Return the lines that load arrays with one number for each row of a side, and the factors of products.

        Args:
            side: "q" or "k".
            indent: the spaces before each line.
            own: whether the block of that side is that of the program, which then also loads parameters.
        """
        lines = []
        for n, x in enumerate(self.inputs):
            if x.product and x.rows == side:
                index, width = ("rows", "q") if side == "q" else ("cols", "k"), power_of_two(x.features)
                lines.append(f"d{n} = load_block(x{n}, {index[0]}, {index[1]}, {x.features}, {width})")
            elif own and not x.features and x.rows in (side, ""):
                lines.append(f"r{n} = {self._load(self.translation.graph.input(n, 0, x.boolean), '')}")
        return [indent + line for line in lines]

    def _load(self, node: Node, feature: str) -> str:
        """Return the expression that loads an input."""
        n = int(node.value)
        x = self.inputs[n]
        place = f"x{n} + {feature}" if x.features else f"x{n}"
        if x.rows:
            index, view = ("rows", "[:, None]") if x.rows == "q" else ("cols", "[None, :]")
            place = f"x{n} + {feature} * {x.rows} + {index}" if x.features else f"x{n} + {index}"
            text = f"tl.load({place}, mask={index} < {x.rows}, other=0.0){view}"
        else:
            text = f"tl.load({place})"
        return f"({text} != 0.0)" if x.boolean else text

    def _product(self, node: Node) -> str:
        left, right = (int(x.value) for x in node.arguments)
        return f"tl.dot(d{left}, tl.trans(d{right}), input_precision=PRECISION)"


def _add(counts: Counts, more: Counts) -> None:
    counts.vector += more.vector
    counts.special += more.special
    counts.matrix += more.matrix


def _padded(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _zeros(x: Input) -> str:
    """Return the expression of the sums of the gradient of an input."""
    block = {"q": ["BQ"], "k": ["BK"], "": []}[x.rows]
    width = [str(power_of_two(x.features) if x.product else _padded(x.features))] if x.features else []
    return f"tl.zeros(({', '.join(block + width) or '1'},), tl.float32)"


def _adder(n: int, x: Input, axis: int):  # type: ignore[no-untyped-def]
    """Return a function that returns the lines that add the gradient of an input in a tile to its sums."""

    def lines(name: str, feature: str) -> list[str]:
        total = f"tl.sum({name}, {axis})" if x.rows else f"tl.sum(tl.sum({name}, 1), 0)"
        if not x.features:
            return [f"g{n} += {total}"]
        if x.rows:
            return [f"g{n} += tl.where((u{x.features} == {feature})[None, :], {total}[:, None], 0.0)"]
        return [f"g{n} += tl.where(u{x.features} == {feature}, {total}, 0.0)"]

    return lines


def _stores(n: int, x: Input) -> list[str]:
    """Return the lines that store the gradient of an input."""
    width, units = x.features, f"{'w' if x.product else 'u'}{x.features}"
    if not x.rows:
        place = f"(element * tl.num_programs(0) + tl.program_id(0)) * {max(1, width)}"
        if not width:
            return [f"tl.store(o{n} + {place} + tl.arange(0, 1), g{n})"]
        return [f"tl.store(o{n} + {place} + {units}, g{n}, mask={units} < {width})"]
    index = "rows" if x.rows == "q" else "cols"
    if not width:
        return [f"tl.store(o{n} + element * {x.rows} + {index}, g{n}, mask={index} < {x.rows})"]
    where = f"{units}[None, :] * {x.rows} + {index}[:, None]"
    if x.product:
        where = f"{index}[:, None] * {width} + {units}[None, :]"
    inside = f"({index} < {x.rows})[:, None] & ({units} < {width})[None, :]"
    return [f"tl.store(o{n} + element * {width} * {x.rows} + {where}, g{n}, mask={inside})"]
