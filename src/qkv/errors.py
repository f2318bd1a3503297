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
    """Base class of all exceptions of qkv.

    Example:
        >>> import numpy as np, qkv
        >>> try:
        ...     qkv.attend(np.ones(3), np.ones((2, 3)), np.ones((2, 1)))
        ... except qkv.errors.QkvError as error:
        ...     print(type(error).__name__)
        ShapeError
    """


class ShapeError(QkvError, ValueError):
    """Raised when lengths, widths or batch axes of arrays do not match.

    Example:
        >>> import numpy as np, qkv
        >>> qkv.attend(np.ones((1, 3)), np.ones((2, 4)), np.ones((2, 1)))
        Traceback (most recent call last):
            ...
        qkv.errors.ShapeError: query and key must have the same width for ScaledDot, got widths 3 ...
    """


class KindError(QkvError, TypeError):
    """Raised when an argument has the wrong type, such as an array instead of a mask or text instead of numbers.

    Example:
        >>> import numpy as np, qkv
        >>> qkv.attend(np.ones((1, 3)), np.ones((2, 3)), np.ones((2, 1)), mask=np.array([True, False]))
        Traceback (most recent call last):
            ...
        qkv.errors.KindError: mask must be a Mask, got an array of shape (2,). Wrap ...
    """


class OptionError(QkvError, ValueError):
    """Raised when the value of an argument is not allowed.

    Example:
        >>> from qkv import normalizers
        >>> normalizers.TopK(0)
        Traceback (most recent call last):
            ...
        qkv.errors.OptionError: k of TopK must be an integer of at least 1, got 0. Pass, for example, 5.
    """


class PositionError(QkvError, ValueError):
    """Raised when query and key differ in length and a call that uses positions does not specify them.

    Example:
        >>> import numpy as np, qkv
        >>> query, key, value = np.ones((1, 3)), np.ones((2, 3)), np.array([[1.0], [3.0]])
        >>> qkv.attend(query, key, value, mask=qkv.masks.Causal())
        Traceback (most recent call last):
            ...
        qkv.errors.PositionError: positions must be given for 1 queries and 2 keys, because ...
        >>> qkv.attend(query, key, value, mask=qkv.masks.Causal(), positions=qkv.Positions(align="end"))
        array([[2.]])
    """


class NegativeScoreError(QkvError, ValueError):
    """Raised when the normalizer `Sum` gets a negative score, which would give a negative weight.

    Example:
        >>> import numpy as np, qkv
        >>> qkv.attend(np.array([[-1.0]]), np.ones((2, 1)), np.ones((2, 1)), score=qkv.scores.Dot(),
        ...            normalizer=qkv.normalizers.Sum())
        Traceback (most recent call last):
            ...
        qkv.errors.NegativeScoreError: scores must be non-negative for Sum, got -1. Use Softmax for ...
    """


class RefusedError(QkvError, RuntimeError):
    """Raised when no kernel, or not the requested kernel, supports the call; the message lists the reasons.

    Example:
        >>> import numpy as np, qkv
        >>> qkv.attend(np.ones((1, 3)), np.ones((2, 3)), np.ones((2, 1)), kernel="fused")
        Traceback (most recent call last):
            ...
        qkv.errors.RefusedError: the kernel fused cannot run this call: it supports torch arrays, ...
    """


class GradientError(QkvError, RuntimeError):
    """Raised when a gradient is needed but cannot be computed, so that it is not silently missing.

    Example:
        >>> import torch
        >>> from qkv import masks
        >>> masks.Custom(lambda query, key, reach: query - key < reach, (torch.tensor(2.0, requires_grad=True),))
        Traceback (most recent call last):
            ...
        qkv.errors.GradientError: parameters of Custom must not require a gradient, because a mask has none. ...
    """


class MemoryBudgetWarning(UserWarning):
    """Warns of a call that the memory budget makes more than 1.5 × slower; the message names a sufficient budget.

    Example:
        >>> import warnings, numpy as np, qkv
        >>> x = np.zeros((1024, 64), np.float32)
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", qkv.errors.MemoryBudgetWarning)  # slower, and wanted
        ...     qkv.attend(x, x, x, memory="64 KiB").shape
        (1024, 64)
    """


class MissingPackageError(QkvError, ImportError):
    """Raised when an optional package is not installed; the message states which package to install.

    Example:
        >>> from qkv.errors import MissingPackageError
        >>> try:
        ...     from qkv import nn
        ... except MissingPackageError as error:
        ...     print(error)  # "qkv.nn needs torch, which is not installed. Run: pip install …"
    """


