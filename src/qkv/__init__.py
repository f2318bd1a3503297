"""Attention as a query engine, in which a planner chooses how each call runs.

    weights = normalize(score(query, key), mask)          output = weights @ value

A call names a score, a normalizer and a mask. The planner chooses the kernel that computes it, and `explain` shows
the plan.

`attend`, `observe`, `explain` and `prepare` take arrays; `Database` takes tables, and `database.partials` takes
fragments of tables, which other engines hold. `scores`, `normalizers`, `masks`, `readouts` and `nn`
hold the components, `distributed` attention over several processes, `errors` the exceptions.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0"

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
    "distributed",
    "errors",
]

if TYPE_CHECKING:
    from qkv import distributed, errors, masks, nn, normalizers, readouts, scores
    from qkv.core.positions import Positions
    from qkv.database import Database
    from qkv.engine import attend, explain, observe, prepare
    from qkv.plan import Spec

_MODULES = ("scores", "normalizers", "masks", "readouts", "nn", "distributed", "errors")
_HOMES = {
    "attend": "qkv.engine",
    "observe": "qkv.engine",
    "explain": "qkv.engine",
    "prepare": "qkv.engine",
    "Spec": "qkv.plan",
    "Positions": "qkv.core.positions",
    "Database": "qkv.database",
}


def __getattr__(name: str) -> object:
    # Import on first use, so that `import qkv` takes no longer than importing NumPy.
    if name in _MODULES:
        return importlib.import_module(f"qkv.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'qkv' has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
