"""Key-value cache: decoding with it equals decoding without it, in little more memory than keys and values."""

import itertools
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import qkv
from qkv import masks, nn, normalizers, readouts, scores
from qkv.cache.kernel import ChunkedTensor, concat_chunks
from qkv.errors import (
    DataError,
    GradientError,
    KindError,
    MissingPackageError,
    OptionError,
    QkvError,
    RefusedError,
    ShapeError,
)
from qkv.nn.cache import KeyValueCache, key_value_cache
from qkv.nn.positions import Rotary

STEPS = (20, 1, 1, 9, 40, 1, 30)


def sides(*batch: int, n: int = sum(STEPS), width: int = 8, dtype: Any = torch.float64) -> list[Any]:
    generator = torch.Generator().manual_seed(n + sum(batch))
    return [torch.randn(*batch, n, width, generator=generator, dtype=dtype) for _ in range(3)]


def decoded(attention: Any, query: Any, key: Any, value: Any, cache: Any, steps: Any = STEPS) -> Any:
    done, found = 0, []
    with torch.no_grad():
        for n in steps:
            rows = slice(done, done + n)
            found.append(attention(query[..., rows, :], key[..., rows, :], value[..., rows, :], cache=cache))
            done += n
    return torch.cat(found, dim=-2)


def apart(one: Any, other: Any) -> float:
    return float((one - other).detach().abs().max())


@pytest.mark.parametrize("kernel", ["dense", "fused", "tiled", "row_blocks"])
def test_every_kernel_for_decoding_shapes_gives_the_output_of_the_cache(kernel: str) -> None:
    x = sides(2, 2)
    chosen = decoded(nn.Attention(mask=masks.Causal()), *x, KeyValueCache(chunk=16))
    pinned = decoded(nn.Attention(mask=masks.Causal(), kernel=kernel), *x, KeyValueCache(chunk=16))
    whole = qkv.attend(*x, mask=masks.Causal(), kernel="dense")
    assert apart(chosen, whole) < 1e-12
    assert apart(pinned, whole) < 1e-12


def test_chunks_are_concatenated_where_rows_of_logits_do_not_fit_the_memory() -> None:
    x = sides(2, n=2600)
    attention = nn.Attention(mask=masks.Causal())
    got = decoded(attention, *x, KeyValueCache(), (1000, 1600))
    assert apart(got, qkv.attend(*x, mask=masks.Causal())) < 1e-12


@pytest.mark.parametrize(
    "options",
    [{}, {"key_heads": 2}, {"key_heads": 1}, {"score": nn.Additive}, {"extensions": ["learned_key", "zero_key"]}],
    ids=str,
)
@pytest.mark.parametrize("turned", [False, True])
def test_multi_head_attention_gives_the_same_step_by_step_as_at_once(options: Any, turned: bool) -> None:
    torch.manual_seed(0)
    attention = nn.MultiHeadAttention(
        16, 4, mask=masks.Causal(), positions=Rotary(4) if turned else None, dtype=torch.float64, **options
    )
    x, cache = torch.randn(2, 30, 16, dtype=torch.float64), KeyValueCache(chunk=4)
    with torch.no_grad():
        whole = attention(x)
        steps = [attention(x[:, t : t + n], cache=cache) for t, n in ((0, 9), (9, 1), (10, 1), (11, 19))]
    assert apart(torch.cat(steps, dim=1), whole) < 1e-12
    kept = cache.key_value()[0]
    assert kept.shape == (2, options.get("key_heads", 4), 30, 4)


def test_readouts_of_a_step_equal_those_of_the_whole_and_the_plan_names_the_chunked_kernel() -> None:
    x = sides(2)
    cache, seen = KeyValueCache(chunk=16), [readouts.Dense(), readouts.TopWeights(3), readouts.Entropy()]
    attention = nn.Attention()
    decoded(attention, *(y[:, :60] for y in x), cache, (60,))
    with torch.no_grad():
        got = attention(*(y[:, 60:61] for y in x), cache=cache, readouts=seen)
    want = qkv.observe(x[0][:, 60:61], x[1][:, :61], x[2][:, :61], readouts=seen)
    assert apart(got.readouts[0], want.readouts[0]) < 1e-12
    assert torch.equal(got.readouts[1].keys, want.readouts[1].keys)
    assert apart(got.readouts[2], want.readouts[2]) < 1e-12
    assert got.plan.kernel.name == "chunked"


