"""Translation of PyTorch's elementwise operators to nodes of a graph.

Each function takes the graph and the operands, which are nodes; options that are no arrays stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from qkv.kernels.triton.traced.graph import Graph, Node
from qkv.kernels.triton.traced.recording import TraceError

Elementwise = Callable[..., Node]

_LOG_2 = math.log(2.0)


def _unary(name: str) -> Elementwise:
    return lambda g, x: g.apply(name, x)


def _comparison(name: str) -> Elementwise:
    return lambda g, x, y: g.apply(name, x, y)


def _truth(g: Graph, x: Node) -> Node:
    return x if x.boolean else g.apply("ne", x, g.zero)


def _logical(name: str) -> Elementwise:
    return lambda g, *operands: g.apply(name, *(_truth(g, x) for x in operands))


def _add(g: Graph, x: Node, y: Node, alpha: float = 1.0) -> Node:
    return g.add(x, g.mul(y, g.constant(alpha)))


def _sub(g: Graph, x: Node, y: Node, alpha: float = 1.0) -> Node:
    return g.sub(x, g.mul(y, g.constant(alpha)))


def _div(g: Graph, x: Node, y: Node, rounding_mode: str | None = None) -> Node:
    if rounding_mode is not None:
        raise TraceError(f"the operator div rounds its result ({rounding_mode})")
    return g.div(x, y)


def _power(g: Graph, x: Node, y: Node) -> Node:
    return g.power(x, y.value) if y.operator == "constant" else g.apply("power", x, y)


def clamped(g: Graph, x: Node, low: Node | None = None, high: Node | None = None) -> Node:
    """Translate `clamp`: x, or the bound that it is beyond; NaN stays."""
    if low is not None:
        x = g.where(g.apply("lt", x, low), low, x)
    return x if high is None else g.where(g.apply("gt", x, high), high, x)


def _relu(g: Graph, x: Node) -> Node:
    return g.where(g.apply("le", x, g.zero), g.zero, x)


def _leaky(g: Graph, x: Node, slope: Node | None = None) -> Node:
    slope = g.constant(0.01) if slope is None else slope
    return g.where(g.apply("gt", x, g.zero), x, g.mul(x, slope))


def _elu(g: Graph, x: Node, alpha: Node | None = None, scale: Node | None = None, inner: Node | None = None) -> Node:
    alpha, scale, inner = (g.one if y is None else y for y in (alpha, scale, inner))
    below = g.mul(g.mul(alpha, scale), g.apply("expm1", g.mul(x, inner)))
    return g.where(g.apply("gt", x, g.zero), g.mul(x, scale), below)


def _softplus(g: Graph, x: Node, beta: Node | None = None, threshold: Node | None = None) -> Node:
    # In single precision the function equals x beyond the usual threshold of 20.
    if threshold is not None and threshold.value < 20:
        raise TraceError(f"the operator softplus has a threshold below 20, {threshold.value:g}")
    beta = g.one if beta is None else beta
    return g.div(g.apply("softplus", g.mul(x, beta)), beta)


def _gelu(g: Graph, x: Node, approximate: str = "none") -> Node:
    if approximate == "tanh":
        inner = g.mul(g.constant(math.sqrt(2 / math.pi)), g.add(x, g.mul(g.constant(0.044715), g.power(x, 3))))
        bell = g.apply("tanh", inner)
    else:
        bell = g.apply("erf", g.mul(x, g.constant(math.sqrt(0.5))))
    return g.mul(g.mul(g.constant(0.5), x), g.add(g.one, bell))


def _huber(g: Graph, x: Node, y: Node, reduction: Node | None = None, delta: Node | None = None) -> Node:
    delta = g.one if delta is None else delta
    difference = g.apply("abs", g.sub(x, y))
    half = g.constant(0.5)
    far = g.mul(delta, g.sub(difference, g.mul(half, delta)))
    return g.where(g.apply("le", difference, delta), g.mul(half, g.mul(difference, difference)), far)


def _smooth_l1(g: Graph, x: Node, y: Node, reduction: Node | None = None, beta: Node | None = None) -> Node:
    beta = g.one if beta is None else beta
    difference = g.apply("abs", g.sub(x, y))
    half = g.constant(0.5)
    near = g.div(g.mul(half, g.mul(difference, difference)), beta)
    return g.where(g.apply("lt", difference, beta), near, g.sub(difference, g.mul(half, beta)))


def _log_add_exp(g: Graph, x: Node, y: Node) -> Node:
    return g.add(g.apply("maximum", x, y), g.apply("log1p", g.apply("exp", g.neg(g.apply("abs", g.sub(x, y))))))


def _sinh(g: Graph, x: Node) -> Node:
    e = g.apply("expm1", x)
    return g.mul(g.constant(0.5), g.add(e, g.div(e, g.add(e, g.one))))


def _cosh(g: Graph, x: Node) -> Node:
    e = g.apply("exp", x)
    return g.mul(g.constant(0.5), g.add(e, g.div(g.one, e)))


def _filled(g: Graph, x: Node, mask: Node, value: Node) -> Node:
    return g.where(_truth(g, mask), value, x)


def _selected(g: Graph, condition: Node, x: Node, y: Node) -> Node:
    return g.where(_truth(g, condition), x, y)


def _identity(g: Graph, x: Node, *_: object, **__: object) -> Node:
    return x


def _without_gradient(g: Graph, x: Node) -> Node:
    return g.apply("detach", x)


ELEMENTWISE: dict[str, Elementwise] = {
    **{name: _unary(name) for name in ("exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "sin", "cos", "tanh")},
    **{name: _unary(name) for name in ("sigmoid", "erf", "floor", "ceil", "abs", "exp2")},
    "sign": _unary("sign"),
    "sgn": _unary("sign"),
    "log2": lambda g, x: g.mul(g.constant(1 / _LOG_2), g.apply("log", x)),
    "log10": lambda g, x: g.mul(g.constant(1 / math.log(10.0)), g.apply("log", x)),
    "tan": lambda g, x: g.div(g.apply("sin", x), g.apply("cos", x)),
    "sinh": _sinh,
    "cosh": _cosh,
    "neg": lambda g, x: g.neg(g.number(x)),
    "reciprocal": lambda g, x: g.div(g.one, x),
    "square": lambda g, x: g.power(x, 2),
    "relu": _relu,
    "leaky_relu": _leaky,
    "elu": _elu,
    "softplus": _softplus,
    "log_sigmoid_forward": lambda g, x: g.neg(g.apply("softplus", g.neg(x))),
    "silu": lambda g, x: g.mul(x, g.apply("sigmoid", x)),
    "gelu": _gelu,
    "add": _add,
    "sub": _sub,
    "rsub": lambda g, x, y, alpha=1.0: _sub(g, y, x, alpha),
    "mul": lambda g, x, y: g.mul(g.number(x), g.number(y)),
    "div": _div,
    "maximum": lambda g, x, y: g.apply("maximum", x, y),
    "minimum": lambda g, x, y: g.neg(g.apply("maximum", g.neg(x), g.neg(y))),
    "pow": _power,
    "logaddexp": _log_add_exp,
    "huber_loss": _huber,
    "smooth_l1_loss": _smooth_l1,
    "mse_loss": lambda g, x, y, reduction=None: g.power(g.sub(x, y), 2),
    **{name: _comparison(name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    "logical_and": _logical("and"),
    "logical_or": _logical("or"),
    "logical_not": _logical("not"),
    "bitwise_and": _logical("and"),
    "bitwise_or": _logical("or"),
    "bitwise_not": _logical("not"),
    "where": _selected,
    "masked_fill": _filled,
    "clamp": clamped,
    "clamp_min": clamped,
    "clamp_max": lambda g, x, high: clamped(g, x, None, high),
    "hardtanh": lambda g, x, low=None, high=None: clamped(
        g, x, g.constant(-1.0) if low is None else low, g.one if high is None else high
    ),
    "clone": _identity,
    "contiguous": _identity,
    "alias": _identity,
    "_to_copy": _identity,
    "expand": _identity,
    "detach": _without_gradient,
}
"""Elementwise operators by name."""


def norm(g: Graph, x: Node, order: float) -> Node:
    """Return the norm of a node over its features, whose gradient is 0 where the norm is 0.

    Raises:
        TraceError: the order is not positive.
    """
    size = g.apply("abs", x)
    if order == math.inf:
        return g.max(size)
    if order == 1:
        return g.sum(size)
    if order <= 0:
        raise TraceError(f"the operator linalg_vector_norm has the order {order:g}")
    if order == 2:
        total = g.sum(g.mul(x, x))
    else:
        none = g.apply("eq", size, g.zero)
        powers = g.power(g.where(none, g.one, size) if order < 1 else size, order)
        total = g.sum(g.where(none, g.zero, powers) if order < 1 else powers)
    empty = g.apply("eq", total, g.zero)
    return g.where(empty, g.zero, g.power(g.where(empty, g.one, total), 1 / order))
