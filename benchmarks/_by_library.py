"""The same attention by hand in NumPy, PyTorch, JAX and TensorFlow: eager, compiled, and by a fused operator.

One set of formulas runs on all four through a short table of functions that the libraries name differently.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["FAMILIES", "LIBRARIES", "MASKS", "NORMALIZERS", "READOUTS", "Drawn", "Library", "by_hand", "ours"]

FAMILIES = ("scaled dot", "dot", "Gaussian", "cosine", "bilinear", "softcap", "ALiBi", "bias", "gated", "additive")
NORMALIZERS = ("softmax", "sigmoid", "top-k", "sparsemax")
MASKS = ("none", "causal", "lengths", "pairs", "window")
READOUTS = ("largest weights", "entropy", "column sums", "log-sum-exp", "all weights")
COUNT, WINDOW, CAP, SLOPE = 8, 16, 5.0, 0.1
"""Weights of top-k and of the readout, tokens before and after in a window, soft cap, and slope of ALiBi."""


@dataclass(frozen=True)
class Drawn:
    """A call drawn at random: its parts by name, and its arrays in NumPy.

    Attributes:
        family: one of `FAMILIES`.
        normalizer: one of `NORMALIZERS`.
        mask: one of `MASKS`.
        readout: one of `READOUTS`, or "" for none.
        arrays: query, key, value and the parameters of the score.
        allowed: the mask as booleans of queries and keys, or of batch elements, 1, 1 and keys; None: no mask.
        lengths: valid keys per batch element of the mask "lengths".
    """

    family: str
    normalizer: str
    mask: str
    readout: str
    arrays: tuple[np.ndarray, ...]
    allowed: np.ndarray | None
    lengths: np.ndarray | None

    @property
    def fusible(self) -> bool:
        """Whether the fused operators of PyTorch and JAX compute the call."""
        return self.family in ("scaled dot", "dot", "bias") and self.normalizer == "softmax" and not self.readout


class Library:
    """The functions of an array library that formulas need; the names of NumPy, where it has them."""

    name = "numpy"
    compiled = ""

    def __init__(self) -> None:
        self.xp: Any = np

    def array(self, x: np.ndarray) -> Any:
        """Return an array of the library."""
        return x

    def constant(self, x: Any) -> Any:
        """Return an array without its gradient."""
        return x

    def swap(self, x: Any) -> Any:
        """Exchange the last two axes."""
        return x.swapaxes(-1, -2)

    def times(self, x: Any, matrix: Any) -> Any:
        """Multiply each vector of an array by a matrix."""
        return x @ matrix

    def sum(self, x: Any, axis: int, keep: bool = False) -> Any:
        """Sum along an axis."""
        return x.sum(axis, keepdims=keep)

    def softmax(self, z: Any) -> Any:
        """Return the softmax of each row."""
        e = np.exp(z - z.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def sigmoid(self, z: Any) -> Any:
        """Return 1 / (1 + exp(−z))."""
        return 1 / (1 + np.exp(-z))

    def logsumexp(self, z: Any) -> Any:
        """Return log Σ exp(z) of each row."""
        top = z.max(-1, keepdims=True)
        return (np.log(np.exp(z - top).sum(-1, keepdims=True)) + top)[..., 0]

    def largest(self, z: Any, count: int) -> Any:
        """Return the largest entries of each row in descending order."""
        return -np.sort(np.partition(-z, count - 1, -1)[..., :count], -1)

    def largest_weights(self, w: Any, count: int) -> Any:
        """Return `largest` by operations that also find the keys, as qkv does; other libraries find both at once."""
        if self.name != "numpy":
            return self.largest(w, count)
        keys = np.argpartition(-w, count - 1, -1)[..., :count]
        some = np.take_along_axis(w, keys, -1)
        return np.take_along_axis(some, np.argsort(-some, -1), -1)

    def falling(self, z: Any) -> Any:
        """Sort each row in descending order."""
        return -np.sort(-z, -1)

    def where(self, condition: Any, x: Any, other: float) -> Any:
        """Choose by entry."""
        return np.where(condition, x, x.dtype.type(other))

    def x_log_x(self, w: Any) -> Any:
        """Return w log w, and 0 of 0."""
        return w * np.log(np.where(w > 0, w, w.dtype.type(1)))

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return the compiled function; None: the library has no compiler."""
        return None

    def gradient(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for the results and the gradients of their summed squares with respect to all arrays."""
        raise NotImplementedError

    def fused(self, call: Drawn) -> Callable[..., Any] | None:
        """Return the fused operator for the call."""
        return None

    @contextmanager
    def measured(self, gradient: bool) -> Iterator[None]:
        """Set what holds while calls are timed."""
        yield

    def done(self, result: Any) -> Any:
        """Wait until the result is computed."""
        return result


class Torch(Library):
    """PyTorch, torch.compile and `scaled_dot_product_attention`."""

    name, compiled = "torch", "torch.compile"

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.xp = torch

    def array(self, x: np.ndarray) -> Any:
        return self.xp.from_numpy(np.ascontiguousarray(x))

    def constant(self, x: Any) -> Any:
        return x.detach()

    def sum(self, x: Any, axis: int, keep: bool = False) -> Any:
        return x.sum(axis, keepdim=keep)

    def softmax(self, z: Any) -> Any:
        return z.softmax(-1)

    def sigmoid(self, z: Any) -> Any:
        return z.sigmoid()

    def logsumexp(self, z: Any) -> Any:
        return z.logsumexp(-1)

    def largest(self, z: Any, count: int) -> Any:
        return z.topk(count).values

    def falling(self, z: Any) -> Any:
        return z.sort(dim=-1, descending=True).values

    def where(self, condition: Any, x: Any, other: float) -> Any:
        return x.masked_fill(~condition, other)

    def x_log_x(self, w: Any) -> Any:
        return w * w.where(w > 0, 1.0).log()  # the gradient of xlogy(w, w) is NaN at 0

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.xp.compiler.reset()
        return self.xp.compile(function, dynamic=False)  # type: ignore[no-any-return]

    def gradient(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arrays: Any) -> Any:
            arrays = tuple(x.detach().requires_grad_() for x in arrays)
            results = function(*arrays)
            loss = sum(x.square().sum() for x in results)
            return (*results, *self.xp.autograd.grad(loss, arrays))

        return run

    def fused(self, call: Drawn) -> Callable[..., Any]:
        attention = self.xp.nn.functional.scaled_dot_product_attention
        allowed = None if call.allowed is None or call.mask == "causal" else self.array(call.allowed)
        causal, scale = call.mask == "causal", 1.0 if call.family == "dot" else None

        def run(q: Any, k: Any, v: Any, *bias: Any) -> Any:
            mask, is_causal = allowed, causal
            if bias:
                (mask,) = bias
                if call.allowed is not None:
                    mask, is_causal = mask.masked_fill(~self.array(call.allowed), -math.inf), False
            return (attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale),)

        return run

    @contextmanager
    def measured(self, gradient: bool) -> Iterator[None]:
        with self.xp.set_grad_enabled(gradient):
            yield


class JAX(Library):
    """JAX, `jax.jit` and `jax.nn.dot_product_attention`."""

    name, compiled = "jax", "jax.jit"

    def __init__(self) -> None:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
        import jax

        self.jax, self.xp = jax, jax.numpy

    def array(self, x: np.ndarray) -> Any:
        return self.xp.asarray(x)

    def softmax(self, z: Any) -> Any:
        return self.jax.nn.softmax(z, -1)

    def sigmoid(self, z: Any) -> Any:
        return self.jax.nn.sigmoid(z)

    def logsumexp(self, z: Any) -> Any:
        return self.jax.nn.logsumexp(z, -1)

    def largest(self, z: Any, count: int) -> Any:
        return self.jax.lax.top_k(z, count)[0]

    def falling(self, z: Any) -> Any:
        return self.xp.sort(z, -1, descending=True)

    def where(self, condition: Any, x: Any, other: float) -> Any:
        return self.xp.where(condition, x, other)

    def x_log_x(self, w: Any) -> Any:
        return w * self.xp.log(self.xp.where(w > 0, w, 1))  # the gradient of JAX's xlogy is NaN at 0

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.jax.jit(function)  # type: ignore[no-any-return]

    def gradient(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def loss(*arrays: Any) -> Any:
            results = function(*arrays)
            return sum((x * x).sum() for x in results), results

        def run(*arrays: Any) -> Any:
            derivative = self.jax.value_and_grad(loss, tuple(range(len(arrays))), has_aux=True)
            (_, results), gradients = derivative(*arrays)
            return (*results, *gradients)

        return run

    def fused(self, call: Drawn) -> Callable[..., Any] | None:
        if call.arrays[2].shape[-1] != call.arrays[0].shape[-1]:
            return None
        swap = lambda x: x.swapaxes(1, 2)  # noqa: E731 - batch, tokens, heads, width
        attention = self.jax.nn.dot_product_attention
        mask = None if call.allowed is None or call.mask == "causal" else self.array(call.allowed)
        causal, scale = call.mask == "causal", 1.0 if call.family == "dot" else None

        def run(q: Any, k: Any, v: Any, *bias: Any) -> Any:
            return (
                swap(
                    attention(
                        swap(q),
                        swap(k),
                        swap(v),
                        bias=bias[0][None, None] if bias else None,
                        mask=mask if mask is None or mask.ndim == 4 else mask[None, None],
                        is_causal=causal,
                        scale=scale,
                    )
                ),
            )

        return run

    def done(self, result: Any) -> Any:
        return self.jax.block_until_ready(result)


class TensorFlow(Library):
    """TensorFlow and `tf.function`."""

    name, compiled = "tensorflow", "tf.function"

    def __init__(self) -> None:
        os.environ["KERAS_BACKEND"] = "tensorflow"
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self.xp = tf

    def array(self, x: np.ndarray) -> Any:
        return self.xp.constant(x)

    def swap(self, x: Any) -> Any:
        return self.xp.linalg.matrix_transpose(x)

    def times(self, x: Any, matrix: Any) -> Any:
        return self.xp.tensordot(x, matrix, 1)  # TensorFlow 2.21 aborts in x @ matrix for some shapes

    def sum(self, x: Any, axis: int, keep: bool = False) -> Any:
        return self.xp.reduce_sum(x, axis, keepdims=keep)

    def softmax(self, z: Any) -> Any:
        return self.xp.nn.softmax(z)

    def sigmoid(self, z: Any) -> Any:
        return self.xp.sigmoid(z)

    def logsumexp(self, z: Any) -> Any:
        return self.xp.reduce_logsumexp(z, -1)

    def largest(self, z: Any, count: int) -> Any:
        return self.xp.math.top_k(z, count).values

    def falling(self, z: Any) -> Any:
        return self.xp.sort(z, direction="DESCENDING")

    def where(self, condition: Any, x: Any, other: float) -> Any:
        return self.xp.where(condition, x, self.xp.constant(other, x.dtype))

    def x_log_x(self, w: Any) -> Any:
        return self.xp.math.xlogy(w, w)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.xp.function(function, reduce_retracing=False)  # type: ignore[no-any-return]

    def gradient(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arrays: Any) -> Any:
            with self.xp.GradientTape() as tape:
                for x in arrays:
                    tape.watch(x)
                results = function(*arrays)
                loss = self.xp.add_n([self.xp.reduce_sum(x * x) for x in results])
            return (*results, *tape.gradient(loss, arrays))

        return run

    def done(self, result: Any) -> Any:
        result[0].numpy()
        return result


LIBRARIES = {"numpy": Library, "torch": Torch, "jax": JAX, "tensorflow": TensorFlow}


def by_hand(library: Library, call: Drawn) -> Callable[..., Any]:
    """Return the formula of a call as a function of its arrays, for its output and readout."""
    allowed = None if call.allowed is None else library.array(call.allowed)
    xp = library.xp

    def logits(q: Any, k: Any, *parameters: Any) -> Any:
        width = int(q.shape[-1])
        scale, swap = 1 / math.sqrt(width), library.swap
        if call.family == "dot":
            return q @ swap(k)
        if call.family == "Gaussian":
            return (q @ swap(k) - 0.5 * library.sum(k * k, -1)[..., None, :] - 0.5 * library.sum(q * q, -1, True)) * (
                scale
            )
        if call.family == "cosine":
            q, k = ((x / library.sum(x * x, -1, True) ** 0.5) for x in (q, k))
            return q @ swap(k) * 10.0
        if call.family == "bilinear":
            return library.times(q, parameters[0]) @ swap(k)
        if call.family == "gated":
            gate = library.times(q, parameters[0][:, None]) + swap(library.times(k, parameters[1][:, None]))
            return library.sigmoid(gate) * (q @ swap(k))
        if call.family == "additive":
            w, u, v = parameters
            both = library.times(q, swap(w))[..., :, None, :] + library.times(k, swap(u))[..., None, :, :]
            return library.times(xp.tanh(both), v[:, None])[..., 0]
        z = (q * scale) @ swap(k)
        if call.family == "softcap":
            return CAP * xp.tanh(z / CAP)
        if call.family == "ALiBi":
            one, two = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])
            return z - library.array((SLOPE * abs(one - two)).astype(call.arrays[0].dtype))
        return z + parameters[0] if call.family == "bias" else z

    def weights(z: Any) -> Any:
        if call.normalizer == "sigmoid":
            w = library.sigmoid(z)
            return w if allowed is None else library.where(allowed, w, 0.0)
        if allowed is not None:
            z = library.where(allowed, z, -math.inf if call.normalizer != "sparsemax" else -1e30)
        if call.normalizer == "top-k":
            return library.softmax(library.where(z >= library.largest(z, COUNT)[..., -1:], z, -math.inf))
        if call.normalizer == "sparsemax":
            ordered = library.falling(z)
            count = library.array(np.arange(1, z.shape[-1] + 1).astype(call.arrays[0].dtype))
            threshold = (xp.cumsum(ordered, -1) - 1) / count
            top = library.largest(threshold, 1)
            return xp.relu(z - top) if library.name == "torch" else xp.maximum(z - top, 0.0)
        return library.softmax(z)

    def run(q: Any, k: Any, v: Any, *parameters: Any) -> Any:
        z = logits(q, k, *parameters)
        w = weights(z)
        read: Any = ()
        if call.readout:
            masked = z if allowed is None else library.where(allowed, z, -math.inf)
            read = (
                {
                    "largest weights": lambda: library.largest_weights(w, COUNT),
                    "entropy": lambda: -library.sum(library.x_log_x(w), -1),
                    "column sums": lambda: library.sum(w, -2),
                    "log-sum-exp": lambda: library.logsumexp(masked),
                    "all weights": lambda: w,
                }[call.readout](),
            )
        return (w @ v, *read)

    return run


def ours(library: Library, call: Drawn) -> Callable[..., Any]:
    """Return qkv's call as a function of the same arrays, for its output and readout."""
    import qkv
    from qkv import masks, normalizers, readouts, scores

    def score(width: int, *parameters: Any) -> Any:
        dot = scores.ScaledDot()
        return {
            "scaled dot": lambda: dot,
            "dot": scores.Dot,
            "Gaussian": lambda: scores.Gaussian(width**0.25),
            "cosine": lambda: scores.Cosine(temperature=0.1),
            "bilinear": lambda: scores.Bilinear(parameters[0]),
            "softcap": lambda: scores.Softcap(dot, CAP),
            "ALiBi": lambda: scores.ALiBi(dot, SLOPE),
            "bias": lambda: scores.Biased(dot, parameters[0]),
            "gated": lambda: scores.Gated(*parameters),
            "additive": lambda: scores.Additive(parameters[0], parameters[1], None, parameters[2]),
        }[call.family]()

    allowed = None if call.allowed is None else library.array(call.allowed)
    mask = {
        "none": lambda: None,
        "causal": masks.Causal,
        "lengths": lambda: masks.Lengths(library.array(call.lengths[:, None])),  # type: ignore[index]
        "pairs": lambda: masks.AllowedPairs(allowed),
        "window": lambda: masks.Window(WINDOW, WINDOW),
    }[call.mask]()
    normalizer = {
        "softmax": normalizers.Softmax,
        "sigmoid": normalizers.Sigmoid,
        "top-k": lambda: normalizers.TopK(COUNT),
        "sparsemax": normalizers.Sparsemax,
    }[call.normalizer]()
    readout = {
        "": lambda: None,
        "largest weights": lambda: readouts.TopWeights(COUNT),
        "entropy": readouts.Entropy,
        "column sums": readouts.ColumnSum,
        "log-sum-exp": readouts.LogSumExp,
        "all weights": readouts.Dense,
    }[call.readout]()

    def run(q: Any, k: Any, v: Any, *parameters: Any) -> Any:
        options = {"score": score(int(q.shape[-1]), *parameters), "normalizer": normalizer, "mask": mask}
        if readout is None:
            return (qkv.attend(q, k, v, **options),)
        seen = qkv.observe(q, k, v, readouts=[readout], **options)
        (read,) = seen.readouts
        return (seen.output, read.weights if isinstance(read, tuple) else read)

    return run
