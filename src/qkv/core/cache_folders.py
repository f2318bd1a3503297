"""Folders of the user for results and copies that can be computed or read again."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["user_cache"]


def user_cache(name: str) -> Path:
    """Return a folder for caches: `name` in the folder `QKV_CACHE`, otherwise in the platform's folder for caches."""
    folder = os.environ.get("QKV_CACHE")
    if folder:
        return Path(folder) / name
    import platformdirs

    return Path(platformdirs.user_cache_dir("qkv", appauthor=False)) / name
