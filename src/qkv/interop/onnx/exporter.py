"""Export of PyTorch modules to ONNX files, with one `Attention` node for each call that the operator supports."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

import torch

from qkv.core.arrays import is_array
from qkv.core.equation import BoundCall
from qkv.core.files import write_atomic_with_siblings
from qkv.core.parts import expand_to_pairs
from qkv.core.typing import Array, Bool, Float, Shaped
from qkv.errors import KindError, MissingPackageError, OptionError
from qkv.interop.onnx.attention_operator import require_opset
from qkv.kernels.fused.call import lift_sides
from qkv.kernels.runtime.context import set_context
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem
from qkv.scores.base import Score
from qkv.scores.forms import Capped, Offset
from qkv.scores.wrapper import PointwiseScore
from qkv.torch_bridge.export import EXPORT_KERNEL

if TYPE_CHECKING:
    from onnxscript import TensorType
    from torch import Tensor


class _OperatorScore(NamedTuple):
    """Score in the form of ONNX's operator: an inner product, an optional soft cap, and biases added to it."""

    product: Score
    cap: float | None
    offsets: tuple[PointwiseScore, ...]


@dataclass(frozen=True)
class AttentionNode(Kernel):
    """Kernel that exports a call as one node of ONNX's operator `Attention`.

    Attributes:
        version: version of the operator.
        finite: whether the caller promises finite keys and values, so that the graph needs no guard against NaN and
            infinity.
    """

    version: int = 23
    finite: bool = False

    name: ClassVar[str] = "onnx"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    traceable: ClassVar[bool] = True

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield the reasons why ONNX's operator `Attention` does not support a call."""
        normalizer, score = problem.normalizer, _convert_score(problem.score)
        if not (normalizer.log_sum_exp and normalizer.online and normalizer.shift_invariant):
            yield f"the operator supports softmax without a sink, not {normalizer}"
        if score is None:
            yield f"{problem.score} is not an inner product with a soft cap and a bias"
        elif score.cap is not None and is_array(getattr(normalizer, "temperature", 1.0)):
            yield "the operator has one soft cap, not one for each batch element"
        if problem.readouts:
            yield "the operator returns the output alone, without readouts"
        if problem.spec.dropout:
            yield "the operator has no dropout"

    def scratch(self, problem: Problem) -> float:
        """Return 0, because the node is written into a graph and not run."""
        return 0.0

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Write a call as one `Attention` node into the graph that PyTorch's exporter is tracing."""
        score = _convert_score(call.score)
        assert score is not None
        tile, mask, value = call.tile, call.mask, cast("Tensor", call.value)
        query, key, scale = lift_sides(call, score.product)
        temperature = expand_to_pairs(getattr(call.normalizer, "temperature", 1.0))
        causal = mask is not None and mask.causal_offset(tile) == 0
        allowed = None if mask is None or causal else cast("Tensor", mask.allowed(tile, value))
        offsets = [cast("Tensor", part.offset(tile, value) / temperature) for part in score.offsets]
        bias = reduce(torch.add, offsets) if offsets else None
        merged = allowed if bias is None else bias  # the boolean mask, or the bias with −inf at masked pairs
        if allowed is not None and bias is not None:
            merged = torch.where(allowed, bias, -math.inf)
        reads_nonfinite = None
        if not self.finite and (causal or merged is not None):
            nonfinite = ~(key.isfinite().all(-1) & value.isfinite().all(-1))
            key, value = (torch.where(x.isfinite(), x, 0.0) for x in (key, value))
            readable = merged if merged is None or bias is None else merged != -math.inf
            reads_nonfinite = _reads_nonfinite(nonfinite, readable, causal, tile.q_total)

        attributes: dict[str, int | float] = {"scale": float(scale)}
        if score.cap is not None:
            attributes["softcap"] = float(score.cap / temperature)
        if causal:
            attributes["is_causal"] = 1
        inputs = _with_four_axes(call.batch, query, key, value)
        batch_heads_q = inputs[0].shape[:3]
        if merged is not None:
            inputs.append(_mask_with_four_axes(call, inputs[0].shape[1], merged))
        output = torch.onnx.ops.symbolic(
            "Attention",
            inputs,
            attributes,  # type: ignore[arg-type]
            dtype=value.dtype,
            shape=(*batch_heads_q, value.shape[-1]),
            version=self.version,
        )
        output = output.reshape((*call.batch, tile.q_total, value.shape[-1]))
        if reads_nonfinite is not None:
            output = torch.where(reads_nonfinite, math.nan, output)
        return Result(cast(Array, output.to(call.out_dtype)))


