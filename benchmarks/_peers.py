"""The same work in other libraries, imported where they are used; the extra `bench` installs all of them."""

from __future__ import annotations

import contextlib
import io
import math
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks._calls import Call
from benchmarks._claim import MissingError

__all__ = [
    "additive_by_hand",
    "additive_compiled",
    "dot_by_hand",
    "entmax",
    "flex",
    "keops_regression",
    "keras_additive",
    "peer",
    "sdpa",
]

Forward = Callable[[Any, Any, Any], Any]


def peer(name: str) -> Any:
    """Import the module of a peer.

    Raises:
        MissingError: the module is not installed.
    """
    try:
        return __import__(name, fromlist=["_"])
    except ImportError as error:
        raise MissingError(f'{name} is not installed ({error}). Run pip install "qkv[bench]".') from error


def sdpa(call: Call) -> Callable[[], tuple[Any, ...]]:
    """Run torch's `scaled_dot_product_attention` on the same inputs, with their gradients."""
    heads = [x if x.ndim == 4 else x.reshape(1, *([1] * (3 - x.ndim)), *x.shape) for x in call.leaves[:3]]
    return lambda: call.run_with(lambda q, k, v: scaled_dot_product_attention(*heads), call.leaves[:3])


def flex(call: Call) -> Callable[[], tuple[Any, ...]]:
    """Run the forward pass of torch's flex_attention, compiled into a temporary folder."""
    module = peer("torch.nn.attention.flex_attention")
    _, heads, n, _ = call.query.shape
    change, blocks = None, None
    score = call.options["score"]
    if call.name == "softcap":
        cap = score.cap

        def change(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return cap * torch.tanh(s / cap)
    elif call.name == "alibi":
        slope = score.slope.reshape(heads)

        def change(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s - slope[h] * (i - j).abs()
    elif call.name == "bias_table":
        # A table with one number per distance avoids logarithms within the kernel.
        distances = torch.zeros(1, 1, 2 * n - 1)
        relative = torch.arange(-(n - 1), n)
        from qkv.scores.position_bias import bucket

        numbers = bucket(relative, score.table.shape[-1], True, score.max_distance)
        distances = score.table.detach().reshape(heads, -1)[:, numbers].contiguous()

        def change(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s + distances[h, j - i + n - 1]
    elif call.name == "window":
        before = call.options["mask"].before
        blocks = module.create_block_mask(
            lambda b, h, i, j: (j <= i) & (j >= i - before), None, None, n, n, device="cpu"
        )
    # Beyond a limit of recompilations, calls would silently use the eager path with quadratic memory.
    torch._dynamo.reset()
    compiled = torch.compile(module.flex_attention, dynamic=False, fullgraph=True)
    inputs = [x.detach() for x in call.leaves[:3]]

    def run() -> tuple[Any, ...]:
        with torch.no_grad():
            return (compiled(*inputs, score_mod=change, block_mask=blocks),)

    return run


def keras_additive(call: Call) -> Callable[[], tuple[Any, ...]]:
    """Run Keras' AdditiveAttention on torch, `Σ scale · tanh(query + key)`; with trained inputs and scale."""
    os.environ["KERAS_BACKEND"] = "torch"
    keras = peer("keras")
    if keras.backend.backend() != "torch":
        raise MissingError("Keras was loaded with another backend. Set KERAS_BACKEND=torch.")
    layer = keras.layers.AdditiveAttention(use_scale=True)
    layer.build([call.query.shape, call.value.shape, call.key.shape])
    vector = call.options["score"].vector
    layer.scale.assign(vector.detach().reshape(layer.scale.shape))
    leaves = (*call.leaves[:3], layer.scale.value)
    return lambda: call.run_with(lambda q, k, v: layer([q, v, k]), leaves)


def additive_by_hand(call: Call) -> Callable[[], tuple[Any, ...]]:
    """Run additive attention in operators of PyTorch, with the sum of query and key of every pair."""
    score = call.options["score"]

    def forward(query: Any, key: Any, value: Any) -> Any:
        query, key = query @ score.query_weight.mT, key @ score.key_weight.mT
        logits = torch.tanh(query[..., :, None, :] + key[..., None, :, :]) @ score.vector
        return logits.softmax(-1) @ value

    return lambda: call.run_with(forward)


def additive_compiled(call: Call) -> Callable[[], tuple[Any, ...]]:
    """Run tanh(a + b) = 1 − 2 / (1 + e^2a e^2b) compiled by torch.compile, which overflows where a or b exceeds 44."""
    score = call.options["score"]

    def forward(query: Any, key: Any, value: Any) -> Any:
        left, right = (query @ score.query_weight.mT * 2).exp(), (key @ score.key_weight.mT * 2).exp()
        logits = (score.vector / (1 + left[..., :, None, :] * right[..., None, :, :])).sum(-1) * -2
        return logits.softmax(-1) @ value

    torch._dynamo.reset()
    compiled = torch.compile(forward, dynamic=False, fullgraph=True)
    return lambda: call.run_with(compiled)


def dot_by_hand(call: Call) -> Callable[[], tuple[Any, ...]]:
    """Run the scaled dot product in operators of PyTorch, with the weights of all pairs."""
    return lambda: call.run_with(lambda q, k, v: (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v)


def entmax(call: Call, rows: int = 1024) -> Callable[[], tuple[Any, ...]]:
    """Run the entmax package, which sorts, on some queries at a time, since it stores all weights."""
    package = peer("entmax")
    function = getattr(package, call.name)
    query, key, value = call.leaves[:3]
    key = key.transpose(-1, -2) / math.sqrt(query.shape[-1])

    def run() -> tuple[Any, ...]:
        with torch.no_grad():
            return (torch.cat([function(q @ key, dim=-1) @ value for q in query.split(rows, dim=-2)], dim=-2),)

    return run


def keops_regression(call: Call) -> Callable[[], tuple[Any, ...]]:
    """Run PyKeOps: numerator and denominator in one reduction, compiled into a temporary folder."""
    os.environ.setdefault("KEOPS_CACHE_FOLDER", tempfile.mkdtemp(prefix="keops"))
    with contextlib.redirect_stdout(io.StringIO()):
        lazy = peer("pykeops.torch").LazyTensor
    query, key, value = call.query, call.key, call.value
    twice = 2 * call.options["score"].bandwidth ** 2
    both = torch.cat([value, torch.ones_like(value[:, :1])], dim=1)

    def run() -> tuple[Any, ...]:
        distance = ((lazy(query[:, None, :]) - lazy(key[None, :, :])) ** 2).sum(-1)
        sums = (-distance / twice).exp() @ both
        return (sums[:, :-1] / sums[:, -1:],)

    with contextlib.redirect_stdout(io.StringIO()):
        run()
    return run
