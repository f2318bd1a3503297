"""Namespace of array API functions for TensorFlow tensors, based on `keras.ops`.

Most functions have the same name in Keras as in the standard. This module adds functions that Keras names
differently, and functions for which the standard is stricter than Keras (order of equal elements, dtype of indices).
Indices are int64, as in NumPy.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from qkv.core.extras import require_packages
from qkv.core.typing import Array, DType, Int, Namespace, Num, Shaped
from qkv.errors import KindError


@cache
def tensorflow_namespace() -> Namespace:
    """Return the namespace of array API functions for TensorFlow.

    Raises:
        MissingPackageError: Keras is not installed.
        KindError: the backend of Keras is not TensorFlow.
    """
    require_packages("TensorFlow tensors need", "keras", "keras")
    import keras

    if keras.backend.backend() != "tensorflow":
        raise KindError(
            f"the backend of Keras must be tensorflow for TensorFlow tensors, got {keras.backend.backend()}. Set "
            "KERAS_BACKEND=tensorflow before Keras is imported, or convert the tensors to "
            f"{keras.backend.backend()} arrays."
        )
    return _TensorFlow()


class _TensorFlow:
    """Namespace with the functions and dtypes of the array API for TensorFlow as attributes."""

    inf, nan = float("inf"), float("nan")

    def __init__(self) -> None:
        import keras
        import tensorflow as tf

        self._ops: Namespace = keras.ops
        self._tf: Namespace = tf
        self._bitwise: Namespace = tf.bitwise
        self._result_type = keras.backend.result_type
        for name in ("bool", "int32", "int64", "uint32", "float32", "float64", "where", "ones_like"):
            setattr(self, name, getattr(tf, name))
        # Functions that TensorFlow has with the signature of the standard, under another name.
        self.asarray, self.astype, self.concat, self.take = tf.convert_to_tensor, tf.cast, tf.concat, tf.gather
        self.cumulative_sum, self.matrix_transpose = tf.cumsum, tf.linalg.matrix_transpose
        self.max = tf.reduce_max  # keras.ops.max raises for an empty axis

    def __getattr__(self, name: str) -> Any:
        # Set the attribute, so that this runs once per name.
        function = getattr(self._ops, name)
        setattr(self, name, function)
        return function

    def broadcast_arrays(self, *arrays: Shaped[Array, "*#shape"]) -> list[Shaped[Array, "*shape"]]:
        shape = np.broadcast_shapes(*(tuple(x.shape) for x in arrays))
        return [self._tf.broadcast_to(x, shape) for x in arrays]

    def finfo(self, dtype: DType) -> Any:
        return np.finfo(dtype.as_numpy_dtype)

    def result_type(self, *dtypes: DType) -> DType:
        return self._tf.as_dtype(self._result_type(*(dtype.name for dtype in dtypes)))

    # -- functions for which the standard is stricter ----------------------------------------------------

    def arange(self, start: int, stop: int) -> Int[Array, " n"]:
        return self._tf.range(start, stop, dtype=self._tf.int64)

    def argmax(self, x: Shaped[Array, "*_"], axis: int, keepdims: bool = False) -> Int[Array, "*_"]:
        index = self._tf.argmax(x, axis, output_type=self._tf.int64)
        return self._tf.expand_dims(index, axis) if keepdims else index

    def argsort(
        self, x: Shaped[Array, "*shape"], axis: int = -1, descending: bool = False, stable: bool = True
    ) -> Int[Array, "*shape"]:
        direction = "DESCENDING" if descending else "ASCENDING"
        return self._tf.cast(self._tf.argsort(x, axis, direction, stable=True), self._tf.int64)

    def sort(self, x: Shaped[Array, "*shape"], axis: int = -1, descending: bool = False) -> Shaped[Array, "*shape"]:
        return self._tf.sort(x, axis, "DESCENDING" if descending else "ASCENDING")

    def matmul(self, x: Num[Array, "*left n width"], y: Num[Array, "*right width m"]) -> Num[Array, "*batch n m"]:
        # Make batch axes equal first: TensorFlow 2.21 with oneDNN can abort the process, forward or in the
        # gradient, if an axis is 1 on one side only.
        tf = self._tf
        ones = [all(n == 1 for n in side.shape[:-2]) for side in (x, y)]
        if ones[1] and not ones[0]:
            # Lengths that a tracer does not know are None in `shape`.
            left, right = ([tf.shape(z)[n] if m is None else m for n, m in enumerate(z.shape)] for z in (x, y))
            rows = tf.matmul(tf.reshape(x, (-1, left[-1])), tf.reshape(y, right[-2:]))
            lead = [1] * (len(right) - len(left))
            return tf.reshape(rows, (*lead, *left[:-1], right[-1]))
        if tuple(x.shape[:-2]) != tuple(y.shape[:-2]):
            batch = tf.broadcast_dynamic_shape(tf.shape(x)[:-2], tf.shape(y)[:-2])
            x, y = (
                self._like_static(tf.broadcast_to(z, tf.concat([batch, tf.shape(z)[-2:]], 0)), x, y, z) for z in (x, y)
            )
        return tf.matmul(x, y)

    def _like_static(self, out: Any, x: Array, y: Array, own: Any) -> Any:
        """Set the static shape of `out` to the broadcast batch shape of `x` and `y` and the last axes of `own`.

        TensorFlow loses the static shape in operations on dynamic shapes.
        """
        batch: Any = self._tf.broadcast_static_shape(x.shape[:-2], y.shape[:-2])
        out.set_shape(batch.concatenate(own.shape[-2:]))
        return out

    def take_along_axis(
        self, x: Shaped[Array, "*_"], index: Int[Array, "*shape"], axis: int
    ) -> Shaped[Array, "*shape"]:
        # Batch axes are equal here and indices are not negative, so tf.gather is enough and faster than keras.ops.
        tf, axis = self._tf, axis % len(x.shape)
        if axis != len(x.shape) - 1:
            return self._ops.take_along_axis(x, index, axis)
        return tf.gather(x, index, batch_dims=len(index.shape) - 1)

    def shift(self, x: Num[Array, "*shape"], by: int) -> Num[Array, "*shape"]:
        return self._bitwise.right_shift(x, self._tf.constant(by, self._tf.uint32))

    def rotate(self, x: Num[Array, "*shape"], by: int) -> Num[Array, "*shape"]:
        """Rotate the bits of unsigned 32-bit integers to the left by `by` places."""
        bits, word = self._bitwise, self._tf.uint32
        high = bits.left_shift(x, self._tf.constant(by, word))
        return bits.bitwise_or(high, bits.right_shift(x, self._tf.constant(32 - by, word)))
