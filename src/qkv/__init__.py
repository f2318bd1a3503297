"""qkv: attention as a query engine.

    weights = normalize(score(query, key), mask)          output = weights @ value

You say what (score, normalizer, mask); the planner decides how, and `explain` tells you.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "attend",
    "observe",
    "explain",
    "prepare",
    "Spec",
    "Positions",
    "Database",
    "scores",
    "normalizers",
    "masks",
    "readouts",
    "nn",
    "errors",
]

if TYPE_CHECKING:
    from qkv import errors, masks, nn, normalizers, readouts, scores
    from qkv.core.positions import Positions
    from qkv.database import Database
    from qkv.engine import attend, explain, observe, prepare
    from qkv.plan import Spec

_MODULES = ("scores", "normalizers", "masks", "readouts", "nn", "errors")
_HOMES = {
    "attend": "qkv.engine",
    "observe": "qkv.engine",
    "explain": "qkv.engine",
    "prepare": "qkv.engine",
    "Spec": "qkv.plan",
    "Positions": "qkv.core.positions",
    "Database": "qkv.database",
}


def __getattr__(name: str) -> Any:
    # Lazily: `import qkv` must stay far below the time of importing what it can do.
    if name in _MODULES:
        return importlib.import_module(f"qkv.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'qkv' has no attribute {name!r}")
    globals()[name] = found = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
