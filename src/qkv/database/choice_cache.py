"""Disk cache of numbers chosen from all rows of a file or store: bandwidths, no-match distances, interval factors.

Choosing them for five million rows takes seconds, and the command `qkv ask` would repeat it before every answer. Each
entry is a JSON file, in the user's cache folder for files and in the cache folder of a store, named by a hash of its
identity:

    files       path, size, time of modification and time of change of each file that was read
    store       the version of the store and the SHA-256 of its manifest
    options     how the files were read, the key and value columns, and the rows that a predicate selects
    versions    of this format and of the packages that read and choose
    item        what was chosen

An entry is used if it contains exactly this identity and a digest of its own content; any other is ignored and
replaced. Entries are written to a temporary file that is renamed, so that concurrent processes see whole entries. A
failure to write is ignored. Files that were modified within two seconds before they were read have no entries, as
a later change could leave the same time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from qkv.core.checksums import digest
from qkv.core.files import atomic_path, user_cache
from qkv.core.typing import Bool
from qkv.core.untrusted_json import Fields, parse_json, read_bounded
from qkv.database.execute.uncertainty import Calibration
from qkv.errors import QkvError
from qkv.estimators.regression.bandwidth import Bandwidth
from qkv.estimators.regression.local_scale import LocalScale
from qkv.store import Store

# To be increased when other bandwidths, distances or factors are chosen from the same rows.
_FORMAT = 6
_PACKAGES = ("numpy", "duckdb", "pyarrow")
_RECENT_NANOSECONDS = 2 * 10**9
_LARGEST_ENTRY = 2**24
_MOST_ENTRIES = 1000
# Choosing takes less than a second for fewer rows.
_FEWEST_ROWS = 20_000
_Chosen = TypeVar("_Chosen")


def cache_folder() -> Path:
    """Return the folder of the cache: `choices` in `QKV_CACHE`, otherwise in the platform's folder for caches."""
    return user_cache("choices")


