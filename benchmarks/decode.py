"""Claim: a decoding step takes time linear in the length, and the cache at most 1.1 times the memory of its keys."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks._calls import WrongError, apart
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._memory import in_fresh_process, status
from benchmarks._race import race

WIDTH, HEADS = 512, 8


def _filled(n: int, **options: Any) -> tuple[Any, Any]:
    """Return an attention layer, and a cache filled with n tokens one by one."""
    from qkv import masks, nn

    torch.manual_seed(0)
    attention = nn.MultiHeadAttention(WIDTH, HEADS, mask=masks.Causal())
    cache = nn.KeyValueCache(**options)
    row = torch.randn(n, 1, HEADS, 1, WIDTH // HEADS)
    for t in range(n):
        cache.append(row[t], -row[t])
    return attention, cache


def _steps(n: int, **options: Any) -> Any:
    """Return a call that attends to n tokens; the last row of the cache is removed after each call."""
    attention, cache = _filled(n - 1, **options)
    x = torch.randn(1, 1, WIDTH)
    state = cache.copy()

    def step() -> Any:
        cache.__dict__.update(state.__dict__)
        cache.chunks = list(state.chunks)
        filled = cache.chunks[-1].filled
        with torch.no_grad():
            output = attention(x, cache=cache)
        state.chunks[-1].filled = filled
        return output

    return step


def rows(setting: Setting) -> Iterator[Row]:
    """Measure the time of steps at several lengths and against recomputing all keys, then memory."""
    torch.set_num_threads(1)
    longest = 256 if setting.quick else 2048
    _check()
    lengths = [longest // 4, longest // 2, longest]
    times = race({str(n): _steps(n) for n in lengths}, setting.rounds)
    for n in lengths[1:]:
        yield times.row(
            f"a step at {n:,} tokens",
            str(n // 2),
            AtMost(2.2),
            ours=str(n),
            note="the limit is twice the time for twice the length, plus 10 % for the noise of a shared machine",
        )
    from qkv import masks, nn

    whole, x = nn.MultiHeadAttention(WIDTH, HEADS, mask=masks.Causal()), torch.randn(1, longest, WIDTH)

    def without_cache() -> Any:
        with torch.no_grad():
            return whole(x)

    yield race({"with cache": _steps(longest), "without cache": without_cache}, setting.rounds).row(
        f"a step at {longest:,} tokens", "without cache", AtMost(0.1), ours="with cache"
    )
    for int8 in (False, True):
        found = _memory(longest, int8)
        ideal = 2 * longest * WIDTH * 4
        # One scale for each row of a head.
        kept = ideal if not int8 else ideal // 4 + ideal // (WIDTH // HEADS)
        for what, number in (("allocated", found["nbytes"]), ("peak of the process", found["growth"])):
            yield Row(
                f"{longest:,} tokens one by one{', int8' if int8 else ''}, {what}",
                "memory / size of keys and values",
                number / kept,
                "×",
                # A chunk in int8 is read as numbers of four times its size, one chunk at a time.
                AtMost(1.1) if what == "allocated" or not (int8 or setting.quick) else None,
                megabytes={"qkv": number / 1e6, "keys and values": kept / 1e6},
            )


def _check() -> None:
    attention, cache = _filled(0)
    x = torch.randn(1, 200, WIDTH)
    with torch.no_grad():
        steps = [attention(x[:, t : t + 1], cache=cache) for t in range(200)]
        if not (distance := apart(torch.cat(steps, dim=1), attention(x))) <= 1e-4:
            raise WrongError(f"decoding with the cache is {distance:.2g} from decoding without.")


def _memory(n: int, int8: bool) -> dict[str, int]:
    found: dict[str, int] = in_fresh_process("benchmarks.decode", [n, int8])
    return found


def _measure(n: int, int8: bool) -> dict[str, int]:
    """Measure the peak memory of a process that decodes n tokens in each of four sequences."""
    from qkv import masks, nn

    torch.set_num_threads(1)
    attention = nn.MultiHeadAttention(WIDTH, HEADS, mask=masks.Causal())
    batch = 4

    def decode(steps: int) -> Any:
        cache = nn.KeyValueCache(int8=int8)
        with torch.no_grad():
            for _ in range(steps):
                attention(torch.randn(batch, 1, WIDTH), cache=cache)
        return cache

    decode(16)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = status("VmRSS")
    cache = decode(n)
    return {"nbytes": cache.nbytes // batch, "growth": (status("VmHWM") - before) // batch}


CLAIM = Claim(
    "Decoding 2,048 tokens with the cache takes time linear in the length per step, and at most 1.1 × the "
    "memory of the keys and values.",
    "at most 2.2 × the time for twice the length; at most 1.1 × the memory of keys and values; at most "
    "0.1 × the time without a cache",
    ("the same attention without a cache",),
    rows,
)


if __name__ == "__main__":
    print(json.dumps(_measure(*json.loads(sys.argv[1]))))
