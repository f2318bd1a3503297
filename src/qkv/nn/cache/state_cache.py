"""State of linear attention for step-by-step generation, whose size does not depend on the number of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

import torch
from torch import Tensor

from qkv.core.arrays import accumulation_dtype, where
from qkv.core.axes import broadcast_batch
from qkv.core.checks import check_integers, describe, is_int
from qkv.core.formatting import memory_text
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.core.typing import Float, Int, Num
from qkv.errors import DataError, GradientError, KindError, OptionError, RefusedError, ShapeError
from qkv.kernels.linear.decay import recur_with_decay
from qkv.kernels.linear.product import divide_by_totals, step_decays, with_ones
from qkv.kernels.linear.recurrence import differentiable_recurrence
from qkv.kernels.runtime.split_mask import split_mask
from qkv.masks import Mask
from qkv.nn.cache.checks import check_index
from qkv.nn.cache.safetensors_file import read_cache, write_cache
from qkv.normalizers import NORMALIZERS, Normalizer
from qkv.scores import Score
from qkv.scores.forms import Decayed, Product


class StateCache:
    """Cache of linear attention: `module(x, cache=cache)` updates a state of fixed size instead of storing keys.

        state = e^g state + φ(k) vᵀ          output = φ(q) state

    A step takes constant time and memory, however many tokens came before. The score must be an inner product of
    features, optionally with decays (`scores.Decay`), the normalizer `Identity` or `Sum`, and the mask causal. One
    cache serves one attention module. It stores no autograd graph: decode under `torch.no_grad()`.

    Args:
        rollback: number of last tokens that `crop` can remove, counted from the largest number of tokens so far. Tokens
            cannot be subtracted from a state exactly, so the state before them is kept, and their features and values.

    Raises:
        OptionError: if `rollback` is not a non-negative integer.

    Example:
        >>> from qkv import masks, nn, normalizers, scores
        >>> retention = scores.Decay(scores.Dot(0.5), torch.tensor([-0.03, -0.01]))
        >>> attention = nn.MultiHeadAttention(8, 2, score=retention, mask=masks.Causal())
        >>> x, cache = torch.randn(3, 7, 8), nn.StateCache()
        >>> with torch.no_grad():
        ...     first = attention(x[:, :5], cache=cache)
        ...     steps = [attention(x[:, t : t + 1], cache=cache) for t in (5, 6)]
        ...     whole = attention(x)
        >>> torch.allclose(torch.cat([first, *steps], dim=1), whole, atol=1e-6), cache
        (True, StateCache(7 tokens, 384 B))
    """

    mask: Mask | None = None

    def __init__(self, *, rollback: int = 0) -> None:
        check_integers(0, rollback=rollback)
        self.state: Float[Tensor, "*batch features columns"] | None = None
        self.rollback = rollback
        self._total = self._largest = 0
        self._calls: list[_Call] = []

    @property
    def start(self) -> int:
        """Position of the next key, which is the number of tokens so far."""
        return self._total

    @property
    def positions(self) -> Positions:
        """Position of query 0 of a call relative to its first key."""
        return Positions(align="start")

    def append(
        self, key: Float[Tensor, "*batch new width"], value: Float[Tensor, "*batch new value_width"]
    ) -> tuple[Float[Tensor, "*batch new width"], Float[Tensor, "*batch new value_width"]]:
        """Return the arguments: the state stands for the earlier keys, and `attend` adds the new ones to it."""
        return key, value

    def attend(
        self,
        query: Float[Tensor, "*#batch new width"],
        key: Float[Tensor, "*#batch new width"],
        value: Float[Tensor, "*#batch new value_width"],
        *,
        score: Score,
        normalizer: Normalizer | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "*batch new value_width"]:
        """Return the outputs of new tokens, each of which attends to all tokens up to itself, and update the state.

        Args:
            query: queries of the new tokens.
            key: keys of the new tokens.
            value: values of the new tokens.
            score: the score. Decays per key are those of the new tokens.
            normalizer: the normalizer; None means the default of the score.
            mask: a causal mask, optionally with a mask of the new keys; None is allowed for one token.

        Raises:
            RefusedError: the score, normalizer or mask has no recurrence, or a feature is negative with `Sum`.
            ShapeError: query, key and value differ in length, or their batch axes or widths differ from the state's.
            GradientError: an argument requires a gradient.
        """
        normalizer = NORMALIZERS[score.default_normalizer]() if normalizer is None else normalizer
        batch = broadcast_batch(query=query.shape[:-2], key=key.shape[:-2], value=value.shape[:-2])
        n = query.shape[-2]
        if key.shape[-2] != n or value.shape[-2] != n:
            raise ShapeError(
                f"query, key and value must have the same length with a StateCache, got {n}, {key.shape[-2]} and "
                f"{value.shape[-2]}. Pass the new tokens only, once each."
            )
        tile = Tile.whole(n, n, batch, self.positions)
        keys = _check_parts(score, normalizer, mask, tile)
        dtype = accumulation_dtype(query, key, value)
        score.check_widths(query.shape[-1], key.shape[-1])
        if score.centre(key) is not None:
            raise RefusedError(
                f"score must not depend on all keys with a StateCache, got {score}. Use nn.KeyValueCache()."
            )
        score = score.bind(query, batch, dtype, {"q": n, "k": n})
        numbers = value.to(dtype)
        left, right = cast("tuple[Tensor, Tensor]", score.project(query.to(dtype), key.to(dtype), tile))
        if keys is not None:
            allowed = keys.bind(query, batch).allowed(tile.restrict((0, 1), (0, n)), query).mT
            right, numbers = (cast("Tensor", where(allowed, x, 0.0)) for x in (right, numbers))
        if normalizer.nonnegative and not score.form.nonnegative and bool((left < 0).any() | (right < 0).any()):
            raise RefusedError(
                f"features must be non-negative for {normalizer} with a StateCache, got a negative one. Use a score "
                "such as Features(), or nn.KeyValueCache()."
            )
        if normalizer.sums_to_one:
            numbers = cast("Tensor", with_ones(numbers))
        decays = cast("Tensor", step_decays(score.form, right, n)) if isinstance(score.form, Decayed) else None
        state = self._matching_state(right, numbers)
        found, after = _run(left, right, numbers, decays, state)
        if n > 1 and not bool(found.isfinite().all()):  # a later NaN must not reach earlier tokens of its chunk
            found, after = _token_by_token(left, right, numbers, decays, state)
        if after.requires_grad or found.requires_grad:
            raise GradientError(
                "query, key and value must not require a gradient with a StateCache, which stores no autograd graph, "
                "got requires_grad=True. Decode under torch.no_grad(), or train on whole sequences without a cache."
            )
        if self.rollback:
            self._calls.append(_Call(self._total, self.state, right, numbers, decays))
            oldest = self._total + n - self.rollback
            self._calls = [call for call in self._calls if call.start + call.right.shape[-2] > oldest]
        self.state, self._total = after, self._total + n
        self._largest = max(self._largest, self._total)
        output = cast("Tensor", divide_by_totals(found)) if normalizer.sums_to_one else found
        return output.expand(*batch, *output.shape[-2:]).to(value.dtype)

    def _matching_state(
        self, right: Float[Tensor, "*_ features"], value: Float[Tensor, "*_ columns"]
    ) -> Float[Tensor, "*_ features columns"]:
        """Return the state, or zeros at the start, after a check that it fits features and values."""
        sizes = (right.shape[-1], value.shape[-1])
        if self.state is None:
            return right.new_zeros(sizes)
        batch, shape = broadcast_batch(key=right.shape[:-2], value=value.shape[:-2]), self.state.shape
        fits = len(batch) <= len(shape) - 2 and all(
            own in (1, old) for own, old in zip(reversed(batch), reversed(shape[:-2]), strict=False)
        )
        if shape[-2:] != sizes or not fits:
            raise ShapeError(
                f"key and value must fit the state of shape {tuple(shape)}, got batch axes {tuple(batch)}, {sizes[0]} "
                f"features and {sizes[1]} columns. Use one cache per module, and reorder to change the batch."
            )
        return self.state

    def __len__(self) -> int:
        """Return the number of tokens so far."""
        return self._total

    @property
    def nbytes(self) -> int:
        """Number of bytes of the state."""
        return 0 if self.state is None else self.state.nbytes

    def reorder(self, index: Int[Tensor, " new_batch"]) -> Self:
        """Replace each batch element b by a copy of batch element `index[b]`, as beam search does.

        Raises:
            KindError: if `index` is not a one-dimensional tensor of integers.
            ShapeError: if the state has no batch axis.
            OptionError: if an index is negative or too large.
        """
        check_index(index, None if self.state is None else tuple(self.state.shape[:-2]))
        if self.state is not None:
            index, batch, axes = index.long().to(self.state.device), self.state.shape[0], self.state.ndim
            self._calls = [call.take(index, batch, axes) for call in self._calls]
            self.state = self.state.index_select(0, index)
        return self

    def crop(self, length: int) -> Self:
        """Remove the last tokens until `length` tokens are left, as speculative decoding does with rejected tokens.

        Raises:
            KindError: if `length` is not an integer.
            OptionError: if `length` is negative or exceeds the number of tokens.
            RefusedError: if the state before these tokens was not kept; see `rollback`.
        """
        if not is_int(length):
            raise KindError(f"length must be an integer with a StateCache, got {describe(length)}. Pass one number.")
        if not 0 <= length <= self._total:
            raise OptionError(
                f"length must be between 0 and the number of tokens, {self._total}, got {length}. "
                "Pass the number of tokens that remain."
            )
        if length == self._total:
            return self
        oldest = self._calls[0].start if self._calls else self._total
        if length < oldest:
            raise RefusedError(
                f"length must be at least {oldest}, because tokens cannot be removed from a state, got {length}. Build "
                f"the cache with rollback={max(self._largest, self._total) - length}, also before saving it."
            )
        call = next(call for call in self._calls if call.start <= length < call.start + call.right.shape[-2])
        remaining = call.first(length - call.start)
        self._calls = [x for x in self._calls if x.start < call.start] + ([remaining] if length > call.start else [])
        self.state, self._total = remaining.after(), length
        return self

    def copy(self) -> StateCache:
        """Return a copy of the cache, which continues independently."""
        other = StateCache(rollback=self.rollback)
        other.state, other._total, other._largest = (
            self.state,
            self._total,
            self._largest,
        )  # states are replaced, never written
        other._calls = list(self._calls)
        return other

    def fork(self) -> StateCache:
        """Return a copy of the cache, which continues independently, as `KeyValueCache.fork` does."""
        return self.copy()

    def save(self, path: str | Path) -> None:
        """Write the state to a safetensors file atomically. `crop` cannot remove tokens from before it was saved.

        Raises:
            MissingPackageError: if safetensors is not installed.
        """
        tensors = {} if self.state is None else {"state": self.state}
        write_cache(Path(path), tensors, {"rollback": self.rollback, "total": self._total}, "state")

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> StateCache:
        """Load a cache from a file that `save` wrote.

        Raises:
            DataError: if the file does not exist or is not a saved state.
            MissingPackageError: if safetensors is not installed.
        """
        tensors, state = read_cache(Path(path), device, "state")
        try:
            cache = cls(rollback=state["rollback"])
            cache._total, cache.state = state["total"], tensors.get("state")
            if (cache.state is None) != (cache._total == 0):
                raise ValueError("the state does not match the number of tokens")
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path} must be a complete state of linear attention, but reading failed: {error!r}. Save it again."
            ) from None
        return cache

    def __repr__(self) -> str:
        return f"StateCache({len(self)} tokens, {memory_text(self.nbytes)})"


@dataclass(frozen=True)
class _Call:
    """Tokens of one call, from which the state after some of them is computed again.

    Attributes:
        start: number of tokens before the call.
        before: state before the call; None at the start.
        right: features of the keys.
        value: values.
        decays: logarithms of the decays, or None.
    """

    start: int
    before: Float[Tensor, "*_ features columns"] | None
    right: Float[Tensor, "*_ n features"]
    value: Float[Tensor, "*_ n columns"]
    decays: Float[Tensor, "*_ n #features"] | None

    def first(self, n: int) -> _Call:
        """Return the first `n` tokens of the call."""
        decays = None if self.decays is None else self.decays[..., :n, :]
        return _Call(self.start, self.before, self.right[..., :n, :], self.value[..., :n, :], decays)

    def take(self, index: Int[Tensor, " new_batch"], batch: int, axes: int) -> _Call:
        """Return the call for the batch elements at the indices `index`; arrays without a batch axis are shared."""

        def select(x: Num[Tensor, "*_"] | None) -> Num[Tensor, "*_"] | None:
            own = x is not None and x.ndim == axes and x.shape[0] == batch
            return x.index_select(0, index) if x is not None and own else x

        right, value = (cast("Tensor", select(x)) for x in (self.right, self.value))
        return _Call(self.start, select(self.before), right, value, select(self.decays))

    def after(self) -> Float[Tensor, "*_ features columns"] | None:
        """Return the state after the call."""
        if not self.right.shape[-2]:
            return self.before
        before = self.before
        if before is None:
            before = self.right.new_zeros(self.right.shape[-1], self.value.shape[-1])
        return _token_by_token(torch.zeros_like(self.right), self.right, self.value, self.decays, before)[1]


def _check_parts(score: Score, normalizer: Normalizer, mask: Mask | None, tile: Tile) -> Mask | None:
    """Check that a call is a recurrence, and return its mask of keys, if any."""
    advice = "Use nn.KeyValueCache()."
    features = score.form.inner if isinstance(score.form, Decayed) else score
    if not normalizer.linear:
        raise RefusedError(f"normalizer must be Identity or Sum with a StateCache, got {normalizer}. {advice}")
    if features is None or not isinstance(features.form, Product) or features.positional:
        raise RefusedError(
            f"score must be an inner product of features of each query and each key with a StateCache, got {score}. "
            f"{advice}"
        )
    keys, offset, exact = split_mask(mask, tile)
    if not exact or (offset != 0 and tile.q_total > 1):
        raise RefusedError(
            f"mask must be causal with a StateCache and {tile.q_total} tokens, got {mask}. Pass mask=masks.Causal(), "
            "or one token at a time."
        )
    return keys


def _run(
    left: Float[Tensor, "*_ n features"],
    right: Float[Tensor, "*_ n features"],
    value: Float[Tensor, "*_ n columns"],
    decays: Float[Tensor, "*_ n #features"] | None,
    state: Float[Tensor, "*_ features columns"],
) -> tuple[Float[Tensor, "*_ n columns"], Float[Tensor, "*_ features columns"]]:
    """Return the outputs and the next state."""
    if left.shape[-2] == 1:
        decayed = state if decays is None else decays.exp().mT * state
        state = decayed + right.mT * value
        return left @ state, state
    if decays is None:
        return differentiable_recurrence(left, right, value, state)
    return cast("tuple[Tensor, Tensor]", recur_with_decay(left, right, value, decays, state))


def _token_by_token(
    left: Float[Tensor, "*_ n features"],
    right: Float[Tensor, "*_ n features"],
    value: Float[Tensor, "*_ n columns"],
    decays: Float[Tensor, "*_ n #features"] | None,
    state: Float[Tensor, "*_ features columns"],
) -> tuple[Float[Tensor, "*_ n columns"], Float[Tensor, "*_ features columns"]]:
    """Return the outputs and the next state, with one step for each token."""
    outputs = []
    for t in range(left.shape[-2]):
        rows = slice(t, t + 1)
        gates = None if decays is None else decays[..., rows, :]
        output, state = _run(left[..., rows, :], right[..., rows, :], value[..., rows, :], gates, state)
        outputs.append(output)
    return torch.cat(outputs, dim=-2), state
