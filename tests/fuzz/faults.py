"""Faults of disks, copies and attackers, drawn from a seed and made to the files in a folder."""

import json
import os
import random
import shutil
import zlib
from pathlib import Path

__all__ = ["FAULTS", "make_fault"]

_CONTAINER, _LINE = b"qkv container", 64

_NUMBERS = [-1, 0, 1, 2, 3, 10**6, 2**31, 2**53, 2**63, 2**64, 10**30, -(2**63), 0.5, 1e300, float("inf"), float("nan")]
_TEXTS = ["", "x", "\0", "..", "../../etc/passwd", "/etc/passwd", "a/b", ".", "é" * 5000, "9" * 5000, "nan", "\ud800"]
_ABSURD: list[object] = [None, True, [], {}, [[]], [None], {"a": {}}, *_NUMBERS, *_TEXTS]
"""Values that a crafted file has in place of a field."""


def _flip(path: Path, draw: random.Random, count: int = 1) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(count if data else 0):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def _restoring(path: Path, draw: random.Random, change: object) -> None:
    state = path.stat()
    change(path, draw)  # type: ignore[operator]
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def _truncate(path: Path, draw: random.Random) -> None:
    size = path.stat().st_size
    os.truncate(path, draw.choice([0, 1, max(0, size - 1), draw.randrange(size + 1), draw.randrange(size + 1)]))


def _zero(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    block = draw.choice([1, 8, 64, 512, 4096])
    start = draw.randrange(len(data) // block + 1) * block
    data[start : start + block] = bytes(len(data[start : start + block]))
    path.write_bytes(data)


def _overwrite(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    start = draw.randrange(len(data) + 1)
    part = data[start : start + draw.choice([1, 4, 8, 100])]
    data[start : start + len(part)] = draw.randbytes(len(part))
    path.write_bytes(data)


def _extend(path: Path, draw: random.Random) -> None:
    with path.open("ab") as file:
        file.write(draw.choice([b"\0", b"}", draw.randbytes(100), path.read_bytes()]))


def _mutate(value: object, draw: random.Random) -> object:
    """Return JSON with one field replaced, removed, added or nested deeply."""
    if draw.random() < 0.3 or not isinstance(value, (dict, list)) or not value:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and draw.random() < 0.5:
            return value + draw.choice([-1, 1, 2**32, -(2**32), 2**62, 0.5])
        if isinstance(value, str) and value and draw.random() < 0.3:
            at = draw.randrange(len(value))
            return value[:at] + chr(draw.choice([0, 47, 65, 0x202E, 0x1F600])) + value[at + 1 :]
        return draw.choice(_ABSURD)
    if isinstance(value, list):
        at, changed = draw.randrange(len(value)), list(value)
        action = draw.random()
        if action < 0.1:
            return changed[:at] + changed[at + 1 :]
        if action < 0.2:
            return [*changed, changed[at]]
        changed[at] = _mutate(changed[at], draw)
        return changed
    name = draw.choice(sorted(value))
    action = draw.random()
    if action < 0.1:
        return {key: cell for key, cell in value.items() if key != name}
    if action < 0.15:
        return {**value, str(draw.choice(_ABSURD)): value[name]}
    return {**value, name: _mutate(value[name], draw)}


def _dump(value: object) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _craft(path: Path, draw: random.Random) -> None:
    """Change a field of a file, with checksums that are right again."""
    data = path.read_bytes()
    if data.startswith(_CONTAINER):
        length = int(data[:_LINE].split()[3])
        manifest = data[_LINE : _LINE + length]
        if draw.random() < 0.1:
            changed = draw.choice([b"[" * length, b'{"a":' * (length // 5), b" " * length])
        else:
            changed = _dump(_mutate(json.loads(manifest), draw))
        body = changed.ljust(length)
        line = b"qkv container 1 %d %08x" % (len(body), zlib.crc32(body))
        path.write_bytes(line.ljust(_LINE - 1) + b"\n" + body + data[_LINE + length :])
        return
    if draw.random() < 0.05:
        deep = draw.choice([b"[" * 100_000, b'{"a":' * 100_000, b"[" * 5000 + b"]" * 5000, b"1" * 10_000, b'"\xff"'])
        path.write_bytes(draw.choice([deep, b'{"check": 1, "manifest": ' + deep]))
        return
    try:
        whole = json.loads(data)
    except ValueError:
        _overwrite(path, draw)
        return
    if isinstance(whole, dict) and set(whole) == {"check", "manifest"}:
        text = _dump(_mutate(json.loads(whole["manifest"]), draw))
        whole = {"check": zlib.crc32(text), "manifest": text.decode("utf-8", "surrogatepass")}
        path.write_bytes(_dump(whole))
    else:
        path.write_bytes(_dump(_mutate(whole, draw)))


_CHANGES = ("flip", "flips", "truncate", "zero", "overwrite", "extend")
FAULTS = (
    *_CHANGES,
    *(f"{name} unseen" for name in _CHANGES),
    "remove",
    "folder",
    "swap",
    "older",
    "foreign",
    *["craft"] * 3,
)
"""Names of faults; the unseen ones restore the modification time."""


def make_fault(name: str, folder: Path, older: Path, foreign: Path, draw: random.Random) -> str:
    """Damage one file in a folder, and return which.

    Args:
        name: one of `FAULTS`.
        folder: the files to damage.
        older: the files as they were earlier.
        foreign: files of the same kind with other contents.
        draw: the generator that chooses.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "writer.lock")
    path = draw.choice(files)
    shown = str(path.relative_to(folder))
    changes = {"flip": _flip, "truncate": _truncate, "zero": _zero, "overwrite": _overwrite, "extend": _extend}
    changes["flips"] = lambda path, draw: _flip(path, draw, draw.randrange(2, 20))
    kind, _, unseen = name.partition(" ")
    if kind in changes:
        if unseen:
            _restoring(path, draw, changes[kind])
        else:
            changes[kind](path, draw)
    elif kind == "craft":
        _craft(path, draw)
    elif kind == "remove":
        path.unlink()
    elif kind == "folder":
        path.unlink()
        path.mkdir()
    elif kind == "swap":
        others = [other for other in files if other.suffix == path.suffix and other != path]
        if others:
            other = draw.choice(others)
            shown += f" and {other.relative_to(folder)}"
            here, there = path.read_bytes(), other.read_bytes()
            _restoring(path, draw, lambda path, draw: path.write_bytes(there))
            _restoring(other, draw, lambda path, draw: path.write_bytes(here))
    else:
        source = older if kind == "older" else foreign
        same = [other for other in source.rglob("*") if other.is_file() and other.suffix == path.suffix]
        named = [other for other in same if other.relative_to(source) == path.relative_to(folder)]
        if same:
            other = draw.choice(sorted(named or same))
            shown += f" from {other.relative_to(source)}"
            if draw.random() < 0.5:
                _restoring(path, draw, lambda path, draw: shutil.copyfile(other, path))
            else:
                shutil.copyfile(other, path)
    return shown