def _convert_score(score: Score) -> _OperatorScore | None:
    """Return a score in the form of ONNX's operator `Attention`, or None if it has no such form."""
    offsets = []
    while score.form.lift is None and isinstance(score.form, Offset):
        assert isinstance(score, PointwiseScore)
        offsets.append(score)
        score = score.score
    cap = None
    if isinstance(form := score.form, Capped) and isinstance(form.cap, (int, float)):
        cap, score = form.cap, form.inner
    lift = score.form.lift
    # A term of the query alone cancels in softmax, but not inside a soft cap.
    if lift is None or (cap is not None and lift != "exact"):
        return None
    return _OperatorScore(score, cap, tuple(offsets))


def _reads_nonfinite(
    nonfinite: Bool[Tensor, "*#batch k"], readable: Bool[Tensor, "*#batch #q #k"] | None, causal: bool, q: int
) -> Bool[Tensor, "*batch #q 1"]:
    """Return a boolean array that is True for queries that may attend to a non-finite key or value.

    Its shape is `(*batch, q, 1)`.
    """
    rows = torch.arange(q, device=nonfinite.device)
    if readable is not None:
        if causal:
            readable = readable & (torch.arange(nonfinite.shape[-1], device=nonfinite.device) <= rows[:, None])
        if readable.shape[-1] == 1:
            readable = readable.expand((*readable.shape[:-1], nonfinite.shape[-1]))
        return (readable.float() @ nonfinite.float()[..., None]) > 0
    # With causality alone, a query reads all keys up to its own position.
    count = nonfinite.float().cumsum(-1)
    return count.index_select(-1, rows.clamp(max=nonfinite.shape[-1] - 1))[..., None] > 0


def _with_four_axes(
    batch: tuple[int, ...],
    query: Float[Tensor, "*#batch q width"],
    key: Float[Tensor, "*#batch k width"],
    value: Float[Tensor, "*#batch k value_width"],
) -> list[Float[Tensor, "_ _ _ _"]]:
    """Return query, key and value reshaped to (batch, heads, length, width), without repeating shared key heads."""
    query, key, value = (x.reshape((*(1,) * (len(batch) - x.ndim + 2), *x.shape)) for x in (query, key, value))
    shared = len(batch) > 1 and key.shape[-3] == 1 and value.shape[-3] == 1
    key_batch = (*batch[:-1], 1) if shared else batch
    query = query.expand((*batch, *query.shape[-2:]))
    key, value = (x.expand((*key_batch, *x.shape[-2:])) for x in (key, value))
    if len(batch) <= 2:
        return [x.reshape((*(1,) * (4 - x.ndim), *x.shape)) for x in (query, key, value)]
    if shared:
        query, key, value = query.flatten(-4, -3), key.squeeze(-3), value.squeeze(-3)
    return [x.flatten(0, -4) if x.ndim > 4 else x for x in (query, key, value)]


def _mask_with_four_axes(
    call: BoundCall, heads: int, mask: Shaped[Tensor, "*#batch #q #k"]
) -> Shaped[Tensor, "#n #heads q k"]:
    """Return the mask reshaped to (batch, heads, q, k), with q and k expanded to their lengths in the call.

    Runtimes do not broadcast these axes.
    """
    batch, tile = call.batch, call.tile
    mask = mask.reshape((*(1,) * (len(batch) - mask.ndim + 2), *mask.shape))
    mask = mask.expand((*mask.shape[:-2], tile.q_total, tile.k_total))
    if len(batch) > 2:
        if all(n == 1 for n in mask.shape[:-2]):
            return mask.reshape((1, 1, *mask.shape[-2:]))
        mask = mask.expand((*batch, *mask.shape[-2:]))
        return mask.reshape((-1, heads, *mask.shape[-2:]))
    return mask.reshape((*(1,) * (4 - mask.ndim), *mask.shape))


_Translations = dict[Callable[..., object], Callable[..., object]]


