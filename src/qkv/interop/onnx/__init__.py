"""Implementation of ONNX's `Attention` operator on NumPy and PyTorch arrays, and export of models that call qkv."""

from typing import TYPE_CHECKING

from qkv.core.extras import lazy_attributes
from qkv.interop.onnx.attention_operator import OperatorOutputs, attention

__all__ = ["OperatorOutputs", "attention", "export"]

if TYPE_CHECKING:
    from qkv.interop.onnx.exporter import export

# On first use, because it imports PyTorch.
__getattr__ = lazy_attributes(__name__, {"export": "exporter"})
