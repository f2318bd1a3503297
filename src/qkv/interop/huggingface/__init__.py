"""Hugging Face models on the engine, and records of what they attend to.

register          register the engine under a name that `attn_implementation=` accepts
attach            switch a model to the engine, and warn about layers that bypass it
layer_coverage    run a model once and report which layers call the engine
record            collect readouts of every layer and head while the model runs
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from qkv.core.extras import require_packages

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
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_packages("qkv.interop.huggingface needs", "hf", "torch", "transformers")
    globals()[name] = member = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return member
