"""Plot the estimate of a fitted regressor along one column, with the fitted rows and one prediction.

dots     the fitted rows; rows of larger weight in the prediction are darker and larger
line     the estimate along the column, with all other columns fixed to the values of the query
band     the estimate ± its expected error (one standard deviation)
cross    the prediction for the query, with its expected error
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qkv.core.checks import describe
from qkv.errors import DataError, KindError, OptionError
from qkv.estimators.features import Features, decode_columns, encode_columns
from qkv.look.figure import (
    DATA_COLOR,
    column_inches,
    draw_answer,
    draw_curve,
    draw_weighted_points,
    new_figure,
    style_figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from qkv.core.typing import ArrayLike, Float, Shaped
    from qkv.estimators import AttentionRegressor


_GRID_POINTS = 160
_MAX_DOTS = 4000


def plot_regression(
    model: AttentionRegressor,
    feature: str | int,
    query: ArrayLike | None = None,
    *,
    output: int = 0,
    width: float | str = "double",
    dark: bool = False,
) -> Figure:
    """Plot the estimate of a fitted regressor along one numeric column.

    Args:
        model: a fitted regressor.
        feature: name or index of the column.
        query: one row in the format of `predict`; None: the fitted row closest to the mean of all columns.
        output: index of the target, if the model has several.
        width: `"single"` or `"double"` (one column, 3.5 inches, or two, 7.2 inches), or a number of inches.
        dark: draw light lines on a dark background.

    Raises:
        KindError: the model is no regressor, or `feature` is neither a name nor an index.
        OptionError: the column, the output or the width does not exist, or the column is not numeric or is empty.
        DataError: the query is not one row.
        NotFittedError: the model is not fitted (scikit-learn's error).
        MissingPackageError: matplotlib is not installed.

    Example:
        >>> import numpy as np
        >>> from qkv.estimators import AttentionRegressor
        >>> x = np.linspace(0, 6, 80)[:, None]
        >>> figure = plot_regression(AttentionRegressor("none").fit(x, np.sin(x[:, 0])), 0, query=[[2.0]])
        >>> figure.get_suptitle()
        '2  →  0.914 ± 0.00...'
    """
    from sklearn.utils.validation import check_is_fitted

    from qkv.estimators import AttentionRegressor

    if not isinstance(model, AttentionRegressor):
        raise KindError(f"model must be an AttentionRegressor, got {describe(model)}. Pass a fitted regressor.")
    check_is_fitted(model, "keys_")
    inches, plan, rows = column_inches(width), model.features_, model.rows_
    fitted = decode_columns(plan, Features(rows["numbers"], rows["codes"]))
    index, name = _column_index(model, feature)
    if fitted[index].dtype == object:
        raise OptionError(f"feature must be a numeric column, got {name}, which holds text. Choose another column.")
    if np.isnan(fitted[index]).all():
        raise OptionError(f"feature must be a column with numbers, got {name}, which is empty. Choose another column.")
    features = _query_features(model, rows, query)
    explained = model.explain_rows(features, top=len(rows["values"]), output=output)
    x, y = fitted[index], rows["values"][:, output] * model.y_scale_[output] + model.y_mean_[output]
    row = decode_columns(plan, features)
    at = float(row[index][0])
    present = ~np.isnan(x)
    grid = np.linspace(x[present].min(), x[present].max(), _GRID_POINTS)
    along = [np.repeat(column, _GRID_POINTS) for column in row]
    along[index] = grid
    curve, band = _estimate(model, encode_columns(plan, along), output)
    answer, error = (float(each[0]) for each in _estimate(model, features, output))
    shown_at = f"{at:.3g}"
    if index in plan.get("dates", ()):  # columns of dates hold microseconds, here in the precision of float32
        day = 86_400e6
        unit = "D" if np.ptp(x[present]) > 30 * day else "m"
        rounded = np.datetime64(round(at + (day if unit == "D" else 60e6) / 2), "us")
        shown_at = str(rounded.astype(f"datetime64[{unit}]"))
        x, grid, (at,) = (np.asarray(each).astype("datetime64[us]") for each in (x, grid, [at]))

    figure = new_figure((inches, 0.5 * inches + 0.8), dark=dark)
    axes = figure.add_subplot()
    sample = np.flatnonzero(present)
    sample = sample[:: max(1, len(sample) // _MAX_DOTS)]
    axes.plot(x[sample], y[sample], "o", ms=3.5, color=DATA_COLOR, alpha=0.45, mew=0, zorder=1, label="fitted rows")
    ends = curve - band, curve + band
    draw_curve(axes, grid, curve, ends, ("estimate", "± expected error"), 0.3 if dark else 0.15)
    colors = "inferno" if dark else "Reds"
    visible = present[explained.rows[0]]
    weighted, weights = explained.rows[0][visible], explained.weights[0][visible]
    draw_weighted_points(figure, axes, x[weighted], y[weighted], weights, "weight in the answer", colors)
    draw_answer(axes, at, answer, error, "answer", "X", 9)
    if x.dtype.kind == "M":
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(maxticks=max(3, int(inches)))
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set(xlabel=name, ylabel="value" if len(model.y_mean_) == 1 else f"value {output}")
    prediction = f"{answer:.3g} ± {error:.3g}" if np.isfinite(error) else f"{answer:.3g}"
    style_figure(figure, f"{shown_at}  →  {prediction}", dark=dark)
    return figure


def _estimate(
    model: AttentionRegressor, features: Features, output: int
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    value, error = model.predict(features), model.predict_std(features)
    return (value, error) if value.ndim == 1 else (value[:, output], error[:, output])


def _column_index(model: AttentionRegressor, feature: str | int) -> tuple[int, str]:
    names, count = [str(name) for name in getattr(model, "feature_names_in_", ())], model.n_features_in_
    if isinstance(feature, str):
        if feature not in names:
            known = f"one of {', '.join(names[:12])}" if names else f"an index from 0 to {count - 1}"
            raise OptionError(f"feature must be a column of the fitted table, got {feature!r}. Pass {known}.")
        return names.index(feature), feature
    if not isinstance(feature, int | np.integer):
        given, first = describe(feature), (names or [0])[0]
        raise KindError(f"feature must be the name or index of a column, got {given}. Pass {first!r}.")
    if isinstance(feature, bool) or not 0 <= feature < count:
        raise OptionError(
            f"feature must be an index from 0 to {count - 1}, got {feature}. Pass the index of a numeric column."
        )
    return int(feature), names[feature] if names else f"column {feature}"


def _query_features(
    model: AttentionRegressor, rows: dict[str, Shaped[np.ndarray, "n _"]], query: ArrayLike | None
) -> Features:
    if query is None:
        middle = int(np.square(rows["numbers"]).sum(axis=1).argmin())
        return Features(rows["numbers"][[middle]], rows["codes"][[middle]])
    features: Features = model._query_features(query)
    if len(features) != 1:
        raise DataError(f"query must be one row, got {len(features)} rows. Select one row, for example query[:1].")
    return features
