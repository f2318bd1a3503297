"""Exceptions that qkv raises, all derived from `QkvError`.

    QkvError
    ├── ShapeError (ValueError)       lengths, widths or batch axes do not match
    ├── KindError (TypeError)         an argument has the wrong type, such as an array instead of a mask
    ├── OptionError (ValueError)      the value of an argument is not allowed
    ├── PositionError (ValueError)    query and key differ in length and positions are not given
    ├── NegativeScoreError (ValueError)   the normalizer Sum got a negative score
    ├── RefusedError (RuntimeError)   no kernel, or not the requested kernel, supports the call
    ├── GradientError (RuntimeError)  a gradient cannot be computed
    ├── MissingPackageError (ImportError)   an optional package is not installed
    ├── ServerError (RuntimeError)    a server cannot be reached, or refuses a request
    ├── StorageError (RuntimeError)   an object store cannot be reached, or refuses a request
    └── DataError (ValueError)        a table, file, column or query cannot be used
        ├── QueryError                SQL cannot be parsed, or a query does not match the columns
        ├── DamagedError              a file is missing, truncated, changed or crafted, and is not used
        │   └── DamagedStoreError     … that belongs to a store
        ├── StoreBusyError            another process is writing to the store
        ├── StoreConflictError        another process changed the same rows; nothing was committed
        └── StoreFullError            the disk is full; the store is unchanged

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
    "MemoryBudgetWarning",
    "MissingPackageError",
    "ServerError",
    "StorageError",
    "DataError",
    "QueryError",
    "DamagedError",
    "DamagedStoreError",
    "StoreBusyError",
    "StoreConflictError",
    "StoreFullError",
]


class QkvError(Exception):
    """Base class of all exceptions of qkv."""


class ShapeError(QkvError, ValueError):
    """Raised when lengths, widths or batch axes of arrays do not match."""


class KindError(QkvError, TypeError):
    """Raised when an argument has the wrong type, such as an array instead of a mask or text instead of numbers."""


class OptionError(QkvError, ValueError):
    """Raised when the value of an argument is not allowed."""


class PositionError(QkvError, ValueError):
    """Raised when query and key differ in length and a call that uses positions does not specify them."""


class NegativeScoreError(QkvError, ValueError):
    """Raised when the normalizer `Sum` gets a negative score, which would give a negative weight."""


class RefusedError(QkvError, RuntimeError):
    """Raised when no kernel, or not the requested kernel, supports the call; the message lists the reasons."""


class GradientError(QkvError, RuntimeError):
    """Raised when a gradient is needed but cannot be computed, so that it is not silently missing."""


class MemoryBudgetWarning(UserWarning):
    """Warns of a call that the memory budget makes more than 1.5 × slower; the message names a sufficient budget."""


class MissingPackageError(QkvError, ImportError):
    """Raised when an optional package is not installed; the message states which package to install."""


class ServerError(QkvError, RuntimeError):
    """Raised when a server cannot be reached or refuses a request, with the status of HTTP, or 0 without a response."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class StorageError(QkvError, RuntimeError):
    """Raised when an object store cannot be reached, refuses a request, or is read-only."""


class DataError(QkvError, ValueError):
    """Raised when a table, file, column or query cannot be used."""


class QueryError(DataError):
    """Raised when SQL cannot be parsed, or a query does not match the columns of the table."""


class DamagedError(DataError):
    """Raised when a file is missing, truncated, changed or crafted; the message names the file and the problem."""


class DamagedStoreError(DamagedError):
    """Raised when files of a store are missing, truncated or changed; the message names the files."""


class StoreBusyError(DataError):
    """Raised when another process is writing to the store."""


class StoreConflictError(DataError):
    """Raised when another process changed the rows that an operation replaces; the operation committed nothing."""


class StoreFullError(DataError):
    """Raised when the disk is full; the store remains unchanged."""
