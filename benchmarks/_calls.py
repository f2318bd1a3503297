"""The measured calls: built from shapes, run by qkv, and checked against the float64 reference."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import qkv
from benchmarks._claim import MissingError, WrongError
from qkv import masks, normalizers, readouts, scores
from qkv.core.equation import attend_dense
from qkv.core.positions import Positions
from qkv.plan import Plan
from qkv.workloads import WORKLOADS

__all__ = ["CALLS", "Call", "WrongError", "apart", "make", "shapes"]

Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
SHRUNK = 16
"""Divisor of lengths in quick runs."""


def shapes(workload: str, quick: bool = False, value_width: int | None = None) -> Shapes:
    """Return the shapes of a named workload, shorter in a quick run."""
    found = WORKLOADS[workload]

    def short(shape: tuple[int, ...]) -> tuple[int, ...]:
        if not quick:
            return shape
        return (*shape[:-2], max(min(16, shape[-2]), shape[-2] // SHRUNK), shape[-1])

    value = found.value if value_width is None else (*found.value[:-1], value_width)
    return short(found.query), short(found.key), short(value)


def apart(one: Any, other: Any) -> float:
    """Return the largest difference, relative to the largest entry of the reference."""
    one, other = (torch.as_tensor(x).detach().double() for x in (one, other))
    return float((one - other).abs().max() / other.abs().max().clamp_min(1e-300))


@dataclass
class Call:
    """The inputs, parts and trained parameters of a call.

    Attributes:
        name: name of the measured score, normalizer or readout.
        query, key, value: inputs.
        options: keyword arguments of `qkv.observe`.
        trained: arrays of the parts that require a gradient.
        towards: gradient with respect to the output; None: forward only.
    """

    name: str
    query: Any
    key: Any
    value: Any
    options: dict[str, Any]
    trained: tuple[Any, ...] = ()
    towards: Any = None

    @property
    def leaves(self) -> tuple[Any, ...]:
        """The arrays that receive a gradient."""
        return (self.query, self.key, self.value, *self.trained)

    @property
    def plan(self) -> Plan:
        """Return the plan of qkv."""
        return qkv.explain(self.query, self.key, self.value, **self.options)

    def run(self, kernel: str | None = None) -> tuple[Any, ...]:
        """Run the call with qkv; return the output, and the gradients if requested."""
        options = self.options if kernel is None else self.options | {"kernel": kernel}
        if "readouts" in options:
            return self.run_with(lambda q, k, v: qkv.observe(q, k, v, **options).output)
        return self.run_with(lambda q, k, v: qkv.attend(q, k, v, **options))

    def run_with(self, forward: Callable[[Any, Any, Any], Any], leaves: Any = None) -> tuple[Any, ...]:
        """Run the call with another forward function; return the output, and the gradients if requested."""
        if self.towards is None:
            with torch.no_grad():
                return (forward(self.query, self.key, self.value),)
        output = forward(self.query, self.key, self.value)
        leaves = self.leaves if leaves is None else leaves
        return (output, *torch.autograd.grad(output, leaves, self.towards.reshape(output.shape)))

    @property
    def gradient_bytes(self) -> int:
        """Return the total bytes of all gradients."""
        return 0 if self.towards is None else sum(x.nbytes for x in self.leaves)

    def check(self, tolerance: float = 1e-4) -> dict[str, float]:
        """Return the difference from the float64 reference on some queries: of the output and of all gradients.

        Raises:
            WrongError: the difference exceeds the tolerance (ten times that for gradients).
        """
        axes = self.plan.requested.axes
        elements = self.options["score"].elements_per_logit(axes.query_width, axes.key_width)
        count = max(1, min(16, axes.q, 2**25 // (axes.batch_size * axes.k * max(elements, axes.key_width))))
        start = (axes.q - count) // 3
        rows = slice(start, start + count)
        call = self
        if self.towards is not None:
            towards = torch.zeros_like(self.towards)
            towards[..., rows, :] = self.towards[..., rows, :]
            call = dataclasses.replace(self, towards=towards)
        return self.compare(call.run(), rows, tolerance)

    def compare(self, got: tuple[Any, ...], rows: slice, tolerance: float = 1e-4) -> dict[str, float]:
        """Return the difference of a result, whose loss reads only these queries, from the reference."""
        double: dict[int, Any] = {}

        def exact(x: Any) -> Any:
            if isinstance(x, np.ndarray):
                return x.astype(np.float64)
            if not x.is_floating_point():
                return x
            if id(x) not in double:
                double[id(x)] = x.detach().double().requires_grad_(x.requires_grad)
            return double[id(x)]

        leaves = [exact(x) for x in self.leaves]
        options = {k: v for k, v in self.options.items() if k in ("score", "normalizer", "mask")}
        if options.get("mask") is not None:
            options["mask"] = options["mask"].slice(rows, slice(None))
        options["score"] = options["score"].map_arrays(exact).slice(rows, slice(None))
        options.setdefault("normalizer", normalizers.Softmax())
        output = attend_dense(
            leaves[0][..., rows, :], *leaves[1:3], positions=Positions(query_start=rows.start), **options
        ).output
        found = {"output": apart(got[0][..., rows, :], output)}
        if self.towards is not None:
            wanted = torch.autograd.grad(output, leaves, self.towards[..., rows, :].double())
            for n, (one, other) in enumerate(zip(got[1:], wanted, strict=True)):
                what = ("query", "key", "value")[n] if n < 3 else f"parameter {n - 2}"
                found[f"gradient of {what}"] = apart(one, other)
        for what, distance in found.items():
            if not distance <= (tolerance if what == "output" else 10 * tolerance):
                raise WrongError(f"{self.name}: the {what} is {distance:.2g} from the float64 oracle's.")
        return {f"oracle, {what}": distance for what, distance in found.items()}

    def check_against(self, peer: str, result: tuple[Any, ...], tolerance: float = 1e-3) -> dict[str, float]:
        """Return the difference from the result of a peer, including the gradients that the peer computes.

        Raises:
            WrongError: the difference exceeds the tolerance.
        """
        found = {}
        for n, (one, other) in enumerate(zip(self.run(), result, strict=False)):
            distance = apart(torch.as_tensor(one).reshape(other.shape), other)
            if not distance <= tolerance:
                raise WrongError(f"{self.name}: result {n} is {distance:.2g} from that of {peer}.")
            found[f"{peer}, {'output' if n == 0 else f'gradient {n}'}"] = distance
        return found


def _parts(name: str, query: Any, trains: bool) -> tuple[dict[str, Any], tuple[Any, ...]]:
    width, heads = query.shape[-1], query.shape[:-2]

    def weight(*shape: int, size: float) -> Any:
        return (torch.randn(*shape) * size).requires_grad_(trains)

    root = 1 / math.sqrt(width)
    dot = scores.ScaledDot()
    if name == "scaled_dot":
        return {"score": dot}, ()
    if name == "bilinear":
        w = weight(width, width, size=root * root)
        return {"score": scores.Bilinear(w)}, (w,)
    if name == "gaussian":
        return {"score": scores.Gaussian(math.sqrt(1 / root))}, ()
    if name == "cosine":
        t = torch.tensor(0.1, requires_grad=trains)
        return {"score": scores.Cosine(t)}, (t,)
    if name == "gated":
        w, u = weight(width, size=root), weight(width, size=root)
        return {"score": scores.Gated(w, u)}, (w, u)
    if name == "softcap":
        return {"score": scores.Softcap(dot, 20.0)}, ()
    if name == "additive":
        one, two, v = (weight(width, width, size=root), weight(width, width, size=root), weight(width, size=root))
        return {"score": scores.Additive(one, two, None, v)}, (one, two, v)
    if name == "additive_plain":
        # For peers without maps of query and key: here both are the identity.
        one, two = torch.eye(width, requires_grad=trains), torch.eye(width, requires_grad=trains)
        v = weight(width, size=root)
        return {"score": scores.Additive(one, two, None, v)}, (v, one, two)
    if name == "alibi":
        slopes = 2.0 ** -torch.arange(1.0, math.prod(heads) + 1)
        return {"score": scores.ALiBi(dot, slopes.reshape(heads))}, ()
    if name == "bias_table":
        table = weight(*heads, 32, size=1.0)
        return {"score": scores.RelativePosition(dot, table)}, (table,)
    if name == "window":
        return {"score": dot, "mask": masks.Window(256, 0)}, ()
    if name in ("sparsemax", "entmax15"):
        chosen = {"sparsemax": normalizers.Sparsemax, "entmax15": normalizers.Entmax15}[name]
        return {"score": dot, "normalizer": chosen()}, ()
    if name == "top_k":
        return {"score": dot, "normalizer": normalizers.TopK(32)}, ()
    if name == "pooled_map":
        if not hasattr(readouts, "PooledMap"):
            raise MissingError("qkv.readouts.PooledMap is not there yet.")
        return {"score": dot, "readouts": [readouts.PooledMap(min(512, query.shape[-2]))]}, ()
    if name == "regression":
        return {"score": scores.Gaussian(0.5)}, ()
    raise KeyError(name)


CALLS = (
    "scaled_dot",
    "bilinear",
    "gaussian",
    "cosine",
    "gated",
    "softcap",
    "additive",
    "additive_plain",
    "alibi",
    "bias_table",
    "window",
    "sparsemax",
    "entmax15",
    "top_k",
    "pooled_map",
    "regression",
)
"""The calls that `make` can build, by name."""


def make(name: str, shape: Shapes, *, gradient: bool = False, library: str = "torch", memory: str = "512 MiB") -> Call:
    """Return a call with normally distributed inputs of a fixed seed.

    Raises:
        MissingError: qkv has no such call.
    """
    torch.manual_seed(0)
    query, key, value = (torch.randn(x, requires_grad=gradient) for x in shape)
    options, trained = _parts(name, query, gradient)
    options["memory"] = memory
    if library == "numpy":
        options["score"] = options["score"].map_arrays(lambda x: x.detach().numpy())
        return Call(name, query.numpy(), key.numpy(), value.numpy(), options)
    towards = torch.randn(*query.shape[:-1], value.shape[-1]) if gradient else None
    return Call(name, query, key, value, options, trained, towards)
