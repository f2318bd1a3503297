"""Every error that qkv raises on purpose, in one tree.

    QkvError
    ├── ShapeError (ValueError)       lengths, widths or batch axes that do not fit
    ├── KindError (TypeError)         the wrong kind of thing: a bare array as a mask, text among numbers
    ├── OptionError (ValueError)      a number or name outside what is allowed
    ├── PositionError (ValueError)    query and key differ in length and nothing says how they are aligned
    ├── NegativeScoreError (ValueError)   Sum was given a negative score
    ├── RefusedError (RuntimeError)   no kernel, or not the named one, can run this; holds the sentences
    ├── GradientError (RuntimeError)  a gradient would silently be missing
    ├── MissingPackageError (ImportError)   an extra is not installed; says which
    └── DataError (ValueError)        a table, file, column or query that cannot be used
        ├── QueryError                bad SQL, or a query that does not fit the key
        ├── DamagedStoreError         files of a store that are missing, cut off or changed
        ├── StoreBusyError            another process is writing to the store
        └── StoreFullError            the disk is full; nothing was lost

Each is also of the built-in kind that a Python user expects, so `except ValueError` works.
"""

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
    """Anything that qkv raises on purpose."""


class ShapeError(QkvError, ValueError):
    """Lengths, widths or batch axes that do not fit each other."""


class KindError(QkvError, TypeError):
    """The wrong kind of thing: a bare array as a mask, text where numbers are wanted."""


class OptionError(QkvError, ValueError):
    """A number or a name outside what is allowed."""


class PositionError(QkvError, ValueError):
    """Query and key differ in length, positions matter, and nothing says how they are aligned."""


class NegativeScoreError(QkvError, ValueError):
    """`Sum` was given a negative score: weights would leave the cone of the values."""


class RefusedError(QkvError, RuntimeError):
    """No kernel, or not the one that was named, can run this."""


class GradientError(QkvError, RuntimeError):
    """A gradient would silently be missing."""


class MissingPackageError(QkvError, ImportError):
    """An optional package is not installed; the message says what to install."""


class DataError(QkvError, ValueError):
    """A table, file or column that cannot be used."""


class QueryError(DataError):
    """SQL that does not parse, or a query that does not fit the key."""


class DamagedStoreError(DataError):
    """Files of a store are missing, cut off or changed; the message names them."""


class StoreBusyError(DataError):
    """Another process is writing to the store."""


class StoreFullError(DataError):
    """The disk is full. The store is as it was before the call."""
