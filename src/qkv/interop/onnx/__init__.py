"""ONNX: its `Attention` operator on arrays, and models written to files that hold it."""

from qkv.interop.onnx.exporting import export
from qkv.interop.onnx.operator import Attended, attention

__all__ = ["Attended", "attention", "export"]
