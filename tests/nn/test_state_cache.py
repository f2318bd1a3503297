"""The state of linear attention gives, token by token, the outputs of the whole sequence."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import masks, nn, normalizers, scores
from qkv.errors import GradientError, KindError, OptionError, RefusedError, ShapeError
from tests.effort import cases


def pieces(n: int, cuts: list[int]) -> list[slice]:
    ends = sorted({min(c, n) for c in cuts} | {0, n})
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


def drawn_score(kind: str, heads: int, gates: torch.Tensor) -> Any:
    return {
        "dot": lambda: scores.Dot(0.5),
        "features": scores.Features,
        "number": lambda: scores.Decay(scores.Dot(), -torch.rand(1, heads, dtype=torch.float64)),
        "per key": lambda: scores.Decay(scores.Features(), None, gates[..., :1]),
        "per feature": lambda: scores.Decay(scores.Dot(), None, gates),
    }[kind]()


@settings(max_examples=cases(20))
@given(
    kind=st.sampled_from(["dot", "features", "number", "per key", "per feature"]),
    divides=st.booleans(),
    n=st.integers(1, 70),
    cuts=st.lists(st.integers(0, 70), max_size=8),
    shared=st.booleans(),
    seed=st.integers(0, 9),
)
def test_pieces_of_a_sequence_give_the_outputs_of_the_whole(
    kind: str, divides: bool, n: int, cuts: list[int], shared: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    query = torch.randn(2, 3, n, 4, dtype=torch.float64)
    key, value = (torch.randn(2, 1 if shared else 3, n, 4, dtype=torch.float64) for _ in range(2))
    gates = -torch.rand(2, 3, n, 4, dtype=torch.float64)
    whole = drawn_score(kind, 3, gates)
    normalizer = normalizers.Sum() if divides and whole.form.nonnegative else normalizers.Identity()
    real = torch.rand(n) < 0.8
    expected = qkv.attend(
        query,
        key,
        value,
        score=whole,
        normalizer=normalizer,
        mask=masks.Causal() & masks.AllowedKeys(real),
        kernel="dense",
    )
    cache, outputs = nn.StateCache(), []
    for rows in pieces(n, cuts):
        q, k, v, g = (x[..., rows, :] for x in (query, key, value, gates))
        score = whole if kind == "number" else drawn_score(kind, 3, g)
        mask = masks.Causal() & masks.AllowedKeys(real[rows])
        outputs.append(cache.attend(q, k, v, score=score, normalizer=normalizer, mask=mask))
    torch.testing.assert_close(torch.cat(outputs, dim=-2), expected, rtol=1e-10, atol=1e-12)
    assert len(cache) == n


@pytest.mark.parametrize("normalizer", [normalizers.Identity(), normalizers.Sum()], ids=str)
@pytest.mark.parametrize("decayed", [False, True])
def test_modules_decode_with_a_state_as_without_a_cache(normalizer: Any, decayed: bool) -> None:
    torch.manual_seed(0)

    def build(*widths: int, heads: int) -> Any:
        return nn.Decay(*widths, heads=heads, score=scores.Features()) if decayed else scores.Features()

    options = {"normalizer": normalizer, "mask": masks.Causal(), "positions": nn.positions.Rotary(4)}
    if normalizer.sums_to_one:
        options.pop("positions")
    module = nn.MultiHeadAttention(16, 4, key_heads=2, score=build, **options).double()
    x, cache = torch.randn(3, 40, 16, dtype=torch.float64), nn.StateCache()
    with torch.no_grad():
        whole = module(x)
        parts = [module(x[:, :33], cache=cache), *(module(x[:, t : t + 1], cache=cache) for t in range(33, 40))]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_size_of_the_state_does_not_grow_and_reordered_copies_continue_independently() -> None:
    torch.manual_seed(0)
    module = nn.MultiHeadAttention(8, 2, score=nn.Decay, normalizer=normalizers.Identity(), mask=masks.Causal())
    x, cache = torch.randn(2, 30, 8), nn.StateCache()
    with torch.no_grad():
        module(x[:, :1], cache=cache)
        size = cache.nbytes
        module(x[:, 1:20], cache=cache)
        assert cache.nbytes == size == 2 * 2 * 4 * 4 * 4
        swapped = cache.copy().reorder(torch.tensor([1, 0, 0]))
        mixed = torch.cat([x[[1, 0, 0], :20], x[[0, 1, 1], 20:21]], dim=1)
        torch.testing.assert_close(module(x[[0, 1, 1], 20:21], cache=swapped), module(mixed)[:, 20:])
        torch.testing.assert_close(module(x[:, 20:21], cache=cache), module(x[:, :21])[:, 20:])


def test_a_later_nan_reaches_no_earlier_token_and_a_masked_nan_no_token() -> None:
    x = torch.ones(1, 6, 2)
    hurt = x.clone()
    hurt[0, 3] = torch.nan
    output = nn.StateCache().attend(x, hurt, hurt, score=scores.Decay(scores.Dot(), -0.5), mask=masks.Causal())
    assert output[0, :3].isfinite().all()
    assert output[0, 3:].isnan().all()
    real = masks.Causal() & masks.AllowedKeys(torch.tensor([True, True, True, False, True, True]))
    options = {"score": scores.Dot(), "normalizer": normalizers.Identity(), "mask": real}
    assert nn.StateCache().attend(x, hurt, hurt, **options).isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": scores.ScaledDot()}, "normalizer must be Identity or Sum"),
        ({"score": scores.Laplace(), "normalizer": normalizers.Identity()}, "score must be an inner product"),
        ({"score": scores.Features(), "mask": None}, "mask must be causal"),
        ({"score": scores.Features(), "mask": masks.Window(2, 0)}, "mask must be causal"),
        ({"score": scores.Dot(), "normalizer": normalizers.Sum()}, "features must be non-negative"),
        ({"score": scores.Gaussian(), "normalizer": normalizers.Identity()}, "score must not depend on all keys"),
    ],
)
def test_calls_without_a_recurrence_are_refused(options: dict[str, Any], message: str) -> None:
    x, cache = -torch.rand(1, 3, 2), nn.StateCache()
    with pytest.raises(RefusedError, match=message):
        cache.attend(x, abs(x), x, **{"mask": masks.Causal(), **options})
    assert len(cache) == 0
    assert cache.state is None


def test_gradients_and_other_shapes_are_refused_and_leave_the_state_unchanged() -> None:
    x, cache = torch.rand(2, 1, 2), nn.StateCache()
    cache.attend(x, x, x, score=scores.Features())
    state = cache.state
    with pytest.raises(GradientError, match=r"torch.no_grad"):
        cache.attend(x, x.clone().requires_grad_(), x, score=scores.Features())
    with pytest.raises(ShapeError, match=r"must fit the state of shape \(2, 2, 3\), got batch axes \(3,\)"):
        cache.attend(*[torch.rand(3, 1, 2)] * 3, score=scores.Features())
    with pytest.raises(ShapeError, match=r"same length with a StateCache, got 1, 2 and 2"):
        cache.attend(x, *[torch.rand(2, 2, 2)] * 2, score=scores.Features())
    with pytest.raises(RefusedError, match=r"readouts must not be given with a StateCache"):
        nn.Attention(score=scores.Features())(x, cache=cache, readouts=[qkv.readouts.Dense()])
    assert cache.state is state
    assert len(cache) == 1


def test_half_precision_accumulates_the_state_in_float32() -> None:
    torch.manual_seed(0)
    x = torch.rand(1, 200, 4).to(torch.bfloat16)
    cache, outputs = nn.StateCache(), []
    for t in range(200):
        outputs.append(cache.attend(*[x[:, t : t + 1]] * 3, score=scores.Features()))
    assert cache.state is not None
    assert cache.state.dtype == torch.float32
    expected = qkv.attend(*[x.double()] * 3, score=scores.Features(), mask=masks.Causal(), kernel="dense")
    assert float((torch.cat(outputs, dim=1).double() - expected).abs().max()) < 4e-3


@settings(max_examples=cases(15))
@given(
    kind=st.sampled_from(["dot", "features", "number"]),
    normalizer=st.sampled_from([normalizers.Identity(), normalizers.Sum()]),
    steps=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=6),
    rollback=st.integers(0, 8),
)
def test_random_crops_forks_reordering_and_files_give_the_outputs_of_one_call_over_the_tokens_left(
    kind: str,
    normalizer: Any,
    steps: list[tuple[int, int, int]],
    rollback: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    torch.manual_seed(0)
    score = drawn_score("features" if normalizer.sums_to_one else kind, 2, torch.zeros(1))
    tokens = torch.randn(2, 2, 0, 4, dtype=torch.float64)
    cache, path = nn.StateCache(rollback=rollback), tmp_path_factory.mktemp("state") / "cache"
    longest = saved = 0
    for n, removed, action in steps:
        new = torch.randn(2, 2, n, 4, dtype=torch.float64)
        with torch.no_grad():
            got = cache.attend(new, new, new, score=score, normalizer=normalizer, mask=masks.Causal())
        tokens = torch.cat([tokens, new], 2)
        longest = max(longest, tokens.shape[2])
        options = {"score": score, "normalizer": normalizer, "mask": masks.Causal(), "kernel": "dense"}
        want = qkv.attend(tokens, tokens, tokens, **options)
        torch.testing.assert_close(got, want[:, :, -n:], rtol=1e-9, atol=1e-9)
        left = max(0, tokens.shape[2] - removed)
        refusal = ""
        try:
            cache.crop(left)
        except RefusedError as error:
            refusal = str(error)
        if refusal:
            assert left < max(longest - rollback, saved)
            assert f"with rollback={longest - left}, also before saving it." in refusal
        else:
            tokens = tokens[:, :, :left]
        if action == 1:
            fork = cache.fork()
            with torch.no_grad():
                cache.attend(new, new, new, score=score, normalizer=normalizer, mask=masks.Causal())
            cache = fork
        elif action == 2:
            index = torch.tensor([1, 1])
            cache, tokens = cache.reorder(index), tokens[index]
        elif action == 3:
            cache.save(path)
            cache, saved, longest = nn.StateCache.load(path), len(cache), len(cache)
        assert len(cache) == tokens.shape[2]


def test_lengths_that_are_no_number_of_earlier_tokens_are_refused() -> None:
    cache = nn.StateCache(rollback=2)
    for length, error in ((torch.tensor([0]), KindError), (-1, OptionError), (1, OptionError)):
        with pytest.raises(error, match="length must be"):
            cache.crop(length)
