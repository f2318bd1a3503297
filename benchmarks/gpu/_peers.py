"""The same work in other libraries; those that are not installed raise `MissingError`, with the reason."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks._calls import Call
from benchmarks._claim import MissingError
from benchmarks.gpu._contest import reason_to_skip
from benchmarks.gpu._setting import Setting

__all__ = ["BACKENDS", "additive_by_hand", "available", "keops_additive", "product_peers", "sdpa", "splash"]

Run = Callable[[], tuple[Any, ...]]
BACKENDS = {
    "SDPA flash": SDPBackend.FLASH_ATTENTION,
    "SDPA efficient": SDPBackend.EFFICIENT_ATTENTION,
    "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
    "SDPA math": SDPBackend.MATH,
}


def imported(name: str, package: str | None = None) -> Any:
    """Import the module of a peer.

    Raises:
        MissingError: it is not installed.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return importlib.import_module(name)
    except ImportError as error:
        raise MissingError(f"{package or name} is not installed") from error


def available(setting: Setting, makers: dict[str, Callable[[], Run]]) -> tuple[dict[str, Run], dict[str, str]]:
    """Return the peers that can be made, and the reasons why others cannot, by name."""
    found, skipped = {}, {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except Exception as error:  # an import of another library may raise anything
            skipped[name] = reason_to_skip(setting, error)
    return found, skipped


def four_axes(*sides: Any) -> list[Any]:
    """Return inputs with exactly two batch axes, in which groups of query heads share a key head."""
    rank = max(x.ndim for x in sides)
    if rank > 4:  # (batch, key heads, group, length, width)
        return [x.flatten(1, 2) for x in sides]
    return [x[(None,) * (4 - x.ndim)] for x in sides]


def sdpa(setting: Setting, call: Call, backend: str, causal: bool = False) -> Run:
    """Run PyTorch's scaled dot-product attention, forced to one of its backends, with gradients if requested."""
    if not setting.on_gpu and backend not in ("SDPA flash", "SDPA math"):
        raise MissingError("it runs on GPUs")

    def forward(query: Any, key: Any, value: Any) -> Any:
        sides = four_axes(query, key, value)
        grouped = sides[0].shape[1] != sides[1].shape[1]
        with sdpa_kernel(BACKENDS[backend]):
            return scaled_dot_product_attention(*sides, is_causal=causal, enable_gqa=grouped)

    return lambda: call.run_with(forward, call.leaves[:3])


def product_peers(
    setting: Setting, call: Call, causal: bool = False, flex_too: bool = False
) -> dict[str, Callable[[], Run]]:
    """Return makers of every implementation of attention with scaled dot products, by name.

    Args:
        setting: where they run.
        call: the call.
        causal: whether its mask is causal.
        flex_too: whether to compile FlexAttention, which takes many seconds.
    """
    names = [name for name in BACKENDS if name != "SDPA math"]
    makers: dict[str, Callable[[], Run]] = {name: lambda name=name: sdpa(setting, call, name, causal) for name in names}
    if flex_too:
        makers["FlexAttention"] = lambda: flex(setting, call, _causal if causal else None)
    makers["FlashAttention 3"] = lambda: flash(call, causal, "flash_attn_interface")
    makers["FlashAttention 2"] = lambda: flash(call, causal, "flash_attn")
    if call.towards is None:
        makers["FlashInfer"] = lambda: infer(call, causal)
    return makers


def _causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def flex(setting: Setting, call: Call, mask: Any = None, change: Any = None) -> Run:
    """Run PyTorch's FlexAttention, compiled, with a block mask and a modification of logits."""
    module = importlib.import_module("torch.nn.attention.flex_attention")
    sides = four_axes(*call.leaves[:3])
    blocks = None
    if mask is not None:
        q, k = sides[0].shape[2], sides[1].shape[2]
        blocks = module.create_block_mask(mask, None, None, q, k, device=setting.device)
    torch._dynamo.reset()  # beyond a limit of recompilations, calls would silently compute all pairs at once
    compiled = setting.compile(module.flex_attention, dynamic=False)
    grouped = sides[0].shape[1] != sides[1].shape[1]

    def forward(query: Any, key: Any, value: Any) -> Any:
        return compiled(*four_axes(query, key, value), score_mod=change, block_mask=blocks, enable_gqa=grouped)

    return lambda: call.run_with(forward, call.leaves[:3])


def flash(call: Call, causal: bool, module: str) -> Run:
    """Run FlashAttention 3 or 2, by their modules; their axes are (batch, length, head, width)."""
    function = imported(module).flash_attn_func
    _needs_half_precision(call)

    def forward(query: Any, key: Any, value: Any) -> Any:
        output = function(*(x.transpose(1, 2) for x in four_axes(query, key, value)), causal=causal)
        return (output[0] if isinstance(output, tuple) else output).transpose(1, 2)

    return lambda: call.run_with(forward, call.leaves[:3])


def infer(call: Call, causal: bool) -> Run:
    """Run FlashInfer's prefill of one sequence, forward only."""
    function = imported("flashinfer").single_prefill_with_kv_cache
    _needs_half_precision(call)
    if four_axes(*call.leaves[:3])[0].shape[0] != 1:
        raise MissingError("it computes one sequence")

    def forward(query: Any, key: Any, value: Any) -> Any:
        # Its axes are (length, head, width).
        sides = [x[0].transpose(0, 1) for x in four_axes(query, key, value)]
        return function(*sides, causal=causal, kv_layout="NHD").transpose(0, 1)[None]

    return lambda: call.run_with(forward)


def _needs_half_precision(call: Call) -> None:
    if call.query.dtype == torch.float32:
        raise MissingError("it computes in half precision")


def splash(call: Call, alpha: float) -> Run:
    """Run adasplash, entmax attention with blocks found by Halley's method; lengths must be powers of two."""
    function = imported("adasplash").adasplash
    return lambda: call.run_with(
        lambda q, k, v: function(*four_axes(q, k, v), alpha=alpha, is_causal=False, varlen=None), call.leaves[:3]
    )


def additive_by_hand(setting: Setting, call: Call, heads: int, compiled: bool) -> Run:
    """Run additive attention as in Keras, with an array of queries × keys × hidden units, on the first heads of a call.

    Args:
        setting: where it runs.
        call: an additive call with one batch axis, of heads.
        heads: number of heads that are computed.
        compiled: whether PyTorch compiles it.
    """
    left_map, right_map, vector = call.trained

    def attend(query: Any, key: Any, value: Any, left_map: Any, right_map: Any, vector: Any) -> Any:
        left, right = query @ left_map.mT, key @ right_map.mT
        logits = (vector * torch.tanh(left[..., :, None, :] + right[..., None, :, :])).sum(-1)
        return logits.softmax(-1) @ value

    function = setting.compile(attend, dynamic=False) if compiled else attend
    leaves = [x.detach()[:heads].clone().requires_grad_(x.requires_grad) for x in call.leaves[:3]]
    leaves += [x.detach().clone().requires_grad_(x.requires_grad) for x in (left_map, right_map, vector)]

    def run() -> tuple[Any, ...]:
        if call.towards is None:
            with torch.no_grad():
                return (function(*leaves),)
        output = function(*leaves)
        return (output, *torch.autograd.grad(output, leaves, call.towards[:heads]))

    return run


def keops_additive(call: Call) -> Run:
    """Run the additive score in PyKeOps, forward, compiled into a temporary folder."""
    os.environ.setdefault("KEOPS_CACHE_FOLDER", tempfile.mkdtemp(prefix="keops"))
    lazy = imported("pykeops.torch", "pykeops").LazyTensor
    left_map, right_map, vector = call.trained

    def forward(query: Any, key: Any, value: Any) -> Any:
        left, right = (query @ left_map.mT).contiguous(), (key @ right_map.mT).contiguous()
        # PyKeOps has no tanh; tanh s = 1 − 2 / (1 + e^(2s)).
        units = 1 - 2 / (1 + (2 * (lazy(left[:, :, None, :]) + lazy(right[:, None, :, :]))).exp())
        logits = units | lazy(vector[None, None, None, :].contiguous())
        return logits.sumsoftmaxweight(lazy(value[:, None, :, :].contiguous()), axis=2)

    return lambda: call.run_with(forward)
