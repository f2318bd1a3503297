"""Implementation of ONNX's `Attention` operator on NumPy and PyTorch arrays, and export of models that call qkv."""

from qkv.interop.onnx.attention_operator import OperatorOutputs, attention
from qkv.interop.onnx.exporter import export

__all__ = ["OperatorOutputs", "attention", "export"]
