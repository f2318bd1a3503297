"""Faults of a disk: a changed bit, and no space."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["FullDisk", "flip"]


def flip(file: Path, at: int) -> None:
    """Change one bit of a file, and restore its time of modification."""
    state, data = file.stat(), bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


@dataclass
class FullDisk:
    """Lets `os.fsync` fail: at call number `full_at`, counted from 1, or from then on.

    Attributes:
        calls: number of calls since it was last set to 0.
    """

    patch: pytest.MonkeyPatch
    full_at: int = 1
    lasts: bool = False
    calls: int = 0

    def __post_init__(self) -> None:
        real = os.fsync

        def sync(handle: int) -> None:
            self.calls += 1
            if self.calls == self.full_at or (self.lasts and self.calls > self.full_at):
                raise OSError(28, "No space left on device")
            real(handle)

        self.patch.setattr(os, "fsync", sync)