class ServerError(QkvError, RuntimeError):
    """Raised when a server cannot be reached or refuses a request, with the status of HTTP, or 0 without a response.

    Example:
        >>> from qkv.serve import Client
        >>> Client("http://127.0.0.1:9")
        Traceback (most recent call last):
            ...
        qkv.errors.ServerError: url must be the address of a running server, got 'http://127.0.0.1:9': ...
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class StorageError(QkvError, RuntimeError):
    """Raised when an object store cannot be reached, refuses a request, or is read-only.

    Example:
        >>> from qkv import Database
        >>> Database.create("https://host/people", {"name": ["Li Mu"], "pay": [1]}, key="name", value="pay")
        Traceback (most recent call last):
            ...
        qkv.errors.StorageError: https://host/people must be an object store that can be written, such as s3://, ...
    """


class DataError(QkvError, ValueError):
    """Raised when a table, file, column or query cannot be used.

    Example:
        >>> from qkv import Database
        >>> Database.open({"name": ["Li Mu"], "pay": [1]}, key="name", value="income")
        Traceback (most recent call last):
            ...
        qkv.errors.DataError: column must be one of name, pay in the dict, got 'income'. ...
    """


class QueryError(DataError):
    """Raised when SQL cannot be parsed, or a query does not match the columns of the table.

    Example:
        >>> from qkv import Database
        >>> Database.open({"name": ["Li Mu"], "pay": [1]}, key="name", value="pay").ask("Li Mu", where="pay >")
        Traceback (most recent call last):
            ...
        qkv.errors.QueryError: the predicate 'pay >' failed: syntax error at or near ">". ...
    """


class DamagedError(DataError):
    """Raised when a file is missing, truncated, changed or crafted; the message names the file and the problem.

    Example:
        >>> import pathlib, tempfile
        >>> from qkv.encoders import LatentEncoder, load_encoder
        >>> file = pathlib.Path(tempfile.mkdtemp(), "encoder")
        >>> _ = file.write_bytes(b"no encoder")
        >>> load_encoder(LatentEncoder, file)
        Traceback (most recent call last):
            ...
        qkv.errors.DamagedError: path must be a file that LatentEncoder.save wrote, got ...
    """


class DamagedStoreError(DamagedError):
    """Raised when files of a store are missing, truncated or changed; the message names the files.

    Example:
        >>> import pathlib, tempfile
        >>> from qkv import Database
        >>> folder = tempfile.mkdtemp() + "/people"
        >>> people = Database.create(folder, {"name": ["Li Mu"], "pay": [1]}, key="name", value="pay")
        >>> next(pathlib.Path(folder).glob("rows/*")).unlink()
        >>> Database.open(folder)
        Traceback (most recent call last):
            ...
        qkv.errors.DamagedStoreError: 'people' is damaged: ...
    """


class StoreBusyError(DataError):
    """Raised when another process is writing to the store.

    Example:
        >>> import tempfile
        >>> from qkv import Database, errors
        >>> folder, row = tempfile.mkdtemp() + "/people", {"name": ["Li Mu"], "pay": [1]}
        >>> people = Database.create(folder, row, key="name", value="pay")
        >>> try:
        ...     people.append(row)
        ... except errors.StoreBusyError:  # after ten seconds; nothing was written
        ...     print("append again later")
        2
    """


class StoreConflictError(DataError):
    """Raised when another process changed the rows that an operation replaces; the operation committed nothing.

    Example:
        >>> import tempfile
        >>> from qkv import Database, errors
        >>> folder, row = tempfile.mkdtemp() + "/people", {"name": ["Li Mu"], "pay": [1]}
        >>> people = Database.create(folder, row, key="name", value="pay")
        >>> try:
        ...     people.delete("pay > 100")
        ... except errors.StoreConflictError:  # in object storage, where writers do not wait for each other
        ...     people.refresh()  # then delete again
        0
    """


class StoreFullError(DataError):
    """Raised when the disk is full; the store remains unchanged.

    Example:
        >>> import tempfile
        >>> from qkv import Database, errors
        >>> folder, row = tempfile.mkdtemp() + "/people", {"name": ["Li Mu"], "pay": [1]}
        >>> people = Database.create(folder, row, key="name", value="pay")
        >>> try:
        ...     people.append(row)
        ... except errors.StoreFullError:  # all earlier rows remain
        ...     people.compact(keep=1)  # removes old versions; then append again
        2
    """
