"""Claim: a decoding step takes the time of one on a preallocated buffer, and the cache 1.1 times the memory of keys."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks._calls import WrongError, apart
from benchmarks._claim import AtMost, Claim, Row, Setting
from benchmarks._memory import in_fresh_process, status
from benchmarks._race import Race, race

WIDTH, HEADS = 512, 8


STEPS = 16
"""Steps of one timed call; the cache is cropped once before them."""
ROUNDS, SAMPLE = 11, 0.02
"""Rounds of a race, and seconds of a sample: the smallest of several short samples is affected least by other load."""


class _Peer:
    """The same layer, written by hand: projections, keys and values in one array, and one call of SDPA."""

    def __init__(self, attention: Any, key: Any, value: Any, capacity: int | None) -> None:
        """Copy key and value to buffers of `capacity` rows, or concatenate new rows if it is None."""
        self.attention, self.static, self.n = attention, capacity is not None, key.shape[2]
        self.sides = [key, value]
        if capacity is not None:
            self.sides = [torch.zeros(*x.shape[:2], capacity, x.shape[3], dtype=x.dtype) for x in (key, value)]
            for buffer, x in zip(self.sides, (key, value), strict=True):
                buffer[:, :, : self.n] = x
        self.first, self.given = self.n, list(self.sides)

    def reset(self) -> None:
        self.n, self.sides = self.first, list(self.given)

    def __call__(self, x: Any) -> Any:
        layer, (b, q, width) = self.attention, x.shape
        query, key, value = (
            linear(x).view(b, q, HEADS, width // HEADS).transpose(1, 2)
            for linear in (layer.query_map, layer.key_map, layer.value_map)
        )
        n, self.n = self.n, self.n + q
        if self.static:
            for buffer, new in zip(self.sides, (key, value), strict=True):
                buffer[:, :, n : self.n] = new
            sides = [x.narrow(2, 0, self.n) for x in self.sides]
        else:
            self.sides = sides = [torch.cat([old, new], 2) for old, new in zip(self.sides, (key, value), strict=True)]
        output = torch.nn.functional.scaled_dot_product_attention(query, *sides)
        return layer.output_map(output.transpose(1, 2).reshape(b, q, width))


def _layer(n: int, batch: int, dtype: torch.dtype = torch.float32) -> tuple[Any, Any, Any, Any]:
    """Return a layer, a cache that was filled with n tokens in blocks of 128, and its keys and values."""
    from qkv import masks, nn

    torch.manual_seed(0)
    attention = nn.MultiHeadAttention(WIDTH, HEADS, mask=masks.Causal(), dtype=dtype)
    key, value = torch.randn(2, batch, HEADS, n, WIDTH // HEADS, dtype=dtype)
    cache = nn.KeyValueCache()
    for t in range(0, n, 128):
        cache.append(key[:, :, t : t + 128], value[:, :, t : t + 128])
    return attention, cache, key, value


def _contest(n: int, batch: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return calls that decode `STEPS` tokens, the first of which attends to n keys, and check that they agree."""
    attention, cache, key, value = _layer(n - 1, batch, dtype)
    x = torch.randn(batch, 1, WIDTH, dtype=dtype)
    peers = {"static buffer": _Peer(attention, key, value, n + STEPS), "torch.cat": _Peer(attention, key, value, None)}

    def ours() -> Any:
        cache.crop(n - 1)
        with torch.no_grad():
            for _ in range(STEPS):
                output = attention(x, cache=cache)
        return output

    def theirs(peer: _Peer) -> Any:
        peer.reset()
        with torch.no_grad():
            for _ in range(STEPS):
                output = peer(x)
        return output

    calls: dict[str, Any] = {"qkv": ours, **{name: partial(theirs, peer) for name, peer in peers.items()}}
    for name in peers:
        if not (distance := apart(calls[name](), ours())) <= (1e-4 if dtype == torch.float32 else 2e-2):
            raise WrongError(f"a step over {n} keys is {distance:.2g} from that with {name}.")
    return calls


def _generation(n: int, batch: int) -> dict[str, Any]:
    """Return calls that decode n tokens one by one, from an empty cache on."""
    from qkv import nn

    attention, _, key, value = _layer(1, batch)
    x = torch.randn(batch, 1, WIDTH)

    def ours() -> None:
        cache = nn.KeyValueCache()
        with torch.no_grad():
            for _ in range(n):
                attention(x, cache=cache)

    def theirs(capacity: int | None) -> None:
        peer = _Peer(attention, key[:, :, :0], value[:, :, :0], capacity)
        with torch.no_grad():
            for _ in range(n):
                peer(x)

    return {"qkv": ours, "static buffer": partial(theirs, n), "torch.cat": partial(theirs, None)}


