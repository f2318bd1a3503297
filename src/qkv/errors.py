"""Every error that qkv raises on purpose, in one tree.

    QkvError
    ├── ShapeError (ValueError)       lengths, widths or batch axes do not fit
    ├── KindError (TypeError)         an argument has the wrong type: a bare array as a mask, text among numbers
    ├── OptionError (ValueError)      a number or a name is not allowed
    ├── PositionError (ValueError)    query and key differ in length and the call gives no positions
    ├── NegativeScoreError (ValueError)   the normalizer Sum got a negative score
    ├── RefusedError (RuntimeError)   no kernel, or not the named one, supports the call; lists the reasons
    ├── GradientError (RuntimeError)  a gradient would silently be missing
    ├── MissingPackageError (ImportError)   an optional package is not installed
    └── DataError (ValueError)        a table, file, column or query cannot be used
        ├── QueryError                SQL does not parse, or a query does not fit the key
        ├── DamagedStoreError         files of a store are missing, truncated or changed
        ├── StoreBusyError            another process is writing to the store
        └── StoreFullError            the disk is full; nothing was lost

Each error also derives from a built-in exception, so `except ValueError` works.
"""

from __future__ import annotations

__all__ = [
    "QkvError",
    "ShapeError",
    "KindError",
    "OptionError",
    "PositionError",
    "NegativeScoreError",
    "RefusedError",
    "GradientError",
    "MissingPackageError",
    "DataError",
    "QueryError",
    "DamagedStoreError",
    "StoreBusyError",
    "StoreFullError",
]


class QkvError(Exception):
    """Base class of all errors that qkv raises on purpose."""


class ShapeError(QkvError, ValueError):
    """Lengths, widths or batch axes do not fit each other."""


class KindError(QkvError, TypeError):
    """An argument has the wrong type, such as a bare array as a mask or text instead of numbers."""


class OptionError(QkvError, ValueError):
    """A number or a name is not allowed."""


class PositionError(QkvError, ValueError):
    """Query and key differ in length, positions matter, and the call gives none."""


class NegativeScoreError(QkvError, ValueError):
    """The normalizer `Sum` got a negative score, which would give a negative weight."""


class RefusedError(QkvError, RuntimeError):
    """No kernel, or not the named one, supports the call."""


class GradientError(QkvError, RuntimeError):
    """A gradient would silently be missing."""


class MissingPackageError(QkvError, ImportError):
    """An optional package is not installed; the message says what to install."""


class DataError(QkvError, ValueError):
    """A table, file or column cannot be used."""


class QueryError(DataError):
    """SQL does not parse, or a query does not fit the key."""


class DamagedStoreError(DataError):
    """Files of a store are missing, truncated or changed; the message names them."""


class StoreBusyError(DataError):
    """Another process is writing to the store."""


class StoreFullError(DataError):
    """The disk is full. The store is as it was before the call."""
