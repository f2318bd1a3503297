"""Functions that make Hugging Face models compute attention with qkv, and that record their attention.

register          register qkv under a name that `attn_implementation=` accepts
register_saved    register the score and normalizer of a saved model
attach            switch a model to qkv, and warn about layers that bypass qkv
GrowingCache      append keys and values in place in step-by-step generation
layer_coverage    run a model once and report which layers call qkv
record            collect readouts of every layer and head while the model runs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.core.extras import lazy_attributes

__all__ = [
    "AttentionRecord",
    "BypassWarning",
    "GrowingCache",
    "LayerCoverage",
    "Recorder",
    "attach",
    "layer_coverage",
    "record",
    "register",
    "register_saved",
    "scale_heads",
]

if TYPE_CHECKING:
    from qkv.interop.huggingface.attention_record import AttentionRecord
    from qkv.interop.huggingface.coverage import BypassWarning, LayerCoverage, attach, layer_coverage
    from qkv.interop.huggingface.growing_cache import GrowingCache
    from qkv.interop.huggingface.recorder import Recorder, record
    from qkv.interop.huggingface.registration import register, register_saved
    from qkv.interop.huggingface.scale_heads import scale_heads

_MODULES = {
    "AttentionRecord": "attention_record",
    "BypassWarning": "coverage",
    "GrowingCache": "growing_cache",
    "LayerCoverage": "coverage",
    "Recorder": "recorder",
    "attach": "coverage",
    "layer_coverage": "coverage",
    "record": "recorder",
    "register": "registration",
    "register_saved": "registration",
    "scale_heads": "scale_heads",
}

# On first use, because these modules import torch and transformers.
__getattr__ = lazy_attributes(__name__, _MODULES, "qkv.interop.huggingface needs", "hf", "torch", "transformers")
