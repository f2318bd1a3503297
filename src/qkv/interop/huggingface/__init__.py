"""Hugging Face models on the engine, and records of what they attend to.

register          register the engine under a name that `attn_implementation=` accepts
attach            switch a model to the engine, and warn about layers that bypass it
layer_coverage    run a model once and report which layers call the engine
record            collect readouts of every layer and head while the model runs
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

from qkv.errors import MissingPackageError

__all__ = [
    "AttentionRecord",
    "BypassWarning",
    "LayerCoverage",
    "Recorder",
    "attach",
    "layer_coverage",
    "record",
    "register",
]

if TYPE_CHECKING:
    from qkv.interop.huggingface.attention_record import AttentionRecord
    from qkv.interop.huggingface.coverage import BypassWarning, LayerCoverage, attach, layer_coverage
    from qkv.interop.huggingface.recorder import Recorder, record
    from qkv.interop.huggingface.registration import register

_MODULES = {
    "AttentionRecord": "attention_record",
    "BypassWarning": "coverage",
    "LayerCoverage": "coverage",
    "Recorder": "recorder",
    "attach": "coverage",
    "layer_coverage": "coverage",
    "record": "recorder",
    "register": "registration",
}


def __getattr__(name: str) -> object:
    # Import on first access: the modules behind these names import torch and transformers.
    if name not in _MODULES:
        raise AttributeError(f"module 'qkv.interop.huggingface' has no attribute {name!r}")
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(
                f'qkv.interop.huggingface requires {package}, which is not installed. Run: pip install "qkv[hf]"'
            )
    module = importlib.import_module(f"qkv.interop.huggingface.{_MODULES[name]}")
    globals()[name] = member = getattr(module, name)
    return member
