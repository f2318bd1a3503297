"""Claim: the fixed cost of a call on 16 tokens, by kind of part, in multiples of PyTorch's fused call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import normalize

from benchmarks._by_hand import entmax15, sparsemax, top_weights
from benchmarks._calls import WrongError, apart
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._race import race

HEADS, TOKENS, WIDTH = 4, 16, 16
ROUNDS, SAMPLE = 31, 0.01
"""Rounds of a race, and seconds of a sample: the smallest of many short samples is affected least by other load."""


def _cases(dtype: torch.dtype) -> dict[str, tuple[dict[str, Any], float]]:
    """Return the options of each call, and its limit forward."""
    from qkv import masks, normalizers, scores

    kept = torch.rand(1, 1, TOKENS) > 0.3
    kept[..., 0] = True
    weights = torch.randn(8, WIDTH, dtype=dtype), torch.randn(8, WIDTH, dtype=dtype)
    masked: dict[str, Any] = {"lengths": masks.Lengths(torch.tensor([[12]])), "key mask": masks.AllowedKeys(kept)}
    scored: dict[str, Any] = {
        "Gaussian": scores.Gaussian(2.0),
        "Laplace": scores.Laplace(2.0),
        "Cosine": scores.Cosine(0.5),
        "Additive": scores.Additive(*weights, None, torch.randn(8, dtype=dtype)),
        "Softcap": scores.Softcap(scores.ScaledDot(), 5.0),
    }
    normalized: dict[str, Any] = {
        "TopK": normalizers.TopK(4),
        "Sparsemax": normalizers.Sparsemax(),
        "Entmax15": normalizers.Entmax15(),
        "Sigmoid": normalizers.Sigmoid(),
    }
    return {
        "no mask": ({}, 2.5),
        "causal": ({"mask": masks.Causal()}, 2.5),
        **{name: ({"mask": mask}, 4.0) for name, mask in masked.items()},
        **{name: ({"score": score}, 8.0) for name, score in scored.items()},
        **{name: ({"normalizer": normalizer}, 8.0) for name, normalizer in normalized.items()},
    }


def _by_hand(name: str, options: dict[str, Any]) -> Callable[..., Any] | None:
    """Return the call written with few operators of PyTorch, without checks of the data; None if SDPA computes it."""
    scaled = WIDTH**-0.5

    def additive(q: Any, k: Any) -> Any:
        weight, key_weight, vector = (
            getattr(options["score"], each) for each in ("query_weight", "key_weight", "vector")
        )
        return torch.tanh((q @ weight.mT)[..., :, None, :] + (k @ key_weight.mT)[..., None, :, :]) @ vector

    logits: dict[str, Callable[..., Any]] = {
        "Gaussian": lambda q, k: torch.cdist(q, k).square() / -8,
        "Laplace": lambda q, k: torch.cdist(q, k) / -2,
        "Cosine": lambda q, k: normalize(q, dim=-1) @ normalize(k, dim=-1).mT * 2,
        "Additive": additive,
        "Softcap": lambda q, k: (q * (scaled / 5) @ k.mT).tanh() * 5,
    }
    weights = {"TopK": top_weights(4), "Sparsemax": sparsemax, "Entmax15": entmax15, "Sigmoid": torch.sigmoid}
    if name in logits:
        return lambda q, k, v: logits[name](q, k).softmax(-1) @ v
    return (lambda q, k, v: weights[name](q * scaled @ k.mT) @ v) if name in weights else None


def _with_backward(run: Callable[[], Any], inputs: list[Any]) -> Callable[[], Any]:
    """Return a call that also computes the gradients of the inputs."""
    gradient = torch.randn_like(run())
    return lambda: torch.autograd.grad(run(), inputs, gradient)


def _check(sides: list[Any], options: dict[str, Any]) -> float:
    """Return the largest error of two calls, of which the second has a cached plan, against the dense reference."""
    import qkv
    from qkv.core.equation import attend_dense
    from qkv.plan import Spec

    spec = Spec(**options).map_arrays(lambda x: x.double() if x.is_floating_point() else x)
    reference = attend_dense(
        *[x.detach().double() for x in sides], score=spec.score, normalizer=spec.normalizer, mask=spec.mask
    ).output
    error = max(float(apart(qkv.attend(*sides, **options).detach().double(), reference)) for _ in range(2))
    if not error <= (1e-4 if sides[0].dtype == torch.float32 else 2e-2):
        raise WrongError(f"a call with {options} is {error:.2g} from the dense reference.")
    return error


def _module(tokens: int) -> tuple[Callable[[], Any], Callable[[], Any], list[Any]]:
    """Return a step of `nn.MultiHeadAttention`, the same step by hand with SDPA, and their inputs."""
    from qkv import nn

    layer, x = nn.MultiHeadAttention(HEADS * WIDTH, HEADS), torch.randn(1, tokens, HEADS * WIDTH, requires_grad=True)

    def by_hand() -> Any:
        query, key, value = (
            linear(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
            for linear in (layer.query_map, layer.key_map, layer.value_map)
        )
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return layer.output_map(output.transpose(1, 2).flatten(-2))

    return lambda: layer(x), by_hand, [x, *layer.parameters()]


def _compare(
    setting: Setting, name: str, gradient: bool, dtype: torch.dtype = torch.float32, threads: int = 1
) -> Iterator[Row]:
    """Yield the row of a call, relative to PyTorch's fused call without a mask in the same dtype.

    In float32 on one thread a second row is relative to the same call written by hand.
    """
    import qkv

    options, limit = _cases(dtype)[name]
    sides = [torch.randn(1, HEADS, TOKENS, WIDTH, requires_grad=gradient, dtype=dtype) for _ in range(3)]
    error = _check(sides, options)
    calls: dict[str, Callable[[], object]] = {
        "qkv": lambda: qkv.attend(*sides, **options),
        "SDPA": lambda: torch.nn.functional.scaled_dot_product_attention(*sides),
    }
    by_hand = _by_hand(name, options) if dtype == torch.float32 and threads == 1 else None
    if by_hand is not None:
        if not (distance := apart(by_hand(*sides).detach(), qkv.attend(*sides, **options).detach())) <= 1e-4:
            raise WrongError(f"{name} by hand is {distance:.2g} from the call.")
        calls["by hand"] = lambda: by_hand(*sides)
    if gradient:
        calls = {each: _with_backward(run, sides) for each, run in calls.items()}
    case = f"{name}, {'forward + backward' if gradient else 'forward'}"
    case += ("" if dtype == torch.float32 else ", bfloat16") + ("" if threads == 1 else f", {threads} threads")
    torch.set_num_threads(threads)
    try:
        measured = race(calls, 3 if setting.quick else ROUNDS, SAMPLE)
    finally:
        torch.set_num_threads(1)
    kernel = qkv.explain(*sides, **options).kernel.name
    if threads == 1:
        goal = AtMost(3.0 if gradient else limit)
        yield measured.row(case, "SDPA", goal, smallest=True, errors={"reference": error}, kernel=kernel)
        if by_hand is not None:
            note = "rows relative to the call by hand have no goal: they state what the operators of the formula cost"
            yield measured.row(case, "by hand", smallest=True, kernel=kernel, note=note)
        return
    note = "rows on two threads have no goal, because the machine is shared"
    yield measured.row(
        case, "SDPA", clock="wall time", smallest=True, errors={"reference": error}, kernel=kernel, note=note
    )


def rows(setting: Setting) -> Iterator[Row]:
    """Measure calls on 4 heads of 16 tokens of width 16, and a module step, forward and with backward.

    Each kind of part is measured in float32 and in bfloat16, and some on two threads.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    names = list(_cases(torch.float32))
    for dtype in (torch.float32, torch.bfloat16):
        for name in setting.some(names, 4 if dtype == torch.bfloat16 else 1):
            for gradient in (False, True):
                yield from _compare(setting, name, gradient, dtype)
    for name in setting.some(("no mask", "causal", "key mask", "Gaussian", "Sparsemax"), 3):
        for gradient in (False, True):
            yield from _compare(setting, name, gradient, threads=2)
    module, by_hand, inputs = _module(TOKENS)
    if not (distance := apart(module().detach(), by_hand().detach())) <= 1e-4:
        raise WrongError(f"the module is {distance:.2g} from the same layer by hand.")

    def without_gradient(run: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            with torch.no_grad():
                return run()

        return call

    torch_module = torch.nn.MultiheadAttention(HEADS * WIDTH, HEADS, batch_first=True)
    x = inputs[0]
    for case, change in (("forward", lambda run, _: without_gradient(run)), ("forward + backward", _with_backward)):
        calls = {
            "qkv": change(module, inputs),
            "torch.nn.MultiheadAttention": change(
                lambda: torch_module(x, x, x, need_weights=False)[0], [x, *torch_module.parameters()]
            ),
            "by hand with SDPA": change(by_hand, inputs),
        }
        measured = race(calls, 3 if setting.quick else ROUNDS, SAMPLE)
        for peer in ("torch.nn.MultiheadAttention", "by hand with SDPA"):
            name = f"nn.MultiHeadAttention(64, 4) on 16 tokens, {case}"
            yield measured.row(name, peer, AtMost(1.3), smallest=True)


CLAIM = Claim(
    "A call on 16 tokens and 4 heads takes at most 2.5 × the time of SDPA without a mask, 4 × with padding, 8 × with "
    "other scores and normalizers, and 3 × with backward; a step of nn.MultiHeadAttention 1.3 × PyTorch's module.",
    "at most 2.5 × SDPA's time without a mask or causal, 4 × with padding, 8 × with other scores and normalizers, 3 × "
    "with backward; a module step at most 1.3 × the time of PyTorch's module and of the layer by hand",
    (
        "torch SDPA without a mask",
        "the call in few operators of PyTorch",
        "torch.nn.MultiheadAttention",
        "the same layer by hand with SDPA",
    ),
    rows,
)