def test_a_small_cache_is_one_chunk_and_rows_of_a_large_one_are_never_copied_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache, key = KeyValueCache(chunk=16), sides(2)[0]
    for t in range(0, 100, 20):
        cache.append(key[:, t : t + 20], key[:, t : t + 20])
    assert len(cache.chunks) == 1
    monkeypatch.setattr(key_value_cache, "_ONE_CHUNK_BYTES", 0)
    cache = KeyValueCache(chunk=16)
    cache.append(key[:, :20], key[:, :20])
    held = cache.chunks[0].tensors["key"].data_ptr()
    for t in range(20, 60):
        keys, _ = cache.append(key[:, t : t + 1], key[:, t : t + 1])
    assert isinstance(keys, ChunkedTensor)
    assert keys.chunks[0].data_ptr() == held
    assert torch.equal(keys.concat(), key[:, :60])
    assert keys.chunks[1].data_ptr() == cache.chunks[1].tensors["key"].data_ptr()


@pytest.mark.parametrize("step", [5, 64])
def test_memory_is_within_a_tenth_of_keys_and_values_from_2048_tokens_on(step: int) -> None:
    cache, row = KeyValueCache(), torch.ones(1, 2, step, 4)
    counts = []
    for n in range(step, 12_000, step):
        cache.append(row, row)
        assert cache.nbytes <= 2 * 2 * 4 * 4 * (n + max(128, n // 16))
        if n >= 2048:
            assert cache.nbytes <= 1.1 * 2 * 2 * 4 * 4 * n
        counts.append((n, len(cache.chunks)))
    # Few chunks: 16 up to 2,048 tokens, then 16 for each factor of e.
    assert all(chunks <= 18 + max(0, 20 * math.log(n / 2048)) for n, chunks in counts)


def test_a_chunk_is_added_only_when_the_last_is_full() -> None:
    cache, row = KeyValueCache(chunk=128), torch.ones(1, 1, 4)
    sizes = []
    for _ in range(2048):
        cache.append(row, row)
        sizes.append(cache.nbytes)
    assert len(set(sizes)) == 16
    assert cache.nbytes == 2 * 2048 * 4 * 4


class Made(TorchDispatchMode):
    """Count the bytes of newly allocated arrays, and the matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.products = 0, 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        result = operator(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in given:
                self.bytes += x.untyped_storage().nbytes()
        aten = torch.ops.aten
        self.products += operator.overloadpacket in (aten.bmm, aten.mm, aten.baddbmm, aten.baddbmm_)
        return result


@pytest.mark.parametrize("heads", [4, 1])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_step_copies_no_keys_and_its_work_is_linear_in_the_length(
    heads: int, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chunked:
        monkeypatch.setattr(key_value_cache, "_ONE_CHUNK_BYTES", 0)
    torch.manual_seed(0)
    attention = nn.MultiHeadAttention(64, 4, key_heads=heads, mask=masks.Causal())
    made = {}
    for n in (512, 1024, 2048):
        cache, x = KeyValueCache(), torch.randn(1, n - 1, heads, 16).transpose(1, 2)
        for t in range(0, n - 1, 128):
            cache.append(x[:, :, t : t + 128], x[:, :, t : t + 128])
        with torch.no_grad(), Made() as seen:
            attention(torch.randn(1, 1, 64), cache=cache)
        made[n] = seen
        kept = cache.nbytes
        # Rows of logits and weights, of 4 heads, a few times over; keys and values are 2 · 16 · heads wide.
        assert seen.bytes < 20_000 + 6 * 4 * 4 * n
    assert made[2048].bytes < kept
    projections = made[512].products - (2 * 512 // 128 if chunked else 0)
    assert [x.products for x in made.values()] == [(2 * n // 128 if chunked else 0) + projections for n in made]
    growth = made[1024].bytes - made[512].bytes
    assert made[2048].bytes - made[1024].bytes == pytest.approx(2 * growth, rel=0.05, abs=512)


def test_a_window_bounds_memory_however_long_the_sequence_is() -> None:
    cache, row = KeyValueCache(chunk=16, window=64), torch.ones(1, 1, 4)
    cache.append(row.expand(1, 1000, 4), row.expand(1, 1000, 4))
    most = cache.nbytes
    for _ in range(500):
        cache.append(row, row)
        most = max(most, cache.nbytes)
    assert most <= 2 * (64 + 2 * 16) * 4 * 4


LENGTHS = (5, 1, 9)


def test_positions_stay_those_of_the_sequence_when_chunks_are_dropped() -> None:
    torch.manual_seed(2)
    options: Any = {"positions": Rotary(4), "dtype": torch.float64}
    attention = nn.MultiHeadAttention(8, 2, score=nn.ALiBi, mask=masks.Causal(), **options)
    x, cache = torch.randn(2, 40, 8, dtype=torch.float64), KeyValueCache(chunk=4, window=6)
    with torch.no_grad():
        steps = [attention(x[:, t : t + n], cache=cache) for t, n in ((0, 15), *((t, 1) for t in range(15, 40)))]
        whole = attention(x, mask=masks.Window(5, 0))
    assert cache.chunks[0].start > 20
    assert apart(torch.cat(steps, dim=1), whole) < 1e-12


PREPARED = {
    "plain": ({}, {}),
    "window of the cache": ({}, {"window": 5}),
    "window of the module": ({"mask": masks.Causal() & masks.Window(6, 0)}, {}),
    "grouped heads": ({"key_heads": 2}, {}),
    "one key head": ({"key_heads": 1}, {}),
    "rotary": ({"positions": Rotary(4)}, {}),
    "temperature": ({"normalizer": normalizers.Softmax(0.5)}, {}),
    "uneven": ({}, {"lengths": torch.tensor(LENGTHS)}),
    "uneven in a window": ({"mask": masks.Window(3, 0)}, {"lengths": torch.tensor(LENGTHS)}),
    "int8": ({}, {"int8": True}),
}
OF_ONE_CHUNK: dict[str, Any] = {
    "additive per head": ({"score": nn.Additive}, {}),
    "Gaussian": ({"score": scores.Gaussian(2.0)}, {}),
    "Gaussian in a window": ({"score": scores.Gaussian(2.0)}, {"window": 5}),
    "Gaussian of grouped heads": ({"score": scores.Gaussian(2.0), "key_heads": 2}, {}),
    "positions": ({"score": scores.ALiBi(scores.ScaledDot(), torch.tensor([0.5, 0.2, 0.1, 0.0]))}, {}),
    "entmax": ({"normalizer": normalizers.Entmax15()}, {}),
    "learned entmax": ({"normalizer": normalizers.Entmax(torch.tensor([1.2, 1.4, 1.6, 1.8]))}, {}),
    "top-k": ({"normalizer": normalizers.TopK(12)}, {}),
    "uneven sigmoid": ({"normalizer": normalizers.Sigmoid()}, {"lengths": torch.tensor(LENGTHS)}),
    "custom": ({"score": scores.Custom(lambda q, k: -abs(q[..., None, :] - k[..., None, :, :]).sum(-1))}, {}),
}
"""Modules and caches whose steps over one chunk share plans with steps over other numbers of keys."""


@pytest.mark.parametrize(
    ("name", "one_chunk"),
    [*((name, each) for name in PREPARED for each in (True, False)), *((n, True) for n in OF_ONE_CHUNK)],
)
def test_a_step_is_planned_for_no_length_and_equals_the_planned_one(
    name: str, one_chunk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not one_chunk:
        monkeypatch.setattr(key_value_cache, "_ONE_CHUNK_BYTES", 0)
    options, of_cache = (PREPARED | OF_ONE_CHUNK)[name]
    torch.manual_seed(0)
    module = nn.MultiHeadAttention(16, 4, dtype=torch.float64, **{"mask": masks.Causal(), **options})
    x, more = (torch.randn(3, n, 16, dtype=torch.float64) for n in (9, 8))
    cache = KeyValueCache(chunk=4, **of_cache)
    with torch.no_grad():
        module(x, cache=cache)
        other, want, got = cache.copy(), [], []
        with monkeypatch.context() as patch:
            for name in ("decode", "append_and_attend", "attend_step"):
                patch.setattr(f"qkv.nn.multihead.{name}", lambda *args: None)
            want = [module(more[:, t : t + 1], cache=other) for t in range(8)]
        monkeypatch.setattr("qkv.nn.attention.attend_chunked", None)
        got = [module(more[:, t : t + 1], cache=cache) for t in range(8)]
    assert apart(torch.cat(got), torch.cat(want)) < 1e-12


def test_a_step_with_room_in_one_chunk_writes_its_row_and_runs_no_planned_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module, cache, x = nn.MultiHeadAttention(16, 4, mask=masks.Causal()), KeyValueCache(), torch.randn(2, 9, 16)
    rotated, other = nn.MultiHeadAttention(16, 4, positions=nn.positions.Rotary(4), key_heads=2), KeyValueCache()
    with torch.no_grad():
        want = module(x)
        module(x[:, :4], cache=cache)
        rotated(x[:, :4], cache=other)
        monkeypatch.setattr("qkv.nn.multihead.attend_step", None)
        got = [module(x[:, t : t + 1], cache=cache) for t in range(4, 9)]
        for t in range(4, 9):
            rotated(x[:, t : t + 1], cache=other)
    assert apart(torch.cat(got, 1), want[:, 4:]) < 1e-6
    assert len(cache) == len(other) == 9


@pytest.mark.thinned
@pytest.mark.parametrize("side", [0, 1, 2])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_equals_plain_attention_also_over_data_that_is_not_finite(side: int, bad: float, dtype: Any) -> None:
    kinds = itertools.product([(2, 2), (2,)], [scores.ScaledDot(), scores.Gaussian(1.5)], [2, 128])
    for batch, score, chunk in kinds:
        x = [y.to(dtype) for y in sides(*batch, n=4)]
        x[side].view(-1, 4, 8)[0, 3 if side == 0 else 2, 0] = bad
        got = decoded(nn.Attention(score=score, mask=masks.Causal()), *x, KeyValueCache(chunk=chunk), (1, 1, 1, 1))
        want = qkv.attend(*x, score=score, mask=masks.Causal(), kernel="dense")
        torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2, equal_nan=True)


def test_a_fork_shares_the_memory_of_the_tokens_before_it_and_later_tokens_are_its_own() -> None:
    x = sides(2, n=30)[1]
    cache = KeyValueCache(chunk=8)
    cache.append(x[:, :20], x[:, :20])
    forks = [cache.fork(), cache.fork().fork()]
    address = cache.chunks[0].tensors["key"].data_ptr()
    for t, one in enumerate((cache, *forks)):
        one.append(x[:, 20 + t : 22 + t], x[:, 20 + t : 22 + t])
    for t, one in enumerate((cache, *forks)):
        assert one.chunks[0].tensors["key"].data_ptr() == address
        assert torch.equal(concat_chunks(one.key_value()[0]), torch.cat([x[:, :20], x[:, 20 + t : 22 + t]], 1))
    forks[0].crop(10).append(x[:, 25:27], x[:, 25:27])  # replaces shared tokens
    assert torch.equal(concat_chunks(forks[0].key_value()[0]), torch.cat([x[:, :10], x[:, 25:27]], 1))
    assert torch.equal(concat_chunks(cache.key_value()[0]), x[:, :22])


def test_padding_alone_can_follow_when_all_keys_left_the_window() -> None:
    x, cache = sides(2, n=3), KeyValueCache(chunk=1, window=1)
    attention = nn.Attention(mask=masks.Causal())
    with torch.no_grad():
        attention(*(y[:, :1] for y in x), cache=cache)
        attention(*(y[:, 1:2] for y in x), cache=cache.set_lengths(torch.tensor([0, 0])))
        got = attention(*(y[:, 2:] for y in x), cache=cache)
    assert torch.equal(torch.as_tensor(cache.start), torch.tensor([2, 2]))
    assert apart(got, x[2][:, 2:]) < 1e-12


def test_a_refused_append_leaves_the_cache_as_it_was() -> None:
    x = sides(1, n=64)[0]
    cache = KeyValueCache(chunk=8, memory=2 * 24 * 8 * 8)
    cache.append(x[:, :6], x[:, :6])
    kept = cache.key_value()[0].concat()
    with pytest.raises(RefusedError, match=r"must be at least .* KiB to add"):
        cache.append(x[:, 6:], x[:, 6:])
    assert len(cache) == cache.start == 6
    assert torch.equal(cache.key_value()[0].concat(), kept)
    got, _ = cache.append(x[:, 6:20], x[:, 6:20])
    assert torch.equal(got.concat(), x[:, :20])


def test_an_empty_cache_can_be_saved_copied_and_reordered(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    cache, x = KeyValueCache(), sides(2)[0]
    cache.copy().reorder(torch.tensor([1, 0])).save(tmp_path / "empty")
    again = KeyValueCache.load(tmp_path / "empty")
    keys, _ = again.append(x, x)
    assert torch.equal(keys, x)
    assert again.key_value()[0].shape == x.shape
    padded = KeyValueCache(lengths=torch.tensor([0, 0]))
    padded.append(x, x)
    padded.save(tmp_path / "padding")
    assert KeyValueCache.load(tmp_path / "padding").start.tolist() == [0, 0]
    keys, _ = padded.reorder(torch.tensor([1])).set_lengths(torch.tensor([4])).append(x[:1], x[:1])
    assert padded.start.tolist() == [4]
    assert torch.equal(keys, x[:1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_int8_has_an_error_of_at_most_half_a_step_in_little_more_than_a_quarter_of_the_memory(dtype: Any) -> None:
    x = [y.to(dtype) * scale for y, scale in zip(sides(2, n=256, width=64), (1, 3, 1e-5), strict=True)]
    cache, plain = KeyValueCache(int8=True), KeyValueCache()
    for one in (cache, plain):
        for t in range(0, 256, 64):
            one.append(x[1][:, t : t + 64], x[2][:, t : t + 64])
    for got, want in zip(cache.key_value(), x[1:], strict=True):
        bound = want.float().abs().amax(-1, keepdim=True) / 254
        slack = 1.001 if dtype == torch.float32 else 2.0  # half precision rounds the product
        assert bool(((got.concat().float() - want.float()).abs() <= slack * bound).all())
    assert cache.nbytes / plain.nbytes == pytest.approx((64 + 4) / (64 * x[0].itemsize))


def test_the_error_of_an_int8_output_is_bounded_by_those_of_keys_and_values() -> None:
    x = sides(2, n=100, width=16)
    cache = KeyValueCache(chunk=16, int8=True)
    got = decoded(nn.Attention(mask=masks.Causal()), *x, cache, (20, *([1] * 80)))
    want = qkv.attend(*x, mask=masks.Causal())
    # |Δlogit| ≤ Σ|q| · step/2 / √width; weights change by at most a factor of e^(2 |Δlogit|).
    step = [y.abs().amax() / 254 for y in x[1:]]
    logit = x[0].abs().sum(-1).amax() * step[0] / 4
    bound = (math.exp(2 * logit) - 1) * x[2].abs().amax() + step[1]
    error = apart(got, want)
    assert 1e-5 < error < bound


def test_a_row_that_is_not_finite_is_nan_in_int8_and_affects_only_queries_that_attend_to_it() -> None:
    x = sides(1, n=12)
    x[2][0, 3, 1] = math.inf
    got = decoded(nn.Attention(mask=masks.Causal()), *x, KeyValueCache(chunk=4, int8=True), (2, *([1] * 10)))
    assert bool(got[0, :3].isfinite().all())
    assert bool(got[0, 3:, 1].isnan().all())


@pytest.mark.parametrize(
    "options",
    [{}, {"int8": True}, {"window": 10}, {"lengths": torch.tensor([3, 7])}],
    ids=["plain", "int8", "window", "uneven"],
)
def test_a_loaded_cache_continues_like_the_original(tmp_path: Path, options: Any) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    x, attention = sides(2, 2, n=30, dtype=torch.float32), nn.MultiHeadAttention(4, 2, mask=masks.Causal())
    cache, tokens = KeyValueCache(chunk=4, **options), x[0].flatten(1, 2)[..., :4]
    with torch.no_grad():
        attention(tokens[:, :7], cache=cache)
        attention(tokens[:, 7:12], cache=cache)
        cache.save(tmp_path / "cache.safetensors")
        again = KeyValueCache.load(tmp_path / "cache.safetensors")
        for t in range(12, 30):
            one, other = (attention(tokens[:, t : t + 1], cache=c) for c in (cache, again))
            assert apart(one, other) < 1e-6
    assert (again.chunk, again.window, again.int8) == (4, options.get("window"), "int8" in options)
    assert len(again) == len(cache)


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    x = sides(2)
    cache, path = KeyValueCache(), tmp_path / "cache"
    cache.append(x[1], x[2])
    cache.save(path)
    before = path.read_bytes()
    cache.append(x[1], x[2])

    def fail(*args: Any) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no space"):
            cache.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["cache"]


def test_without_safetensors_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for call in (lambda: KeyValueCache().save(tmp_path / "x"), lambda: KeyValueCache.load(tmp_path / "x")):
        with pytest.raises(MissingPackageError, match=r"pip install \"qkv\["):
            call()


def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    from safetensors.torch import save_file

    x, path = sides(2), tmp_path / "cache"
    cache = KeyValueCache()
    cache.append(x[1], x[2])
    cache.save(path)
    whole = path.read_bytes()
    for broken in (b"", b"not a file of tensors", whole[: len(whole) // 2]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match="reading failed"):
            KeyValueCache.load(path)
    with pytest.raises(DataError, match="reading failed"):
        KeyValueCache.load(tmp_path / "missing")
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(DataError, match="must be a key-value cache"):
        KeyValueCache.load(path)
    save_file({"x": torch.zeros(1)}, path, {"kind": "qkv key-value cache 1", "facts": '{"chunk": 4}'})
    with pytest.raises(DataError, match="must be a complete key-value cache"):
        KeyValueCache.load(path)


def test_a_changed_bit_of_a_saved_cache_is_detected(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    x, path = sides(2), tmp_path / "cache"
    cache = KeyValueCache(int8=True)
    cache.append(x[1], x[2])
    cache.save(path)
    whole = path.read_bytes()
    draw = torch.Generator().manual_seed(0)
    for at in torch.randint(len(whole) - 200, len(whole), (20,), generator=draw).tolist():
        changed = bytearray(whole)
        changed[at] ^= 8
        path.write_bytes(changed)
        with pytest.raises(DataError, match="got another checksum"):
            KeyValueCache.load(path)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda c, x: KeyValueCache(chunk=0), OptionError, "chunk must be an integer of at least 1, got 0"),
        (lambda c, x: KeyValueCache(window=0), OptionError, "window must be an integer of at least 1, got 0"),
        (lambda c, x: KeyValueCache(lengths=torch.ones(2)), KindError, "integers"),
        (lambda c, x: KeyValueCache(lengths=torch.ones(2, 2, dtype=torch.int64)), ShapeError, "batch"),
        (lambda c, x: c.append(x[:, :2], x[:, :3]), ShapeError, "shape of key .* except for the width"),
        (lambda c, x: c.append(x[:1], x[:1]), ShapeError, "Use reorder to change the batch"),
        (lambda c, x: c.append(x.float(), x.float()), KindError, "Convert"),
        (lambda c, x: c.append(x.clone().requires_grad_(), x), GradientError, "no_grad"),
        (lambda c, x: c.reorder([0, 1]), KindError, "integers"),
        (lambda c, x: c.crop(-1), OptionError, "length must be between 0 and the number of tokens"),
        (lambda c, x: c.crop(torch.tensor([3, 999])), OptionError, "length must be between 0"),
        (lambda c, x: c.crop(torch.tensor([3])), ShapeError, "one element per batch element"),
        (lambda c, x: c.crop(2.0), KindError, "length must be an integer"),
        (lambda c, x: KeyValueCache(rollback=-1), OptionError, "rollback must be an integer of at least 0"),
        (lambda c, x: KeyValueCache().key_value(), ShapeError, "empty"),
        (lambda c, x: KeyValueCache(memory="4 KiB").append(x.repeat(1, 4, 1), x.repeat(1, 4, 1)),
         RefusedError, "got 4 KiB"),
        (lambda c, x: KeyValueCache(lengths=torch.tensor([1, 2, 3])).append(x, x), ShapeError, "2 batch .*, got 3"),
    ],
)  # fmt: skip
def test_invalid_arguments_of_a_cache_are_refused(call: Any, kind: type[QkvError], words: str) -> None:
    x, cache = sides(2)[0], KeyValueCache()
    cache.append(x, x)
    with pytest.raises(kind, match=words):
        call(cache, x)
