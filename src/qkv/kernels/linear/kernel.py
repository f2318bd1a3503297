"""Kernel of linear attention, for inner products of features under normalizers that are linear in the logits.

The output is then φ(Q) (φ(K)ᵀ V), divided by φ(Q) Σ φ(K) for the normalizer `Sum`: the matrix of weights is never
computed, and time and memory are linear in the numbers of queries and keys.

`product.py` computes this product, and with a causal mask passes a state from chunk to chunk of the keys
(`recurrence.py`).

Source: Katharopoulos et al. (2020), Transformers are RNNs: fast autoregressive transformers with linear attention,
https://arxiv.org/abs/2006.16236.
"""

from __future__ import annotations

import itertools
import math
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from qkv.core.arrays import cast, ignore_numpy_warnings, is_array, namespace, requires_gradient, statically_known_true
from qkv.core.equation import BoundCall
from qkv.core.guard import all_finite
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, Float, Num, OutputArray, Tensor
from qkv.kernels import LAZY_KERNELS
from qkv.kernels.linear.decay import CHUNK_OF_DECAYS
from qkv.kernels.linear.product import Recurrence, linear_attention, split_causal
from qkv.kernels.linear.recurrence import CHUNK, recur
from qkv.kernels.runtime.memory_model import lifted_elements
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work
from qkv.scores.base import Score
from qkv.scores.forms import Decayed, Product

if TYPE_CHECKING:
    from qkv.core.equation import TorchCall


_LEAST = 2**16
"""Smallest number of elements of the queries of a batch element that is computed alone."""


def product_of_elements(
    left: Float[Tensor, "*_ q features"],
    right: Float[Tensor, "*_ k features"],
    value: Float[Tensor, "*_ k value_width"],
    divides: bool,
    nonnegative: bool,
) -> tuple[Float[Tensor, "*_ q value_width"] | None, str] | None:
    """Return the output of a call without a gradient and without a mask, or None if its elements are short.

    Args:
        left: features of the queries.
        right: features of the keys.
        divides: whether to divide by the sum of the logits.
        nonnegative: whether the features must be checked for negative numbers.

    Returns:
        The output, or None and the reason why the data has no product form. None if batch axes are broadcast, or if
        elements are so short that the products of the whole batch are faster.
    """
    import torch

    batch = left.shape[:-2]
    if right.shape[:-2] != batch or value.shape[:-2] != batch:
        return None
    if torch.is_grad_enabled() and (left.requires_grad or right.requires_grad or value.requires_grad):
        return None
    if min(left.shape[-2], right.shape[-2]) * left.shape[-1] < _LEAST:
        return None
    output = value.new_empty((*batch, left.shape[-2], value.shape[-1]))
    with torch.no_grad():
        for index in itertools.product(*map(range, batch)):
            q, k, out = left[index], right[index], output[index]
            if nonnegative and not bool((k.min() >= 0) & (q.min() >= 0)):
                return None, "a feature is negative or NaN"
            state = k.mT @ value[index]
            torch.mm(q, state, out=out)
            checked = out.sum()
            if divides:
                total = torch.mv(q, k.sum(0))
                checked = state.sum() + total.sum()
                out.mul_(total.reciprocal().masked_fill_(total == 0, 0.0).unsqueeze(-1))
            if not bool(checked.isfinite()):
                return None, "not all finite"
    return output, ""


def _fallback(library: str) -> Kernel:
    """Return the kernel that runs a call whose data the product form does not allow."""
    name = {"torch": "tiled", "numpy": "numpy_blocks", "jax": "jax_loops"}[library]
    return next(each.kernel for each in LAZY_KERNELS if each.name == name)


Parts = tuple[Score, Normalizer, Mask | None, Positions | None]
Static = tuple[int, int, tuple[int, ...]]
"""The numbers of queries and keys, and the batch axes."""