def export(
    module: torch.nn.Module,
    args: tuple[object, ...],
    path: str | PathLike[str],
    *,
    kwargs: Mapping[str, object] | None = None,
    opset: int = 23,
    dynamic_shapes: dict[str, object] | tuple[object, ...] | list[object] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    finite: bool = False,
) -> Path:
    """Export a PyTorch module that calls qkv, such as a model with modules of `qkv.nn`, to an ONNX file.

    A call becomes one `Attention` node if its score is an inner product, optionally with a soft cap and a
    bias, and its normalizer is softmax; every mask is supported. Other calls become elementary operators,
    which need memory for q · k elements when the file is run.

    Args:
        module: a module in evaluation mode.
        args: example inputs; their lengths are fixed in the file unless `dynamic_shapes` names them.
        path: path of the file; an existing file is only replaced when the new file is complete.
        kwargs: further example inputs, by name.
        opset: opset of the file: 23, 24 or 25.
        dynamic_shapes: as in `torch.export.export`, for example `{"query": {1: torch.export.Dim.DYNAMIC}}`.
        input_names: names of the inputs in the file.
        output_names: names of the outputs in the file.
        finite: promise that keys and values are finite. Otherwise the graph contains operators that keep NaN
            and infinity in masked keys and values from reaching the output, as everywhere in qkv.

    Returns:
        The path. Weights of more than 2 GB are written to a second file, named `….data`.

    Raises:
        OptionError: the module is in training mode, or the opset does not define the operator.
        KindError: `module` is not a module, or `args` is not a tuple.
        MissingPackageError: torch 2.8, onnx or onnxscript is not installed.
        DataError: the file cannot be written.

    Example:
        >>> import tempfile, torch, qkv, onnx
        >>> class Attend(torch.nn.Module):
        ...     def forward(self, query, key, value):
        ...         return qkv.attend(query, key, value, mask=qkv.masks.Causal())
        >>> x = torch.randn(1, 2, 5, 4)
        >>> path = export(Attend().eval(), (x, x, x), tempfile.mkdtemp() + "/attend.onnx", finite=True)
        >>> [node.op_type for node in onnx.load(path).graph.node]
        ['Attention']
    """
    translations = _translations()
    if not isinstance(module, torch.nn.Module):
        raise KindError(f"module must be a torch.nn.Module, got a {type(module).__name__}. Pass the module itself.")
    if not isinstance(args, tuple):
        raise KindError(f"args must be a tuple of inputs, got a {type(args).__name__}. Pass (x,) for one input.")
    require_opset(opset)
    if any(part.training for part in module.modules()):
        raise OptionError("module must be in evaluation mode, got training mode. Call module.eval() first.")
    with torch.no_grad(), set_context(EXPORT_KERNEL, AttentionNode(opset, finite)):
        exported = torch.export.export(
            module, args, None if kwargs is None else dict(kwargs), dynamic_shapes=dynamic_shapes, strict=False
        )
    # Some versions of onnxscript print how many rewriting rules they applied.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore", FutureWarning)  # raised inside PyTorch's exporter
        program = torch.onnx.export(
            exported,
            input_names=input_names,
            output_names=output_names,
            opset_version=opset,
            custom_translation_table=translations,
            verbose=False,
        )
    assert program is not None
    target = Path(path)
    write_atomic_with_siblings(target, program.save, "the model")
    return target


def _translations() -> _Translations:
    """Return a dict of ONNX translations for operators that PyTorch's exporter does not support."""
    try:
        import onnxscript
        from torch.onnx.ops import symbolic  # noqa: F401 -- added in PyTorch 2.8
    except ImportError as error:
        raise MissingPackageError(
            f"export requires PyTorch 2.8 or later, onnx and onnxscript, but {error.name} cannot be imported. "
            'Run: pip install "qkv[torch,onnx]"'
        ) from None
    op = onnxscript.values.Opset("", 18)

    def sort(
        x: TensorType, stable: bool | None = None, dim: int = -1, descending: bool = False
    ) -> tuple[TensorType, TensorType]:
        # TopK of all elements takes the first of equal elements, so it is a stable sort.
        size = op.Shape(x, start=dim, end=None if dim == -1 else dim + 1)
        values, indices = op.TopK(x, size, axis=dim, largest=int(descending), sorted=1)
        return values, indices

    return {torch.ops.aten.sort.stable: sort}