def _hugging_face(n: int, batch: int) -> dict[str, Any]:
    """Return calls that decode `STEPS` tokens from n keys on with a Llama of two layers, and check that they agree."""
    import transformers

    from qkv.interop import huggingface

    huggingface.register()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, bos_token_id=None, eos_token_id=None, max_position_embeddings=8192,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.randint(1, 64, (batch, n - 1 + STEPS))
    caches = {
        "qkv": ("qkv", huggingface.GrowingCache(config)),
        "qkv, DynamicCache": ("qkv", transformers.DynamicCache(config=config)),
        "DynamicCache": ("sdpa", transformers.DynamicCache(config=config)),
        "static cache": ("sdpa", transformers.StaticCache(config=config, max_cache_len=n + STEPS)),
    }

    def decode(attention: str, cache: Any) -> Any:
        model.set_attn_implementation(attention)
        with torch.no_grad():
            if not cache.get_seq_length():
                model(tokens[:, : n - 1], past_key_values=cache)
            for layer in cache.layers:  # remove the tokens of the last call
                if isinstance(layer, transformers.cache_utils.StaticLayer):
                    layer.cumulative_length.fill_(n - 1)
                elif (more := layer.get_seq_length() - (n - 1)) > 0:
                    layer.crop(-more)
            for t in range(n - 1, n - 1 + STEPS):
                output = model(tokens[:, t : t + 1], past_key_values=cache).logits
        return output

    calls = {name: partial(decode, *of) for name, of in caches.items()}
    for name, call in calls.items():
        if not (distance := apart(call(), calls["static cache"]())) <= 1e-4:
            raise WrongError(f"a step of generate over {n} keys with {name} is {distance:.2g} from the static cache.")
    return calls


def _steps(n: int) -> Any:
    """Return a call that attends to n tokens; the last token is removed before each call."""
    attention, cache, _, _ = _layer(n - 1, 1)
    x = torch.randn(1, 1, WIDTH)

    def step() -> Any:
        cache.crop(n - 1)
        with torch.no_grad():
            return attention(x, cache=cache)

    return step


def _race(calls: dict[str, Any], setting: Setting) -> Race:
    """Run `ROUNDS` rounds, or fewer if a round takes more than a second."""
    start = time.process_time()
    for call in calls.values():
        call()
    long = time.process_time() - start > 1
    return race(calls, setting.rounds if setting.quick or long else ROUNDS, SAMPLE)


def rows(setting: Setting) -> Iterator[Row]:
    """Measure the time of steps at several lengths and against recomputing all keys, then memory."""
    torch.set_num_threads(1)
    longest = 256 if setting.quick else 2048
    _check()
    shapes = [(n, batch) for n in (32, 128, 512, 2048, 8192, 32768) for batch in (1, 4, 16)]
    for dtype, some in ((torch.float32, shapes), (torch.bfloat16, [(128, 1), (2048, 1), (2048, 4)])):
        for n, batch in setting.some([(n, b) for n, b in some if n * b <= 2**17], 4):
            setting.say(f"{n:,} keys, batch {batch}, {dtype}")
            times = _race(_contest(n, batch, dtype), setting)
            case = f"{STEPS} steps from {n:,} keys on, batch {batch}" + (", bfloat16" if dtype.itemsize < 4 else "")
            yield times.row(case, "static buffer", AtMost(1.2), smallest=True)
            yield times.row(case, "torch.cat", AtMost(1.2), smallest=True)
    for n, batch in setting.some([(128, 1), (2048, 1), (2048, 4), (8192, 4)], 4):
        torch.set_num_threads(2)
        times = _race(_contest(n, batch, torch.float32), setting)
        torch.set_num_threads(1)
        for peer in ("static buffer", "torch.cat"):
            case = f"{STEPS} steps from {n:,} keys on, batch {batch}, 2 threads"
            note = "rows on two threads have no goal, because the machine is shared"
            yield times.row(case, peer, clock="wall time", smallest=True, note=note)
    shapes = [(n, batch) for n in (32, 512, 2048) for batch in (1, 4, 16) if n * batch <= 2**14]
    for n, batch in setting.some(shapes, 2):
        setting.say(f"Hugging Face, {n:,} keys, batch {batch}")
        times = _race(_hugging_face(n, batch), setting)
        case = f"Hugging Face, {STEPS} steps from {n:,} keys on, batch {batch}"
        for peer, ours in (("static cache", "qkv"), ("DynamicCache", "qkv"), ("DynamicCache", "qkv, DynamicCache")):
            note = f"{peer}: SDPA with that of transformers"
            yield times.row(case, peer, AtMost(1.2), ours=ours, smallest=True, note=note)
    for batch in (1, 4):
        times = race(_generation(longest, batch), setting.rounds)
        for peer in ("static buffer", "torch.cat"):
            yield times.row(f"{longest:,} tokens one by one, batch {batch}", peer, AtMost(1.2), smallest=True)
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
    from qkv import nn

    (attention, *_), cache = _layer(1, 1), nn.KeyValueCache()
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
    "A decoding step with the cache takes at most 1.2 × the time of one on a preallocated buffer with PyTorch's fused "
    "attention from 32 to 32,768 keys, also under Hugging Face, time linear in the length, and at most 1.1 × the "
    "memory of keys and values.",
    "at most 1.2 × the time on a static buffer and with torch.cat, projections included; at most 2.2 × the time for "
    "twice the length; at most 1.1 × the memory of keys and values; at most 0.1 × the time without a cache",
    (
        "the same layer by hand, on a preallocated buffer, narrowed to the keys, with scaled_dot_product_attention",
        "the same with torch.cat",
        "the same attention without a cache",
        "a Llama of transformers with SDPA, with its static cache and its DynamicCache",
    ),
    rows,
)


if __name__ == "__main__":
    print(json.dumps(_measure(*json.loads(sys.argv[1]))))
