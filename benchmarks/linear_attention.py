"""Claim: linear attention takes at most 1.1 times the time of the product form that one writes by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from benchmarks._calls import Call
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._race import race
from benchmarks._recurrences import chunked_decay, chunked_form, decaying_recurrence, product_form, recurrence
from qkv import masks, normalizers, scores

Forward: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]

SHAPES = ((8, 1024, 64), (8, 4096, 64), (1, 4096, 64), (8, 16384, 64))
DECAYED_SHAPES = ((8, 1024, 64), (8, 4096, 64))
DECAYS = ("fixed (RetNet)", "per key (Mamba-2)", "per feature (GLA)")
"""Kinds of decays, each with the models that use it."""
LONGEST_LOOP = 1024
"""Largest number of tokens of the hand-written loops over tokens."""


def rows(setting: Setting) -> Iterator[Row]:
    """Measure forward, and forward and backward, without a mask, causal, and with decays, of features computed before.

    Rows in bfloat16 and on two threads follow for one shape.
    """
    torch.set_num_threads(1)
    for shape in setting.some(SHAPES, 4):
        for mask in (None, masks.Causal()):
            for gradient in (False, True):
                yield from _race(_linear(shape, mask, gradient), setting)
    for shape in setting.some(DECAYED_SHAPES, 2):
        for decay in DECAYS:
            for gradient in (False, True):
                yield from _race(_decaying(shape, decay, gradient), setting)
    for dtype, threads in ((torch.bfloat16, 1), (torch.float32, 2)):
        for gradient in (False, True):
            contests = [_linear(SHAPES[1], mask, gradient, dtype) for mask in (None, masks.Causal())]
            contests += [_decaying(DECAYED_SHAPES[1], decay, gradient, dtype) for decay in DECAYS]
            for contest in setting.some(contests, 3):
                yield from _race(contest, setting, threads)


@dataclass(frozen=True)
class _Contest:
    """A call, and functions of query, key and value that compute the same by hand."""

    call: Call
    peers: dict[str, Forward]


def _inputs(shape: tuple[int, ...], gradient: bool, dtype: torch.dtype) -> tuple[list[Tensor], Tensor | None]:
    """Return query, key and value, of which the first two are elu(x) + 1, and the gradient of the output."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(shape) for _ in range(3))
    sides = [torch.nn.functional.elu(x) + 1 for x in (query, key)]
    sides = [x.to(dtype).requires_grad_(gradient) for x in (*sides, value)]
    return sides, torch.randn(shape).to(dtype) if gradient else None


def _linear(
    shape: tuple[int, ...], mask: masks.Mask | None, gradient: bool, dtype: torch.dtype = torch.float32
) -> _Contest:
    sides, towards = _inputs(shape, gradient, dtype)
    options = {"score": scores.Dot(), "normalizer": normalizers.Sum(), "mask": mask}
    peers: dict[str, Forward] = {"product form": product_form if mask is None else chunked_form}
    if mask is not None and shape[-2] <= LONGEST_LOOP:
        peers["recurrence"] = recurrence
    return _Contest(Call("" if mask is None else ", causal", *sides, options, (), towards), peers)


def _decaying(shape: tuple[int, ...], decay: str, gradient: bool, dtype: torch.dtype = torch.float32) -> _Contest:
    sides, towards = _inputs(shape, gradient, dtype)
    batch, n, width = shape
    trained: tuple[Tensor, ...] = ()
    if decay == DECAYS[0]:
        fixed = torch.log1p(-(2.0 ** -torch.linspace(5, 8, batch))).to(dtype)
        score = scores.Decay(scores.Dot(1 / width), fixed)
        log_decay = fixed[:, None, None].expand(batch, n, 1)
    else:
        logits = torch.randn(batch, n, 1 if decay == DECAYS[1] else width)
        log_decay = (torch.nn.functional.logsigmoid(logits) / 16).to(dtype).requires_grad_(gradient)
        score = scores.Decay(scores.Dot(1 / width), log_decay_per_key=log_decay)
        trained = (log_decay,)

    def by_hand(form: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Forward:
        return lambda query, key, value: form(query / width, key, value, log_decay)

    peers = {"chunked form": by_hand(chunked_decay)}
    if n <= LONGEST_LOOP:
        peers["loop over tokens"] = by_hand(decaying_recurrence)
    options = {"score": score, "normalizer": normalizers.Identity(), "mask": masks.Causal()}
    return _Contest(Call(f", decay {decay}", *sides, options, trained, towards), peers)


def _race(contest: _Contest, setting: Setting, threads: int = 1) -> Iterator[Row]:
    call, dtype = contest.call, contest.call.query.dtype
    errors = call.check() if dtype == torch.float32 else {}
    runs: dict[str, Callable[[], Any]] = {"qkv": call.run}
    for name, peer in contest.peers.items():
        errors |= call.check_against(name, call.run_with(peer), 1e-3 if dtype == torch.float32 else 0.1)
        runs[name] = lambda peer=peer: call.run_with(peer)  # type: ignore[misc]
    torch.set_num_threads(threads)
    try:
        measured = race(runs, setting.rounds)
    finally:
        torch.set_num_threads(1)
    case = (
        f"{'×'.join(map(str, call.query.shape))}{call.name}, forward{' + backward' if call.towards is not None else ''}"
    )
    case += ("" if dtype == torch.float32 else ", bfloat16") + ("" if threads == 1 else f", {threads} threads")
    for name in contest.peers:
        yield measured.row(
            case,
            name,
            AtMost(1.1) if threads == 1 else None,
            clock="CPU time" if threads == 1 else "wall time",
            smallest=threads > 1,
            errors=errors,
            kernel=call.plan.kernel.name,
            plan=str(call.plan),
            note="rows on two threads have no goal, because the machine is shared" if threads > 1 else "",
        )


CLAIM = Claim(
    "Linear attention, also with decays, takes at most 1.1 × the time of the product form or chunks written by hand.",
    "at most 1.1 × the time of φ(Q) (φ(K)ᵀ V), of its causal form in chunks, and of chunks with the decays of RetNet, "
    "Mamba-2 and GLA; forward, and forward + backward",
    (
        "PyTorch's matrix products",
        "the recurrence of flash-linear-attention, rebuilt in PyTorch from its formula",
        "chunks with decays, as the papers write them, and a loop over tokens",
    ),
    rows,
)