@dataclass(frozen=True)
class ChoiceCache:
    """Disk cache of the numbers chosen from the rows of some files or of a store.

    Attributes:
        folder: the folder of the entries; None: nothing is saved.
        paths: the files.
        states: the state of each file before it was read, as `_state` returns it.
        options: the identity of the store, of the columns and of the selected rows, as a JSON object.
    """

    folder: Path | None
    paths: tuple[str, ...]
    states: tuple[tuple[int, ...], ...]
    options: Mapping[str, object]

    @classmethod
    def of_files(cls, paths: Sequence[str | os.PathLike[str]], options: Mapping[str, object]) -> ChoiceCache:
        """Return the cache of some files, or `NO_CACHE` if they were modified just now. Call it before they are read.

        Args:
            paths: the files.
            options: how they are read; values that JSON can represent.
        """
        resolved = tuple(os.path.realpath(path) for path in paths)
        latest = time.time_ns() - _RECENT_NANOSECONDS
        try:
            states = tuple(_state(path) for path in resolved)
        except OSError:
            return NO_CACHE
        if not resolved or any(state[1] >= latest for state in states):
            return NO_CACHE
        return cls(cache_folder(), resolved, states, dict(options))

    @classmethod
    def of_store(cls, store: Store) -> ChoiceCache:
        """Return the cache of the open version of a store, or `NO_CACHE` if rows of it are damaged."""
        if store.damages:
            return NO_CACHE
        rows = {"store": store.identity, "version": store.version, "rows": len(store)}
        return cls(store.cache_folder, (), (), rows)

    def for_rows(self, count: int) -> ChoiceCache:
        """Return this cache, or `NO_CACHE` for so few rows that choosing takes less time than a person notices."""
        return self if count >= _FEWEST_ROWS else NO_CACHE

    def with_options(self, **options: object) -> ChoiceCache:
        """Return a cache with more options in its identity; their values are such that JSON can represent them."""
        return ChoiceCache(self.folder, self.paths, self.states, {**self.options, **options})

    def with_rows(self, selected: Bool[np.ndarray, " rows"]) -> ChoiceCache:
        """Return the cache of the choices from the selected rows alone."""
        if self.folder is None:
            return self
        return self.with_options(selected=digest(np.packbits(selected).tobytes()), count=len(selected))

    def bandwidth(self, item: str, choose: Callable[[], Bandwidth]) -> Bandwidth:
        """Return the bandwidth in the entry `item`, or choose it and write the entry."""
        return self._get(item, choose, asdict, Bandwidth.parse)

    def number(self, item: str, choose: Callable[[], float]) -> float:
        """Return the number of at least 0 in the entry `item`, or compute it and write the entry."""
        return self._get(item, choose, lambda value: {"value": value}, _read_number)

    def texts(self, item: str, choose: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        """Return the texts in the entry `item`, or choose them and write the entry."""
        return self._get(item, choose, lambda texts: {"texts": list(texts)}, lambda read: tuple(read.texts("texts")))

    def calibration(self, item: str, choose: Callable[[], Calibration]) -> Calibration:
        """Return the factors of prediction intervals in the entry `item`, or estimate them and write the entry."""
        return self._get(item, choose, write_calibration, read_calibration)

    def _get(
        self,
        item: str,
        choose: Callable[[], _Chosen],
        write: Callable[[_Chosen], dict[str, object]],
        read: Callable[[Fields], _Chosen],
    ) -> _Chosen:
        if self.folder is None:
            return choose()
        identity = self._identity(item)
        path = self.folder / f"{digest(_json(identity))}.json"
        try:
            return read(_content(path, identity))
        except (OSError, QkvError):
            chosen = choose()
        content = write(chosen)
        entry = {"identity": identity, "content": content, "digest": digest(_json(content))}
        try:
            if all(_state(name) == state for name, state in zip(self.paths, self.states, strict=True)):
                # The folder of a store that was removed meanwhile is not created again.
                path.parent.mkdir(parents=bool(self.paths), exist_ok=True)
                with atomic_path(path) as temporary:
                    temporary.write_bytes(_json(entry))
                _remove_oldest(path.parent)
        except OSError:
            pass  # the answer does not need the entry
        return chosen

    def _identity(self, item: str) -> dict[str, object]:
        files = [[path, *state] for path, state in zip(self.paths, self.states, strict=True)]
        return {"files": files, "options": dict(self.options), "versions": _versions(), "item": item}


NO_CACHE = ChoiceCache(None, (), (), {})
"""A cache that saves nothing."""


@cache
def _versions() -> dict[str, object]:
    from importlib.metadata import version

    from qkv.core.installation import own_version

    # The package may run from a folder that pip does not know.
    return {"format": _FORMAT, "qkv": own_version(), **{name: version(name) for name in _PACKAGES}}


def _state(path: str) -> tuple[int, ...]:
    """Return the size of a file, its time of modification and its time of change, in nanoseconds."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_number_of_array).encode()


def _number_of_array(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"value must be a number, got {type(value).__name__}. Pass values that JSON can represent.")


def _content(path: Path, identity: dict[str, object]) -> Fields:
    """Return the content of an entry, or raise an error if it is damaged or has another identity."""
    entry = Fields(parse_json(read_bounded(path, _LARGEST_ENTRY), path.name), path.name)
    content = entry.record("content")
    if _json(entry.record("identity")) != _json(identity) or entry.text("digest") != digest(_json(content)):
        raise entry.damaged("digest", "the digest of the content")
    return Fields(content, path.name)


def _read_number(fields: Fields) -> float:
    value = fields.number("value")
    if value < 0:
        raise fields.damaged("value", "at least 0")
    return value


def write_calibration(calibration: Calibration) -> dict[str, object]:
    """Return the factors of prediction intervals as values that JSON can represent."""
    local = calibration.local
    record: dict[str, object] = {"lower": calibration.lower, "upper": calibration.upper, "rows": calibration.rows}
    if local is not None:
        # JSON has no infinity: the width 0 is that of a constant column.
        widths = [0.0 if np.isinf(width) else width for width in local.bandwidth.tolist()]
        record |= {"points": local.points.ravel().tolist(), "logs": local.logs.tolist(), "widths": widths}
    return record


def read_calibration(fields: Fields) -> Calibration:
    """Return the factors of prediction intervals that `write_calibration` wrote.

    Raises:
        DamagedError: A field is missing or impossible.
    """
    local = None
    if "logs" in fields:
        points, logs, widths = (np.array(fields.numbers(name)) for name in ("points", "logs", "widths"))
        if not len(logs) or not len(widths) or len(points) != len(logs) * len(widths) or widths.min() < 0:
            raise fields.damaged("points", "as many points as logarithms")
        local = LocalScale(points.reshape(len(logs), -1), logs, np.where(widths > 0, widths, np.inf))
    return Calibration(fields.number("lower"), fields.number("upper"), fields.integer("rows"), local)


def _remove_oldest(folder: Path) -> None:
    """Remove the entries that were written first if there are more than 1,000."""
    entries = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in entries[: max(0, len(entries) - _MOST_ENTRIES)]:
        path.unlink(missing_ok=True)
