"""Saving of fitted estimators as containers, with checksums and without executable code.

The container holds the name of the class, its parameters, and its fitted attributes: numbers, texts, lists and
dictionaries as JSON, arrays of numbers as parts with a checksum each.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from qkv.core.container import Container, read_container, write_container
from qkv.core.typing import Shaped
from qkv.errors import DamagedError, DataError

_CONTENT = "an estimator"
_VERSION = 4
"""Since 2, the encoding of a regressor may have a linear part; since 3, a classifier has a uniform share; since 4, two
parameters are named as in scikit-learn. `load` reads older files."""
_REMEDY = "Fit the estimator again, or restore the file from a copy."
_NUMBERS = "biufc"
_ATTRIBUTE = re.compile(r"_?[a-z][a-z0-9_]*")
_CACHED = "_cached"
"""Beginning of the names of attributes that are computed from others when needed, and not saved."""


class SavedEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of estimators that are saved to a file and loaded from it."""

    _former_names: ClassVar[Mapping[str, str]] = {}

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator to a file atomically, with checksums. `load` reads the file.

        Raises:
            sklearn.exceptions.NotFittedError: the estimator is not fitted.
            DataError: the file cannot be written, or a parameter cannot be saved, such as a generator of random
                numbers as `random_state`.

        Example:
            >>> import tempfile
            >>> from qkv.estimators import AttentionRegressor
            >>> x = np.linspace(-3, 3, 40)[:, None]
            >>> model = AttentionRegressor(metric="none").fit(x, x[:, 0] ** 2)
            >>> file = Path(tempfile.mkdtemp()) / "square.model"
            >>> model.save(file)
            >>> bool((AttentionRegressor.load(file).predict(x) == model.predict(x)).all())
            True
        """
        check_is_fitted(self)
        parameters = self.get_params(deep=False)
        state = {name: value for name, value in vars(self).items() if not name.startswith(_CACHED)}
        parts: dict[str, Shaped[np.ndarray, "*_"] | bytes] = {}
        settings = {
            "version": _VERSION,
            "class": type(self).__name__,
            "parameters": {name: _pack(value, name, parts) for name, value in parameters.items()},
            "state": {name: _pack(value, name, parts) for name, value in state.items() if name not in parameters},
        }
        write_container(Path(path), _CONTENT, settings, parts, "the estimator")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Load an estimator of this class from a file that `save` wrote. Its predictions are those before saving.

        Raises:
            DataError: the file cannot be read, or was written by a newer version of qkv.
            DamagedError: the file is damaged, or holds an estimator of another class.
        """
        container = read_container(Path(path), _CONTENT, _REMEDY, "the estimator")
        fields = container.fields()
        if fields.integer("version", 1) > _VERSION:
            raise DataError(f"{str(path)!r} was written by a newer version of qkv. Update: pip install -U qkv.")
        if fields.text("class") != cls.__name__:
            raise DamagedError(
                f"{str(path)!r} must hold a fitted {cls.__name__}, got {ascii(fields.text('class'))[:80]}. Load it "
                "with the class that saved it."
            )
        try:
            saved = fields.record("parameters").items()
            parameters = {cls._former_names.get(name, name): _unpack(value, container) for name, value in saved}
            estimator = cls(**parameters)
            for name, value in fields.record("state").items():
                known = hasattr(cls, name) or name in parameters or name.startswith(_CACHED)
                if known or not _ATTRIBUTE.fullmatch(name):
                    raise ValueError(f"it has the attribute {name[:80]!r}")
                setattr(estimator, name, _unpack(value, container))
            estimator._check_state()
        except DataError:
            raise
        except Exception as error:  # whatever the estimator raises for crafted values
            problem = f"{type(error).__name__}: {str(error)[:200]}"
            raise container.damaged(f"hold an intact {cls.__name__}", problem) from None
        return estimator

    def __getstate__(self) -> dict[str, object]:
        state: dict[str, object] = super().__getstate__()
        return {name: value for name, value in state.items() if not name.startswith(_CACHED)}

    @abstractmethod
    def _check_state(self) -> None:
        """Check the fitted attributes, including a prediction for one row; raise any exception if they do not match."""


def _pack(value: object, name: str, parts: dict[str, Shaped[np.ndarray, "*_"] | bytes]) -> object:
    """Return a value as JSON, and add its arrays of numbers to `parts`."""
    if isinstance(value, np.ndarray):
        return _pack_array(value, name, parts)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_pack(each, name, parts) for each in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _pack(each, name, parts) for key, each in value.items()}}
    raise DataError(
        f"{name} must be a number, a text, an array or None to be saved, got a {type(value).__name__}. Call "
        f"set_params({name}=…) with such a value first."
    )


def _pack_array(
    array: Shaped[np.ndarray, "*_"], name: str, parts: dict[str, Shaped[np.ndarray, "*_"] | bytes]
) -> object:
    shape = list(array.shape)
    if array.dtype.kind in "UO":
        return {
            "cells": [_pack(cell, name, parts) for cell in array.ravel().tolist()],
            "shape": shape,
            "dtype": array.dtype.str,
        }
    if array.dtype.kind in "mM":
        return {"times": _pack(array.astype(np.int64), name, parts), "dtype": array.dtype.str}
    if array.dtype.kind not in _NUMBERS:
        raise DataError(f"{name} must hold numbers or texts to be saved, got {array.dtype}. Convert it before fitting.")
    part = f"{len(parts)} {name}"
    parts[part] = array
    return {"array": part}


def _unpack(value: object, container: Container) -> object:
    """Return the value that `_pack` converted. Arrays are copies, which do not change with the file."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return container.array(str(value["array"])).copy()
    if "cells" in value:
        cells = np.empty(len(value["cells"]), object)
        cells[:] = [_unpack(cell, container) for cell in value["cells"]]
        dtype = np.dtype(str(value["dtype"]))
        if dtype.kind not in "UO" or dtype.itemsize > max([8, *(4 * len(str(cell)) for cell in cells)]):
            raise ValueError(f"an array of texts has the type {dtype}")
        return cells.astype(dtype).reshape([int(length) for length in value["shape"]])
    if "times" in value:
        times = _unpack(value["times"], container)
        dtype = np.dtype(str(value["dtype"]))
        if not isinstance(times, np.ndarray) or dtype.kind not in "mM":
            raise ValueError(f"an array of times has the type {dtype}")
        return times.astype(dtype)
    if "float" in value:
        return float(str(value["float"]))
    if "dict" in value:
        return {str(key): _unpack(each, container) for key, each in dict(value["dict"]).items()}
    if "list" in value:
        return [_unpack(each, container) for each in list(value["list"])]
    return tuple(_unpack(each, container) for each in list(value["tuple"]))
