"""Scores drawn at random from a grammar of PyTorch's operators, with which tests compare generated programs."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional

__all__ = ["Drawn", "draw_score"]

WIDTH = 4
"""Width of queries and keys."""

Expression = Callable[..., torch.Tensor]
"""Function of query, key and a list of parameters."""


@dataclass
class Drawn:
    """Function of query, key and parameters, the shapes of the parameters, and a text of the function."""

    function: Callable[..., torch.Tensor]
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    text: str = ""


@dataclass
class _Grammar:
    rng: np.random.Generator
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def choose(self, *rules: str) -> str:
        rule = rules[int(self.rng.integers(len(rules)))]
        self.text.append(rule)
        return rule

    def parameter(self, *shape: int) -> int:
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def features(self, depth: int) -> Expression:
        """Return an expression with a number for each pair and feature."""
        if depth == 0:
            rule = self.choose("difference", "sum of features", "product of features", "function of a side")
            return {
                "difference": lambda q, k, p: q[..., :, None, :] - k[..., None, :, :],
                "sum of features": lambda q, k, p: q.unsqueeze(-2) + 0.5 * k.unsqueeze(-3),
                "product of features": lambda q, k, p: q[..., :, None, :] * k[..., None, :, :],
                "function of a side": lambda q, k, p: q.sin()[..., :, None, :] - functional.silu(k)[..., None, :, :],
            }[rule]
        x = self.features(depth - 1)
        rule = self.choose("unary", "unary", "weight", "maximum", "where", "clamp", "power", "centre", "column")
        if rule == "unary":
            unary = _UNARY[self.choose(*_UNARY)]
            return lambda q, k, p: unary(x(q, k, p))
        if rule == "weight":
            n = self.parameter(WIDTH)
            return lambda q, k, p: x(q, k, p) * p[n]
        if rule in ("maximum", "where"):
            y = self.features(depth - 1)
            if rule == "maximum":
                return lambda q, k, p: torch.maximum(x(q, k, p), y(q, k, p))
            return lambda q, k, p: torch.where(x(q, k, p) > 0.1, y(q, k, p), -0.5)
        if rule == "power":
            exponent = float(self.choose("1.5", "2", "3", "0.7"))
            return lambda q, k, p: (x(q, k, p).abs() + 0.1) ** exponent
        if rule == "centre":
            return lambda q, k, p: x(q, k, p) - x(q, k, p).mean(-1, keepdim=True)
        if rule == "column":
            return lambda q, k, p: x(q, k, p) - x(q, k, p)[..., 1].tanh().unsqueeze(-1)
        return lambda q, k, p: x(q, k, p).clamp(-0.8, 0.9)

    def pair(self, depth: int) -> Expression:
        """Return an expression with a number for each pair."""
        if depth == 0:
            rule = self.choose("reduction", "reduction", "weighted sum", "product", "scaled by head", "distance")
            if rule == "reduction":
                x, reduction = self.features(int(self.rng.integers(0, 3))), _REDUCTIONS[self.choose(*_REDUCTIONS)]
                return lambda q, k, p: reduction(x(q, k, p))
            if rule == "weighted sum":
                x, n = self.features(int(self.rng.integers(0, 2))), self.parameter(WIDTH)
                return lambda q, k, p: x(q, k, p) @ p[n]
            if rule == "product":
                n = self.parameter(WIDTH, WIDTH)
                return lambda q, k, p: (q @ p[n]) @ k.mT / 3
            if rule == "scaled by head":
                n = self.parameter(2)
                return lambda q, k, p: (q @ k.mT) * p[n][:, None, None]
            order = float(self.choose("1", "2", "3"))
            return lambda q, k, p: -torch.cdist(q, k, p=order)
        x = self.pair(depth - 1)
        rule = self.choose("unary", "unary", "add", "multiply", "scale", "minimum")
        if rule == "unary":
            unary = _UNARY[self.choose(*_UNARY)]
            return lambda q, k, p: unary(x(q, k, p))
        if rule == "scale":
            n = self.parameter()
            return lambda q, k, p: x(q, k, p) * p[n] + 0.25
        y = self.pair(depth - 1)
        if rule == "add":
            return lambda q, k, p: x(q, k, p) - 0.7 * y(q, k, p)
        if rule == "minimum":
            return lambda q, k, p: torch.minimum(x(q, k, p), y(q, k, p))
        return lambda q, k, p: x(q, k, p) * y(q, k, p).tanh()


_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs,
    "neg": torch.neg,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "bell": lambda x: torch.exp(-(x**2)),
    "expm1": lambda x: torch.expm1(-x.abs()),
    "log1p": lambda x: torch.log1p(x.abs()),
    "root": lambda x: (x * x + 1).sqrt(),
    "rsqrt": lambda x: (x * x + 0.5).rsqrt(),
    "reciprocal": lambda x: 1 / (1 + x.abs()),
    "softplus": functional.softplus,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "elu": functional.elu,
    "leaky_relu": functional.leaky_relu,
    "relu": torch.relu,
    "logsigmoid": functional.logsigmoid,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
}
_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: 2 * x.mean(dim=-1),
    "amax": lambda x: x.amax(-1),
    "min": lambda x: x.min(-1).values,
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "norm 1": lambda x: x.norm(p=1, dim=-1),
    "norm inf": lambda x: torch.linalg.vector_norm(x, ord=float("inf"), dim=-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "var": lambda x: x.var(-1),
    "column": lambda x: x[..., 2],
}


def draw_score(seed: int) -> Drawn:
    """Return a score with operators of features and of pairs."""
    grammar = _Grammar(np.random.default_rng(seed))
    expression = grammar.pair(int(grammar.rng.integers(1, 4)))

    def function(query: torch.Tensor, key: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return expression(query, key, parameters)

    return Drawn(function, grammar.shapes, ", ".join(grammar.text))
