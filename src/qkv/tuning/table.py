"""Storage of the table of fitted coefficients for this machine."""

from __future__ import annotations

import json
from pathlib import Path

from qkv.core.files import atomic_path
from qkv.plan.cache import PLANS
from qkv.plan.step_cache import STEPS
from qkv.plan.time_model import WORK, Table, load_table, processor_name, table_path

__all__ = ["save_table"]


def save_table(table: Table, path: Path | None = None) -> Path:
    """Write the coefficients to a file, which the planner of this and of later processes reads, and return its path.

    Args:
        table: coefficients by table key.
        path: the file; None: `time_model.table_path`.
    """
    path = table_path() if path is None else path
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"processor": processor_name(), "work": WORK, "nanoseconds": dict(table)}
    with atomic_path(path) as temporary:
        rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(list(row))}" for key, row in table.items())
        head = json.dumps({name: content[name] for name in ("processor", "work")}, indent=1)[:-2]
        temporary.write_text(f'{head},\n "nanoseconds": {{\n{rows}\n }}\n}}\n', encoding="utf-8")
    load_table.cache_clear()
    PLANS.clear()
    STEPS.clear()
    return path
