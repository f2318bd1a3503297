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

__all__ = ["Reach", "Record", "Seen", "UnreachedWarning", "attach", "reach", "record", "register"]

if TYPE_CHECKING:
    from qkv.interop.huggingface.reaching import Reach, UnreachedWarning, attach, reach
    from qkv.interop.huggingface.recorder import Record, record
    from qkv.interop.huggingface.registry import register
    from qkv.interop.huggingface.seen import Seen

_HOMES = {
    "Reach": "reaching",
    "Record": "recorder",
    "Seen": "seen",
    "UnreachedWarning": "reaching",
    "attach": "reaching",
    "reach": "reaching",
    "record": "recorder",
    "register": "registry",
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