@dataclass(frozen=True)
class LinearKernel(Kernel):
    """Kernel of linear attention, for scores that are inner products under the normalizers `Sum` and `Identity`.

    Masks may be causal, masks of keys, or both. With decays (`Decay`) they must be causal.
    """

    name: ClassVar[str] = "linear"
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "torch", "jax")
    runs_on_gpu: ClassVar[bool] = True
    guards: ClassVar[tuple[str, ...]] = (
        "if everything is finite, no decay grows, and for Sum no feature is negative: the product form; else: the "
        "pairs, tile by tile",
    )

    def limits(self, problem: Problem) -> Iterator[str]:
        score, normalizer = problem.score, problem.normalizer
        if not normalizer.linear:
            yield f"it supports only weights that are linear in the logits, not {normalizer}"
        decays = isinstance(score.form, Decayed)
        features = score.form.inner if decays else score
        if features is None or not isinstance(features.form, Product):
            yield f"{features} is not an inner product"
        if problem.readouts:
            yield "it never computes the weights that readouts need"
        if problem.spec.dropout:
            yield "it never computes the weights that dropout drops"
        _, offset, exact = split_causal(problem.score, problem.spec.mask, problem.tile)
        if not exact:
            at = " at the positions of the decays" if decays else ""
            yield f"the mask {problem.spec.mask} is neither causal{at} nor a mask of keys"
        elif decays and offset is None:
            yield "decays are a recurrence only with a causal mask"

    def describe(self, problem: Problem) -> str:
        axes, score = problem.axes, problem.score
        width = score.lifted_width(axes.query_width, axes.key_width)
        notes = [f"rewritten as φ(Q) (φ(K)ᵀ V) with {width} features", score.lift_description()]
        if split_causal(problem.score, problem.spec.mask, problem.tile)[1] is not None:
            size = CHUNK_OF_DECAYS if isinstance(score.form, Decayed) else CHUNK
            notes.append(f"causal: a state of {width} × {axes.value_width}, passed on every {size} keys")
        if isinstance(score.form, Decayed):
            notes.append("the state decays at each key")
        return "; ".join(note for note in notes if note)

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the work of two products with the state, and for a causal mask of the pairs of each chunk."""
        axes, score = problem.axes, problem.score
        features = score.lifted_width(axes.query_width, axes.key_width)
        columns = axes.value_width + problem.normalizer.sums_to_one
        causal = split_causal(problem.score, problem.spec.mask, problem.tile)[1] is not None
        rows = axes.batch_size * axes.q
        keys = max(math.prod(axes.key[:-1]), math.prod(axes.value[:-1]))
        step = CHUNK * (_chunks_per_block(axes.batch_size) if problem.device.is_gpu else 1)
        amounts = amounts_of_work(problem, 0.0, -(-axes.q // step) if causal else 0)
        amounts["products"] = features * columns * (rows + keys) + rows * CHUNK * (features + columns) * causal
        amounts["flop"] = 2 * amounts["products"] * (3.5 if problem.gradient else 1)
        elements = rows * columns * (2 if problem.normalizer.sums_to_one else 1)
        if isinstance(score.form, Decayed):
            # One exponential per pair of a chunk, or some per feature, and the states of all chunks.
            elements += rows * (40 * features if score.form.per_feature else 3 * CHUNK)
            elements += (rows // CHUNK + 1) * features * columns * 4
        amounts["elements"] = elements + 2 * rows * CHUNK * causal
        return amounts

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of the features, the states and the normalization at the peak."""
        return self._scratch_elements(problem) * problem.itemsize + problem.cast_bytes

    def _scratch_elements(self, problem: Problem) -> float:
        axes, score = problem.axes, problem.score
        causal = split_causal(problem.score, problem.spec.mask, problem.tile)[1] is not None
        columns = axes.value_width + problem.normalizer.sums_to_one
        features = score.lifted_width(axes.query_width, axes.key_width)
        left, right = lifted_elements(problem)
        lifted = (left + right) * (score.form.saved.copies if problem.gradient else 1)
        states = axes.batch_size * features * columns * (2.0 if problem.gradient else 1.0)
        rows, keys = (axes.batch_size * n * columns for n in (axes.q, axes.k))
        divides = columns > axes.value_width
        lifting = recurring = 0.0
        if not problem.gradient:
            # While the features of the keys are computed, the output is not there yet.
            passing = score.form.saved.copies - (1 if problem.library == "torch" else 1.5)
            lifting = passing * right - axes.batch_size * axes.q * axes.value_width
        if causal:
            recurring = 2.0 * _BLOCK
            if divides:  # values with a column of 1, and the totals
                recurring += keys if problem.gradient else rows + keys
            elif axes.q > axes.k:  # the output of the queries that have keys, before zeros are joined to it
                recurring += keys
            if problem.gradient:
                states += states / 2 * -(-axes.q // CHUNK) / _chunks_per_block(axes.batch_size)
        resident = lifted + states + max(lifting, recurring, 0.0)
        if not problem.gradient:
            return resident
        dividing = 0.0
        if divides:
            # The sums, the gradients of output and sums, and three arrays of that of the totals, before there are
            # gradients of queries, keys and values.
            results = math.prod(axes.query) + math.prod(axes.key) + math.prod(axes.value)
            dividing = resident + 6.0 * axes.batch_size * axes.q * axes.value_width - results
        return max(resident + max(left, right), dividing)

    def run(self, call: BoundCall, problem: Problem) -> Result:
        run = {"torch": _run_torch, "numpy": _run_numpy, "jax": _run_jax}[problem.library]
        output, reason = run(call, problem)
        if output is None:
            fallback = _fallback(problem.library)
            result = fallback.run(call, problem)
            return Result(result.output, result.readouts, (f"{reason}: {fallback.name}", *result.guards))
        with ignore_numpy_warnings():  # a number may be beyond the largest of float16
            return Result(cast(output, call.out_dtype), (), ("the product form",))


def _chunks_per_block(batch: int) -> int:
    """Return the number of chunks for which the PyTorch recurrence saves one state."""
    return max(1, 2**16 // (CHUNK * CHUNK * max(1, batch)))


_BLOCK = 2**18
"""Number of elements of the temporary arrays of a block of chunks."""
_GROWS = "a decay is above 0 or NaN"
_Attempt = tuple[OutputArray | None, str]
"""The output, or None and the reason why the product form cannot compute it."""


def _may_be_negative(call: BoundCall) -> bool:
    return call.normalizer.nonnegative and not call.score.form.nonnegative


def _grows(score: Score) -> bool:
    """Return whether a decay is above 0, so that its exponentials may overflow."""
    decay = score.form.decay if isinstance(score.form, Decayed) else 0.0
    if not is_array(decay):
        return False  # checked when the score was made
    return 0 not in decay.shape and not statically_known_true(namespace(decay).max(decay) <= 0)


def _any_negative(left: Array, right: Array) -> bool:
    xp = namespace(left)
    return any(0 not in x.shape and not statically_known_true(xp.min(x) >= 0) for x in (right, left))


def _run_torch(call: BoundCall, problem: Problem) -> _Attempt:
    import torch

    from qkv.kernels.linear.recurrence import differentiable_recurrence
    from qkv.kernels.runtime.closure_gradients import refuse_closure_gradients
    from qkv.kernels.runtime.gradients import call_tensors
    from qkv.kernels.runtime.isolated_autograd import project_call

    tensors = typing.cast("TorchCall", call)
    with torch.autocast(tensors.value.device.type, enabled=False):
        if torch.is_grad_enabled() or any(requires_gradient(x) for x in call_tensors(tensors)):
            refuse_closure_gradients(call)
        # Non-finite data shows in the totals, so the inputs need no check.
        projected = project_call(replace(call, finite=(False, False)))
        left, right, value = typing.cast("tuple[Tensor, ...]", (projected.query, projected.key, projected.value))
        if split_causal(call.score, call.mask, call.tile)[:2] == (None, None):
            attempt = product_of_elements(left, right, value, call.normalizer.sums_to_one, _may_be_negative(call))
            if attempt is not None:
                return attempt
        if _may_be_negative(call) and _any_negative(left.detach(), right.detach()):
            return None, "a feature is negative or NaN"
        if _grows(call.score):
            return None, _GROWS
        recurrence = typing.cast("Recurrence", differentiable_recurrence)
        output, totals = linear_attention(call, left, right, recurrence)
        # With NaN or infinity in any array a total is not finite: even excluded keys enter, as 0 · NaN, which is NaN.
        finite = all_finite(typing.cast("Tensor", totals).detach())
        return (output, "") if finite else (None, "not all finite")


def _run_numpy(call: BoundCall, problem: Problem) -> _Attempt:
    with ignore_numpy_warnings():
        left, right = call.score.project(call.query, call.key, call.tile)
        if _may_be_negative(call) and _any_negative(left, right):
            return None, "a feature is negative or NaN"
        if _grows(call.score):
            return None, _GROWS
        output, totals = linear_attention(call, left, right, recur)
        return (output, "") if all_finite(totals) else (None, "not all finite")


def _run_jax(call: BoundCall, problem: Problem) -> _Attempt:
    """Compute the product form, or the pairs if the data is traced and turns out not to allow the product form."""
    import jax

    tile = call.tile
    parts = (call.score, call.normalizer, call.mask, tile.positions)
    static = (tile.q_total, tile.k_total, tile.batch)
    arrays = (call.query, call.key, call.value)
    allowed = _jax_functions()[0](static, *arrays, parts)
    if not isinstance(allowed, jax.core.Tracer):
        if not bool(allowed):
            return None, "not all finite, a feature is negative, or a decay grows"
        return _jax_functions()[1](static, *arrays, parts), ""

    def fallback() -> Array:
        return cast(_fallback("jax").run(call, problem).output, call.value.dtype)

    return jax.lax.cond(allowed, lambda: _jax_functions()[1](static, *arrays, parts), fallback), ""


@cache
def _jax_functions() -> tuple[Callable[..., Array], Callable[..., Array]]:
    """Return compiled functions: whether the data allows the product form, and its output.

    They are defined on first use, because JAX is optional.
    """
    import jax

    def allowed(static: Static, query: Array, key: Array, value: Array, parts: Parts) -> Bool[Array, ""]:
        call, left, right = _bound(static, query, key, value, parts)
        xp = namespace(left)
        good = xp.all(xp.isfinite(call.value))
        for x in (left, right):
            good = good & xp.all(xp.isfinite(x))
            if _may_be_negative(call):
                good = good & xp.all(x >= 0)
        if isinstance(call.score.form, Decayed):
            good = good & xp.all(xp.asarray(call.score.form.decay) <= 0)
        return good

    def output(static: Static, query: Array, key: Array, value: Array, parts: Parts) -> Float[Array, "*_"]:
        return linear_attention(*_bound(static, query, key, value, parts), recur)[0]

    return jax.jit(allowed, static_argnums=0), jax.jit(output, static_argnums=0)


def _bound(
    static: Static, query: Array, key: Array, value: Array, parts: Parts
) -> tuple[BoundCall, Num[Array, "*_"], Num[Array, "*_"]]:
    """Return the call with its arrays, and the features of its queries and keys."""
    score, normalizer, mask, positions = parts
    tile = Tile.whole(*static, positions)
    call = BoundCall(query, key, value, score, normalizer, mask, tile, 0.0, value.dtype)
    return call, *score.project(query, key, tile)
