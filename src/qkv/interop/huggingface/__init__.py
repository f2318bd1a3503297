"""Hugging Face models on the engine, and what they attend to.

register    put the engine under a name that `attn_implementation=` takes
attach      switch a model to it, and be told which layers it does not reach
reach       which layers of a model are reached, by counting
record      collect readouts of every layer and head while the model runs
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from qkv.errors import MissingPackageError

__all__ = [
    "LayerCoverage",
    "Recorder",
    "AttentionRecord",
    "BypassWarning",
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

_HOMES = {
    "AttentionRecord": "attention_record",
    "BypassWarning": "coverage",
    "LayerCoverage": "coverage",
    "Recorder": "recorder",
    "attach": "coverage",
    "layer_coverage": "coverage",
    "record": "recorder",
    "register": "registration",
}


def __getattr__(name: str) -> Any:
    # Lazily: what is behind these names imports torch and transformers.
    if name not in _HOMES:
        raise AttributeError(f"module 'qkv.interop.huggingface' has no attribute {name!r}")
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(
                f'Hugging Face models need {package}, which is not installed. Run: pip install "qkv[hf]"'
            )
    home = importlib.import_module(f"qkv.interop.huggingface.{_HOMES[name]}")
    globals()[name] = found = getattr(home, name)
    return found
