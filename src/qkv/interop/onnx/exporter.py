"""Export: a module becomes an ONNX file whose attention is the operator `Attention` where that can say it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.core.files import write_atomic_with_siblings
from qkv.errors import KindError, MissingPackageError, OptionError
from qkv.interop.onnx.attention_node import AttentionNode
from qkv.interop.onnx.attributes import OPSETS
from qkv.kernels.compiled.export import FIRST

if TYPE_CHECKING:
    import torch

__all__ = ["export"]


def export(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    path: str | PathLike[str],
    *,
    kwargs: dict[str, Any] | None = None,
    opset: int = 23,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    finite: bool = False,
) -> Path:
    """Write a module that calls qkv, such as one of `qkv.nn`, to an ONNX file.

    A call becomes one `Attention` node where its score is an inner product, with or without a soft cap and a
    bias, and its normalizer softmax; whatever the mask. Other calls become plain operators, in memory q · k
    where the file is run.

    Args:
        module: in evaluation mode.
        args: inputs, as a tuple; lengths are fixed to theirs, unless `dynamic_shapes` names them.
        path: of the file; what is there is replaced when all is written.
        kwargs: further inputs by name.
        opset: of the file: 23, 24 or 25.
        dynamic_shapes: as in `torch.export.export`, for example `{"query": {1: torch.export.Dim.DYNAMIC}}`.
        input_names, output_names: in the file.
        finite: you know that keys and values are finite. Otherwise the graph guards what is masked from being
            read, as qkv does everywhere: the operator alone would spread a NaN.

    Returns:
        The path. Weights of more than 2 GB stand in a file beside it, named `….data`.

    Raises:
        OptionError: the module is in training mode, or the opset has no such operator.
        KindError: it is no module, or the inputs are no tuple.
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
    torch, translations = _packages()
    if not isinstance(module, torch.nn.Module):
        raise KindError(f"export was given a {type(module).__name__}. Give a torch.nn.Module.")
    if not isinstance(args, tuple):
        raise KindError(f"export was given args of type {type(args).__name__}. Give a tuple of inputs.")
    if opset not in OPSETS:
        raise OptionError(f"opset is {opset!r}. The operator Attention has versions 23, 24 and 25.")
    if any(part.training for part in module.modules()):
        raise OptionError("the module is in training mode. Call module.eval() before exporting it.")
    with torch.no_grad(), _first(AttentionNode(opset, finite)):
        program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PyTorch's exporter, about itself
        written = torch.onnx.export(
            program,
            input_names=input_names,
            output_names=output_names,
            opset_version=opset,
            custom_translation_table=translations,
            verbose=False,
        )
    target = Path(path)
    write_atomic_with_siblings(target, written.save, "the model")
    return target


@contextmanager
def _first(kernel: AttentionNode) -> Iterator[None]:
    token = FIRST.set(kernel)
    try:
        yield
    finally:
        FIRST.reset(token)


def _packages() -> tuple[Any, dict[Any, Callable[..., Any]]]:
    """PyTorch, and what its exporter does not translate."""
    try:
        import onnxscript
        import torch
        from torch.onnx.ops import symbolic  # noqa: F401 -- new in 2.8
    except ImportError as error:
        raise MissingPackageError(
            f"export needs {error.name}, in a version that is not installed (PyTorch 2.8 or later). "
            'Run: pip install "qkv[torch,onnx]"'
        ) from None
    op = onnxscript.values.Opset("", 18)

    def sort(x: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
        # TopK of all: of equal numbers it takes the first, which is what stable means.
        size = op.Shape(x, start=dim, end=None if dim == -1 else dim + 1)
        return op.TopK(x, size, axis=dim, largest=int(descending), sorted=1)  # type: ignore[no-any-return]

    return torch, {torch.ops.aten.sort.stable: sort}
