"""Export of PyTorch modules to ONNX files, with one `Attention` node for each call that the operator supports."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.core.files import write_atomic_with_siblings
from qkv.errors import KindError, MissingPackageError, OptionError
from qkv.interop.onnx.attention_node import AttentionNode
from qkv.interop.onnx.attributes import require_opset
from qkv.kernels.compiled.export import EXPORT_KERNEL
from qkv.kernels.runtime.context import set_context

if TYPE_CHECKING:
    import torch
    from onnxscript import TensorType

__all__ = ["export"]

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
    import torch

    if not isinstance(module, torch.nn.Module):
        raise KindError(f"module must be a torch.nn.Module, got a {type(module).__name__}.")
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
        import torch
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
