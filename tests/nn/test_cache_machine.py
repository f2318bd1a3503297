"""Random sequences of cache operations give the outputs of plain attention over the tokens of each sequence."""

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import qkv
from qkv import masks, nn, normalizers, scores
from qkv.errors import RefusedError
from qkv.kernels.chunked.kernel import concat_chunks
from qkv.nn.cache import KeyValueCache, chunk_list

WIDTH, HEADS = 4, 2
Rows = list[Any]
"""Query, key and value `(tokens, heads · width)` of one sequence."""


def _outputs(sequence: Rows, window: int | None, score: Any, normalizer: Any) -> Any:
    mask = masks.Causal() if window is None else masks.Window(window - 1, 0)
    sides = [x.unflatten(-1, (-1, WIDTH)).transpose(0, 1) for x in sequence]
    output: Any = qkv.attend(*sides, score=score, normalizer=normalizer, mask=mask, kernel="dense")
    return output.transpose(0, 1).flatten(-2)


class CacheMachine(RuleBasedStateMachine):
    """Caches, each with a model: the query, key and value rows of each of its sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)
        self.caches: list[tuple[KeyValueCache, list[Rows]]] = []
        self.longest = 0

    @initialize(
        chunk=st.sampled_from([1, 2, 5]),
        window=st.sampled_from([None, None, 1, 4, 7]),
        rollback=st.integers(0, 5),
        batch=st.integers(1, 3),
        key_heads=st.integers(1, HEADS),
        one_chunk=st.sampled_from([0, 500, 2**24]),
        score=st.sampled_from([scores.ScaledDot(), scores.ScaledDot(scale=2.0), scores.Gaussian(1.5)]),
        normalizer=st.sampled_from([None, normalizers.Softmax(0.5), normalizers.TopK(3)]),
    )
    def start(
        self,
        chunk: int,
        window: int | None,
        rollback: int,
        batch: int,
        key_heads: int,
        one_chunk: int,
        score: Any,
        normalizer: Any,
    ) -> None:
        self.window, self.options = window, (score, normalizer)
        chunk_list._ONE_CHUNK_BYTES = one_chunk
        self.attention = nn.MultiHeadAttention(
            HEADS * WIDTH, HEADS, key_heads=key_heads, key_width=key_heads * WIDTH, maps="none", value_map=False,
            output_map=False, score=score, normalizer=normalizer, mask=masks.Causal(), dtype=torch.float64,
        )  # fmt: skip
        self.widths = [heads * WIDTH for heads in (HEADS, key_heads, key_heads)]
        empty = [[torch.zeros(0, width, dtype=torch.float64) for width in self.widths] for _ in range(batch)]
        self.caches = [(KeyValueCache(chunk=chunk, window=window, rollback=rollback), empty)]

    def draw(self, data: Any) -> int:
        return int(data.draw(st.integers(0, len(self.caches) - 1), label="cache"))

    @rule(data=st.data(), n=st.sampled_from([1, 1, 1, 2, 6]), uneven=st.booleans(), bad=st.sampled_from([0] * 9 + [1]))
    def append(self, data: Any, n: int, uneven: bool, bad: int) -> None:
        at = self.draw(data)
        cache, sequences = self.caches[at]
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
            got = self.attention(*sides, cache=cache)
        self.longest = max(self.longest, *(len(x[0]) for x in sequences), 0 if uneven else n)
        after = [
            [torch.cat([old, x[b, : counts[b]]]) for old, x in zip(sequence, sides, strict=True)]
            for b, sequence in enumerate(sequences)
        ]
        for b, sequence in enumerate(after):
            if counts[b]:
                want = _outputs(sequence, self.window, *self.options)[-counts[b] :]
                torch.testing.assert_close(got[b, : counts[b]].clone(), want, rtol=0, atol=1e-10, equal_nan=True)
        self.caches[at] = (cache, after)

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
    @rule(data=st.data(), share=st.booleans())
    def fork(self, data: Any, share: bool) -> None:
        cache, sequences = self.caches[self.draw(data)]
        self.caches.append((cache.fork() if share else cache.copy(), sequences))

    @rule(data=st.data())
    def compare(self, data: Any) -> None:
        cache, sequences = self.caches[self.draw(data)]
        lengths = [len(x[0]) for x in sequences]
        assert torch.as_tensor(cache.start).expand(len(lengths)).tolist() == lengths or not cache.chunks
        assert len(cache) == max(lengths)
        if not cache.chunks:
            return
        first = cache.chunks[0].start
        for kept, side in zip(cache.key_value(), (1, 2), strict=True):
            for b, sequence in enumerate(sequences):
                want = sequence[side][first:]
                got = concat_chunks(kept)[b, :, : len(want)].transpose(0, 1).flatten(1)
                assert torch.equal(got.nan_to_num(), want.nan_to_num())

    def teardown(self) -> None:
        chunk_list._ONE_CHUNK_BYTES = 16 * 2**20


def test_random_operations_on_caches_equal_attention_over_plain_lists_of_tokens() -> None:
    _run(15)


@pytest.mark.long
def test_many_random_operations_on_caches_equal_attention_over_plain_lists_of_tokens() -> None:
    _run(300)


def _run(examples: int) -> None:
    # Shrinking a failing sequence takes minutes; the error and the sequence are enough to find the cause.
    options = settings(
        max_examples=examples, stateful_step_count=25, deadline=None, derandomize=True, phases=[Phase.generate]
    )
    run_state_machine_as_test(CacheMachine, settings=options)
