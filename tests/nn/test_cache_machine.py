"""Random sequences of cache operations give the outputs of plain attention over the tokens of each sequence."""

import tempfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import qkv
from qkv import masks, nn, normalizers, scores
from qkv.cache import last_query
from qkv.cache.kernel import concat_chunks
from qkv.errors import DataError, OptionError, RefusedError
from qkv.nn.cache import BlockPool, KeyValueCache, PagedCache, key_value_cache
from tests.effort import LONG

WIDTH, HEADS = 4, 2
Rows = list[Any]
"""Query, key and value `(tokens, heads · width)` of one sequence."""


def _additive() -> scores.Score:
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(2, HEADS, 3, WIDTH, generator=generator, dtype=torch.float64)
    vector = torch.randn(HEADS, 3, generator=generator, dtype=torch.float64)
    return scores.Additive(weights[0].clone(), weights[1].clone(), None, torch.nn.Parameter(vector))


def _bandwidths() -> scores.Score:
    return scores.Softcap(scores.Gaussian(torch.tensor([1.0, 2.0], dtype=torch.float64)), 3.0)


def _slopes() -> scores.Score:
    return scores.ALiBi(scores.ScaledDot(), torch.tensor([0.5, 0.1], dtype=torch.float64))


def _maps() -> scores.Score:
    return scores.Bilinear(torch.linspace(-1, 1, HEADS * WIDTH**2, dtype=torch.float64).reshape(HEADS, WIDTH, WIDTH))


SCORES = [
    scores.ScaledDot(), scores.ScaledDot(scale=2.0), scores.Gaussian(1.5), scores.Cosine(0.3),
    scores.SumOf((scores.Gaussian(1.0), scores.Cosine(1.0))), _additive, _bandwidths, _slopes, _maps,
]  # fmt: skip


NORMALIZERS = [
    None, None, normalizers.Softmax(0.5, sink=0.3), normalizers.TopK(3), normalizers.Sparsemax(),
    normalizers.Entmax15(), normalizers.Sigmoid(), normalizers.Hard(), normalizers.Mean(),
]  # fmt: skip


def _outputs(sequence: Rows, window: int | None, score: Any, normalizer: Any) -> Any:
    mask = masks.Causal() if window is None else masks.Window(window - 1, 0)
    sides = [x.unflatten(-1, (-1, WIDTH)).transpose(0, 1) for x in sequence]
    output: Any = qkv.attend(*sides, score=score, normalizer=normalizer, mask=mask, kernel="dense")
    return output.transpose(0, 1).flatten(-2)


def _quantized(x: Any) -> Any:
    """Return rows `(…, heads · width)` rounded to 255 steps of each head's row; a row that is not finite is NaN."""
    rows = x.unflatten(-1, (-1, WIDTH))
    scale = rows.abs().amax(-1, keepdim=True) / 127
    rounded = torch.where(scale == 0, 0, (rows / scale).round() * scale)
    return torch.where(scale.isfinite(), rounded, torch.nan).flatten(-2)


def _saved_and_loaded(cache: KeyValueCache) -> KeyValueCache:
    with tempfile.TemporaryDirectory() as folder:
        cache.save(f"{folder}/cache")
        return KeyValueCache.load(f"{folder}/cache")


