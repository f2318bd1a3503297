"""ONNX: its `Attention` operator on arrays, and models written to files that hold it."""

from qkv.interop.onnx.attention_operator import AttentionOutputs, attention
from qkv.interop.onnx.exporter import export

__all__ = ["AttentionOutputs", "attention", "export"]
