"""Check that the arrays of an estimator that was read from a file belong together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.estimators.features import Features, encoding_sizes, has_linear_part

if TYPE_CHECKING:
    from qkv.estimators.base import AttentionEstimator

__all__ = ["check_fitted_arrays"]


def check_fitted_arrays(estimator: AttentionEstimator, rows: Features, outputs: int) -> None:
    """Raise ValueError if shapes, codes or indices do not fit each other.

    Args:
        estimator: the estimator.
        rows: features of its fitted rows.
        outputs: values per row.
    """
    count = len(estimator.rows_["values"])
    shapes = {
        "keys_": (estimator.keys_, (len(estimator.keys_), count, estimator.keys_.shape[2])),
        "residuals_": (estimator.residuals_, (len(estimator.residuals_), count, outputs)),
        "numbers": (
            rows.numbers,
            (count, encoding_sizes(estimator.features_)[0] * (1 + has_linear_part(estimator.features_))),
        ),
        "codes": (rows.codes, (count, len(encoding_sizes(estimator.features_)[1]))),
        "out_of_bag_rows_": (estimator.out_of_bag_rows_, (len(estimator.keys_), estimator.out_of_bag_rows_.shape[1])),
    }
    if estimator.sample_weight_ is not None:
        shapes["sample_weight_"] = (estimator.sample_weight_, (count,))
    for name, (array, shape) in shapes.items():
        if array.shape != shape:
            raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    for codes, size in zip(rows.codes.T, encoding_sizes(estimator.features_)[1], strict=True):
        if codes.min() < 0 or codes.max() >= size:
            raise ValueError(f"codes must be from 0 to {size - 1}, got {codes.min()} to {codes.max()}")
    if (
        estimator.out_of_bag_rows_.size
        and not 0 <= estimator.out_of_bag_rows_.min() <= estimator.out_of_bag_rows_.max() < count
    ):
        raise ValueError(f"out_of_bag_rows_ must be from 0 to {count - 1}, got {estimator.out_of_bag_rows_.max()}")
    if not 0.0 <= vars(estimator).get("uniform_share_", 0.0) <= 1.0:
        raise ValueError(f"uniform_share_ must be from 0 to 1, got {estimator.uniform_share_}")