class Machine(RuleBasedStateMachine):
    """Caches, each with a model: the query, key and value rows of each of its sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)
        self.caches: list[tuple[Any, list[Rows]]] = []
        self.longest = 0

    def build(self, window: int | None, key_heads: int, score: Any, normalizer: Any) -> None:
        self.window, self.options = window, (score, normalizer)
        self.attention = nn.MultiHeadAttention(
            HEADS * WIDTH, HEADS, key_heads=key_heads, key_width=key_heads * WIDTH, maps=[], score=score,
            normalizer=normalizer, mask=masks.Causal(), dtype=torch.float64,
        )  # fmt: skip
        self.widths = [heads * WIDTH for heads in (HEADS, key_heads, key_heads)]

    def empty(self, batch: int) -> list[Rows]:
        return [[torch.zeros(0, width, dtype=torch.float64) for width in self.widths] for _ in range(batch)]

    def draw(self, data: Any) -> int:
        return int(data.draw(st.integers(0, len(self.caches) - 1), label="cache"))

    def call(self, cache: Any, sides: Rows) -> Any:
        """Return the output of a call, or None if it is refused."""
        return self.attention(*sides, cache=cache)

    def stored(self, rows: Any) -> Any:
        """Return rows of keys or values as the cache stores them."""
        return rows

    @rule(data=st.data(), n=st.sampled_from([1, 1, 1, 2, 6]), uneven=st.booleans(), bad=st.sampled_from([0] * 9 + [1]))
    def append(self, data: Any, n: int, uneven: bool, bad: int) -> None:
        cache, sequences = self.caches[at := self.draw(data)]
        sides = [
            torch.randn(len(sequences), n, width, generator=self.generator, dtype=torch.float64)
            for width in self.widths
        ]
        if bad:
            sides[data.draw(st.integers(0, 2))][0, 0, 0] = data.draw(st.sampled_from([torch.nan, torch.inf]))
        counts = [n] * len(sequences)
        if uneven:
            counts = data.draw(st.lists(st.integers(0, n), min_size=len(sequences), max_size=len(sequences)))
            cache.set_lengths(torch.tensor(counts))
        with torch.no_grad(), torch.inference_mode(data.draw(st.booleans(), label="inference mode")):
            got = self.call(cache, sides)
        if got is None:
            return
        self.longest = max(self.longest, *(len(x[0]) for x in sequences), 0 if uneven else n)
        stored = [sides[0], *map(self.stored, sides[1:])]
        after = [
            [torch.cat([old, x[b, : counts[b]]]) for old, x in zip(sequence, stored, strict=True)]
            for b, sequence in enumerate(sequences)
        ]
        for b, sequence in enumerate(after):
            if counts[b]:
                want = _outputs(sequence, self.window, *self.options)[-counts[b] :]
                torch.testing.assert_close(got[b, : counts[b]].clone(), want, rtol=0, atol=1e-10, equal_nan=True)
        self.caches[at] = (cache, after)


class CacheMachine(Machine):
    """Caches of one module."""

    @initialize(
        chunk=st.sampled_from([1, 2, 5]),
        window=st.sampled_from([None, None, 1, 4, 7]),
        rollback=st.integers(0, 5),
        batch=st.integers(1, 3),
        key_heads=st.integers(1, HEADS),
        one_chunk=st.sampled_from([0, 500, 2**24, 2**24]),
        products=st.sampled_from([0, 2**20]),
        score=st.sampled_from(SCORES),
        normalizer=st.sampled_from(NORMALIZERS),
    )
    def start(
        self, chunk: int, window: Any, rollback: int, batch: int, key_heads: int, one_chunk: int, products: int,
        score: Any, normalizer: Any,
    ) -> None:  # fmt: skip
        key_value_cache._ONE_CHUNK_BYTES, last_query._PRODUCT_ELEMENTS = one_chunk, products
        self.build(window, key_heads, score() if isinstance(score, type(_additive)) else score, normalizer)
        self.caches = [(KeyValueCache(chunk=chunk, window=window, rollback=rollback), self.empty(batch))]

    @rule(factor=st.sampled_from([0.5, 1.25]))
    def train(self, factor: float) -> None:
        for x in self.attention.score.buffers():  # which share memory with the score of the model
            x.data.mul_(factor)

    @rule(data=st.data(), each=st.booleans())
    def crop(self, data: Any, each: bool) -> None:
        cache, sequences = self.caches[at := self.draw(data)]
        lengths = [len(x[0]) for x in sequences]
        left = [data.draw(st.integers(max(0, n - 4), n)) for n in lengths]
        if not each:
            left = [min(left)] * len(left)
        held = [chunk.start for chunk in cache.chunks]
        try:
            cache.crop(torch.tensor(left) if each else left[0])
        except RefusedError:
            assert self.window is not None
            assert min(left) < self.longest - cache.rollback
            assert held[0] > max(0, min(left) - self.window + 1)
            return
        after = [[x[:n] for x in sequence] for sequence, n in zip(sequences, left, strict=True)]
        self.caches[at] = (cache, after)

    @rule(data=st.data())
    def reorder(self, data: Any) -> None:
        cache, sequences = self.caches[at := self.draw(data)]
        index = data.draw(st.lists(st.integers(0, len(sequences) - 1), min_size=1, max_size=4))
        if cache.chunks:
            cache.reorder(torch.tensor(index))
            self.caches[at] = (cache, [sequences[i] for i in index])

    @precondition(lambda self: len(self.caches) < 4)
    @rule(data=st.data(), again=st.sampled_from([KeyValueCache.fork, KeyValueCache.copy, deepcopy, _saved_and_loaded]))
    def fork(self, data: Any, again: Any) -> None:
        cache, sequences = self.caches[self.draw(data)]
        self.caches.append((again(cache), sequences))

    @rule(data=st.data())
    def compare(self, data: Any) -> None:
        cache, sequences = self.caches[self.draw(data)]
        lengths = [len(x[0]) for x in sequences]
        assert torch.as_tensor(cache.start).expand(len(lengths)).tolist() == lengths or not cache.chunks
        assert len(cache) == max(lengths)
        if not cache.chunks:
            return
        first = cache.chunks[0].start
        for kept, side in zip(_saved_and_loaded(cache).key_value(), (1, 2), strict=True):
            for b, sequence in enumerate(sequences):
                want = sequence[side][first:]
                got = concat_chunks(kept)[b, :, : len(want)].transpose(0, 1).flatten(1)
                assert torch.equal(got.nan_to_num(), want.nan_to_num())

    def teardown(self) -> None:
        key_value_cache._ONE_CHUNK_BYTES, last_query._PRODUCT_ELEMENTS = 16 * 2**20, 2**20


class PagedMachine(Machine):
    """Paged caches of one pool."""

    blocks = 40

    @initialize(
        size=st.sampled_from([1, 2, 5]),
        window=st.sampled_from([None, None, 1, 4, 7]),
        batch=st.integers(1, 3),
        key_heads=st.integers(1, HEADS),
        score=st.sampled_from([scores.ScaledDot(), scores.Gaussian(1.5)]),
        normalizer=st.sampled_from([None, normalizers.TopK(3)]),
        int8=st.booleans(),
    )
    def start(
        self, size: int, window: int | None, batch: int, key_heads: int, score: Any, normalizer: Any, int8: bool
    ) -> None:
        self.pool = BlockPool(self.blocks, key_heads, WIDTH, size=size, int8=int8, dtype=torch.float64)
        # What a released block holds must not matter.
        for name, x in self.pool.tensors.items():
            x.fill_(torch.nan if name.startswith("key") and x.is_floating_point() else 77)
        self.build(window, key_heads, score, normalizer)
        self.caches = [(PagedCache(self.pool, window=window), self.empty(batch))]

    def call(self, cache: Any, sides: Rows) -> Any:
        free = self.pool.free
        try:
            return super().call(cache, sides)
        except RefusedError:
            assert self.pool.free == free
            cache._new_lengths = None
            return None

    def stored(self, rows: Any) -> Any:
        return _quantized(rows) if self.pool.int8 else rows

    @rule(data=st.data(), each=st.booleans())
    def crop(self, data: Any, each: bool) -> None:
        cache, sequences = self.caches[at := self.draw(data)]
        left = [data.draw(st.integers(max(0, len(x[0]) - 4), len(x[0]))) for x in sequences]
        left = left if each else [min(left)] * len(left)
        try:
            cache.crop(torch.tensor(left) if each and len(cache) else left[0])
        except RefusedError:
            assert self.window is not None
            assert cache._first > max(0, min(left) - self.window + 1)
            return
        self.caches[at] = (cache, [[x[:n] for x in sequence] for sequence, n in zip(sequences, left, strict=True)])

    @rule(data=st.data())
    def reorder(self, data: Any) -> None:
        cache, sequences = self.caches[at := self.draw(data)]
        index = data.draw(st.lists(st.integers(0, len(sequences) - 1), min_size=1, max_size=4))
        if cache._tables:
            free = self.pool.free
            cache.reorder(torch.tensor(index))
            assert self.pool.free >= free  # no token is copied
            self.caches[at] = (cache, [sequences[i] for i in index])

    @precondition(lambda self: len(self.caches) < 4)
    @rule(data=st.data())
    def fork(self, data: Any) -> None:
        cache, sequences = self.caches[self.draw(data)]
        free = self.pool.free
        self.caches.append((cache.fork(), sequences))
        assert self.pool.free == free

    @precondition(lambda self: len(self.caches) < 4)
    @rule(data=st.data())
    def save_and_load(self, data: Any) -> None:
        cache, sequences = self.caches[self.draw(data)]
        free = self.pool.free
        with tempfile.TemporaryDirectory() as folder:
            cache.save(f"{folder}/cache")
            if cache.blocks > free:
                with pytest.raises(RefusedError, match="must have"):
                    PagedCache.load(f"{folder}/cache", self.pool)
                assert self.pool.free == free
                return
            again = PagedCache.load(f"{folder}/cache", self.pool)
        assert self.pool.free == free - cache.blocks
        self.caches.append((again, sequences))

    @rule(data=st.data())
    def release(self, data: Any) -> None:
        cache, sequences = self.caches[at := self.draw(data)]
        cache.release()
        self.caches[at] = (cache, self.empty(len(sequences)))

    @rule()
    def compare(self) -> None:
        owned: list[int] = []
        for cache, sequences in self.caches:
            lengths = [len(x[0]) for x in sequences]
            assert len(cache) == max(lengths)
            if len(cache):
                for side, kept in enumerate(cache.key_value(), 1):
                    for b, sequence in enumerate(sequences):
                        want = sequence[side][cache._first :]
                        got = concat_chunks(kept)[b, :, : len(want)].transpose(0, 1).flatten(1)
                        torch.testing.assert_close(got.nan_to_num(), want.nan_to_num(), rtol=0, atol=1e-12)
            owned += [block for table in cache._tables for block in table]
            if cache._tables:
                assert torch.as_tensor(cache.start).expand(len(lengths)).tolist() == lengths
                used = [max(0, -(-n // self.pool.size) - cache._dropped) for n in lengths]
                assert [len(table) for table in cache._tables] == used
                if self.window is not None:
                    # At most one block, or the up to 6 tokens of the last call, stays although it is out of reach.
                    assert cache._first + self.pool.size > max(0, min(cache._before) - self.window + 1) - 6
        assert self.pool.free == self.blocks - len(set(owned))
        assert self.pool._owners == [owned.count(block) for block in range(self.blocks)]


@pytest.mark.parametrize(("machine", "examples"), [(CacheMachine, 15), (PagedMachine, 10)])
def test_random_operations_on_caches_equal_attention_over_plain_lists_of_tokens(
    machine: type[Machine], examples: int
) -> None:
    # Shrinking a failing sequence takes minutes; the error and the sequence are enough to find the cause.
    options = settings(
        max_examples=300 if LONG else examples,
        stateful_step_count=25,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
    )
    run_state_machine_as_test(machine, settings=options)


def test_a_full_pool_refuses_a_call_and_leaves_cache_and_pool_unchanged() -> None:
    pool = BlockPool(4, 1, WIDTH, size=2)
    cache = PagedCache(pool)
    x = torch.randn(1, 1, 7, WIDTH)
    cache.append(x, x)
    other = cache.fork()
    with pytest.raises(RefusedError, match="must have 1 free blocks of 2 tokens, got 0 of 4"):
        other.append(x[:, :, :1], x[:, :, :1])  # into a shared block
    assert (len(other), pool.free) == (7, 0)
    cache.release()
    other.append(x[:, :, :1], x[:, :, :1])
    assert (len(other), pool.free) == (8, 0)
    other.crop(2)
    assert pool.free == 3


def test_a_saved_paged_cache_holds_no_token_of_other_caches_and_is_loaded_into_an_equal_pool_alone(
    tmp_path: Path,
) -> None:
    pool = BlockPool(4, 1, WIDTH, size=4, int8=True)
    other, cache = PagedCache(pool), PagedCache(pool)
    secret = torch.full((1, 1, 4, WIDTH), 0.125)
    other.append(secret, secret)
    other.release()
    cache.append(torch.ones(1, 1, 2, WIDTH), torch.ones(1, 1, 2, WIDTH))
    path = tmp_path / "cache"
    cache.save(path)
    from safetensors.torch import load_file

    saved = load_file(path)
    assert saved["value_scale"][0, :, 0].tolist() == pytest.approx([1 / 127, 1 / 127, 0, 0])
    assert saved["key"][0, 2:].count_nonzero() == 0
    for wrong in ({"size": 2}, {"int8": False}, {"dtype": torch.float64}, {"heads": 2}, {"width": 3}):
        options = {"heads": 1, "width": WIDTH, "size": 4, "int8": True} | wrong
        with pytest.raises(OptionError, match=r"pool must have the size of blocks.*Build such a pool\."):
            PagedCache.load(path, BlockPool(4, **options))
    with pytest.raises(DataError, match=r"Pass a file written by KeyValueCache\.save\."):
        KeyValueCache.load(path)
    KeyValueCache().save(path)
    with pytest.raises(DataError, match=r"Pass a file written by PagedCache\.save\."):
        PagedCache.load(path, pool)


def test_a_call_of_padding_alone_after_a_window_gave_back_all_blocks_gives_zeros() -> None:
    for int8 in (False, True):
        cache = PagedCache(BlockPool(8, 1, WIDTH, size=1, int8=int8), window=1)
        attention = nn.Attention(mask=masks.Causal())
        x = torch.randn(1, 1, 2, WIDTH)
        attention(x, cache=cache)
        output = attention(x[:, :, :1], cache=cache.set_lengths(torch.tensor([0])))
        assert torch.equal(output, torch.zeros(1, 1, 1, WIDTH))


def test_a_pool_of_int8_takes_a_quarter_of_the_memory_and_a_scale_for_each_row() -> None:
    plain, int8 = (BlockPool(3, 2, 64, size=16, int8=int8).nbytes for int8 in (False, True))
    assert int8 == plain // 4 + plain // 64
