"""Kernel that computes all pairs of all batch elements at once in PyTorch, for short sequences.

The arrays of all pairs are in memory, as in attention written by hand: logits, weights and their gradients. Nothing
is looped over heads or tiles, so that a call costs few operations. Additive scores are expanded into matrix products
(`additive.py`).

Data that is not finite runs on the dense kernel, which keeps it from affecting other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, cast

from qkv.core import arrays
from qkv.core.equation import BoundCall, TorchCall
from qkv.core.formatting import memory_text
from qkv.core.typing import Array, Tensor
from qkv.kernels.dense.kernel import DenseKernel
from qkv.kernels.runtime.closure_gradients import may_close_over_tensors, refuse_closure_gradients
from qkv.kernels.runtime.context import no_autocast
from qkv.kernels.runtime.isolated_autograd import projects_nothing
from qkv.kernels.runtime.memory_model import lifted_elements, pair_arrays, score_arrays
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.plan.kernel_protocol import Kernel, PreparedCall, Result
from qkv.plan.precise_call import lift_suffices
from qkv.plan.problem import Problem
from qkv.plan.time_model import amounts_of_work
from qkv.readouts import LogSumExp
from qkv.scores.base import Score
from qkv.scores.forms import Capped, Distance, Gated, Offset, Product, SquaredDistance, Tanh

if TYPE_CHECKING:
    import torch

    from qkv.kernels.batched.attention import BatchedAttention, Outputs


_MAX_BYTES = 1 << 25
"""Size in bytes of an array of all pairs, with their features if the score holds them, from which it is not chosen."""


_KEPT_PAIRS = 1 << 16
"""Largest number of pairs whose mask, if it holds no arrays, is kept with the plan: 256 KiB."""


@dataclass(frozen=True)
class BatchedKernel(Kernel):
    """Kernel that computes all pairs of all batch elements at once in PyTorch, for short sequences."""

    name: ClassVar[str] = "batched"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    guards: ClassVar[tuple[str, ...]] = (
        "if query, key, value and output are finite: products of all pairs; else: the dense kernel",
    )

    checks_distances: ClassVar[bool] = True

    def limits(self, problem: Problem) -> Iterator[str]:
        from qkv.kernels.batched.row_weights import row_weights

        if row_weights(problem.normalizer, problem.axes.k) is None:
            yield f"it computes softmax without a sink, top-k, sparsemax, entmax and sigmoid, not {problem.normalizer}"
        if problem.axes.text:
            yield "it compares numbers, not text"
        if problem.axes.pairs == 0:
            yield "there are no pairs of a query and a key"

    def unsuited(self, problem: Problem) -> str | None:
        """Return a sentence if an array of all pairs is so large that kernels in linear memory are preferred."""
        elements = 1 if isinstance(problem.score.form, Tanh) else problem.elements_per_logit
        size = problem.axes.pairs * elements * problem.itemsize
        if size < _MAX_BYTES:
            return None
        return (
            f"its arrays of all pairs would have {memory_text(size)} each; it is chosen below {memory_text(_MAX_BYTES)}"
        )

    def scratch(self, problem: Problem) -> float:
        """Return the bytes of the arrays of all pairs and of the lifted sides at the peak."""
        from qkv.kernels.batched.additive import STEP_BYTES
        from qkv.kernels.batched.attention import suits_half
        from qkv.kernels.batched.row_weights import softmax_in_place

        pairs, gradient = problem.axes.pairs, problem.gradient
        additive = isinstance(problem.score.form, Tanh)
        forward, saved, features = (2.0, 0.0, 0) if additive else score_arrays(problem)
        in_place = 0 if gradient or not problem.normalizer.log_sum_exp else _forward_arrays(problem.score)
        if gradient and (additive or _is_product(problem.score)):  # one autograd node, which changes arrays in place
            arrays = forward + 0.05
        elif gradient:
            arrays = max(3 + saved, 3 * features + 0.5)
        elif in_place:
            arrays = in_place + 0.1
        else:
            arrays = max(2.05, forward, 2 * features)
        if not problem.normalizer.online:  # the support, and sums over a sorted row
            arrays += 2.2 if gradient else 0.3
        copy = 1.0 if in_place and not softmax_in_place(problem.axes.k, pairs * problem.itemsize) else 0.0
        arrays += copy
        mask = problem.spec.mask
        if mask is not None:  # the mask; all logits but those of products are copied while it is added
            copied = not (gradient or isinstance(problem.score.form, (Product, Offset)))
            arrays = max(arrays + 0.25, (in_place + 1.35 + copy if in_place else 3.05) if copied else 0.0)
            share = 1.0 if mask.arrays() else 1 / max(1, problem.axes.batch_size)
            arrays += max(0.0, share - 0.25)
        if problem.dtype == "bfloat16" and suits_half(problem.axes):
            arrays += 1.0  # a factor of a product in half precision, and its copy in oneDNN
        if problem.readouts:  # the logits, and what readouts compute from them and from the weights
            arrays = max(arrays + 1.0, pair_arrays(problem, computed=additive))
        scratch = pairs * problem.itemsize * arrays + problem.cast_bytes + (2 * STEP_BYTES if additive else 0)
        return scratch + sum(lifted_elements(problem)) * problem.itemsize * (2 if gradient else 1)

    def work(self, problem: Problem) -> dict[str, float]:
        """Return the amounts of work, from which the time is estimated; masked pairs are computed too."""
        elements = 1 if isinstance(problem.score.form, Tanh) else problem.elements_per_logit
        return amounts_of_work(problem, problem.axes.pairs, elements=elements)

    def prepare(self, problem: Problem) -> PreparedCall | None:
        """Return a function that checks only what may differ between calls."""
        import torch

        from qkv.kernels.batched.attention import BatchedAttention, all_finite, attention_of
        from qkv.kernels.batched.mask_bias import depends_on_positions_alone, mask_bias

        if problem.traced or any(readout.arrays() for readout in problem.readouts):
            return None
        observed = bool(problem.readouts)
        tile, gradient, mask = problem.tile, problem.gradient, problem.spec.mask
        by_user = may_close_over_tensors(problem.score)
        checked = projects_nothing(problem.score) or not by_user
        positional = depends_on_positions_alone(mask)
        fixed_mask = positional and problem.axes.q * problem.axes.k <= _KEPT_PAIRS
        built: dict[torch.device, BatchedAttention] = {}
        unbound = {"tile": tile, "dropout": 0.0, "projected": False, "tile_dtype": None, "finite": (True, True)}
        rounded_to = problem.rounded_to
        axes, form = problem.axes, problem.score.form
        number = isinstance(form, SquaredDistance) and form.factor is not None and not problem.score.arrays()
        checks_itself = number and axes.query[:-2] == axes.key[:-2] == axes.value[:-2] == axes.batch

        def run(
            query: Array, key: Array, value: Array, score: Score, normalizer: Normalizer, mask: Mask | None
        ) -> Result | None:
            sides = cast("tuple[Tensor, Tensor, Tensor]", (query, key, value))
            if torch.is_autocast_enabled(sides[2].device.type):
                return None
            attention = built.get(sides[2].device)
            if score.cancels and not checks_itself and not lift_suffices(score, query, key, cheap=True):
                return None
            tensors: Sequence[Tensor | None] = sides[:2]
            if attention is None or not (fixed_mask and attention.pairs.direct):
                bound = object.__new__(BoundCall)  # the constructor of a frozen class takes four times as long
                bound.__dict__.update(
                    unbound, query=query, key=key, value=value, score=score, normalizer=normalizer, mask=mask,
                    out_dtype=getattr(torch, rounded_to) if rounded_to else value.dtype,
                )  # fmt: skip
                call = cast("TorchCall", bound)
                if attention is None:  # it depends on facts of the parts, but on no array of score and normalizer
                    attention = built[sides[2].device] = attention_of(call, observed, fixed_mask)
                if not fixed_mask:
                    common = attention.pairs, attention.rows, attention.batch, attention.equal
                    attention = BatchedAttention(*common, *mask_bias(call, positional), None, attention.half, observed)
                # Autograd differentiates a function of the user in any case.
                if gradient and checked and by_user and attention.recordable and all_finite(*sides[:2]):
                    given = [cast("Tensor", x) for x in attention.pairs.operands(call)]
                    output = attention.recorded(sides[2], given)
                    return None if output is None else _result((output,), problem, normalizer)
                tensors = attention.pairs.operands(call)
            # Without a gradient, elements that are not finite either show in the output or have no effect.
            if gradient and not (checked and (attention.pairs.checks or all_finite(*sides[:2]))):
                return None
            found = attention(sides[2], *tensors)
            return None if found is None else _result(found, problem, normalizer)

        return run

    def run(self, call: TorchCall, problem: Problem) -> Result:  # type: ignore[override]
        from qkv.kernels.batched.attention import all_finite, attention_of

        with no_autocast(call.value):
            if not projects_nothing(call.score):  # otherwise the recorded logits are checked
                refuse_closure_gradients(call)
            if all_finite(call.query, call.key, call.value):
                call = replace(call, finite=(True, True))
                attention = attention_of(call, bool(problem.readouts))
                found = attention(call.value, *attention.pairs.operands(call))
                if found is not None:
                    read = _read(found, problem, call.normalizer)
                    return Result(arrays.cast(found[0], call.out_dtype), read)
            return replace(DenseKernel().run(call, problem), guards=("not finite: the dense kernel",))


def _result(found: Outputs, problem: Problem, normalizer: Normalizer) -> Result | None:
    """Return the result of a prepared call, or None if it has a gradient that was not planned."""
    if found[0].requires_grad and not problem.gradient:
        return None
    return Result(found[0], _read(found, problem, normalizer) if problem.readouts else ())


def _read(found: Outputs, problem: Problem, normalizer: Normalizer) -> tuple[object, ...]:
    """Return the results of the readouts, computed from the weights and the logits of all pairs."""
    tile, results = problem.tile, []
    for readout in problem.readouts:
        if type(readout) is LogSumExp and found[2].requires_grad:
            # Gradients of `logsumexp` do not sum to 1 for large logits; those of rows without keys are set to 0.
            logits = cast("Tensor", normalizer.prepare(found[2]))
            shift = logits.detach().amax(-1, keepdim=True).nan_to_num_(0, 0, 0)
            results.append((logits - shift).exp().sum(-1).log() + shift[..., 0])
        else:
            results.append(readout.finalize(readout.read(found[2], found[1], normalizer, tile), tile))
    return tuple(results)


def _forward_arrays(score: Score) -> int:
    """Return the arrays of all pairs that one autograd node holds forward, or 0 if the score computes the logits."""
    match score.form:
        case Gated((*_,)):
            return 2
        case Distance(float()):
            return 1
    return 1 if _is_product(score) else 0


def _is_product(score: Score) -> bool:
    """Return whether logits are inner products, possibly with offsets and soft caps that are numbers."""
    form = score.form
    while isinstance(form, Offset) or (isinstance(form, Capped) and isinstance(form.cap, (int, float))):
        form = form.inner.form
    return isinstance(form, Product)
