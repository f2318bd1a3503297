"""A picture of a fitted regressor along one column: the data, the estimate with its band, and one answer.

dots     the fitted rows; redder and larger with their weight in the answer to the query
line     the estimate along the column, with everything else as in the query
band     ± the standard deviation of the error to expect
cross    the query's answer, with the same
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.errors import DataError, OptionError
from qkv.estimators.features import Features, columns_from, use_features
from qkv.look.figure import INK, new_figure

if TYPE_CHECKING:
    from qkv.estimators import AttentionRegressor

__all__ = ["regression"]

_DATA = "#b8bec6"
_CURVE = "#3b6ea8"
_ANSWER = "#c8321e"
_GRID = 160
_MOST_DOTS = 4000


def regression(
    model: AttentionRegressor, feature: str | int, query: Any = None, *, output: int = 0, dark: bool = False
) -> Any:
    """A matplotlib figure of the estimate along one column of numbers.

    Args:
        model: fitted.
        feature: name or place of the column.
        query: one row, as `predict` takes it; None: the fitted row nearest to the middle of all columns.
        output: which, where a row has several values.
        dark: light ink on dark paper.

    Raises:
        OptionError: there is no such column, or it holds no numbers.
        DataError: the query is not one row.
        NotFittedError: of scikit-learn, where the model is not fitted.
        MissingPackageError: matplotlib is not installed.

    Example:
        >>> import numpy as np
        >>> from qkv.estimators import AttentionRegressor
        >>> x = np.linspace(0, 6, 80)[:, None]
        >>> figure = regression(AttentionRegressor("none").fit(x, np.sin(x[:, 0])), 0, query=[[2.0]])
        >>> figure.get_suptitle()
        '2  →  0.914 ± 0.0019...'
    """
    from sklearn.utils.validation import check_is_fitted

    from qkv.look.figure import DARK, PAPER

    check_is_fitted(model, "keys_")
    plan, rows = model.features_, model.rows_
    known = columns_from(plan, Features(rows["numbers"], rows["codes"]))
    place, name = _place(model, feature)
    if known[place].dtype == object:
        raise OptionError(f"the column {name} holds text; a picture along a column wants numbers.")
    asked = _query(model, plan, rows, query)
    x, y = known[place], rows["values"][:, output] * model.y_scale_[output] + model.y_mean_[output]
    row = columns_from(plan, asked)
    at = float(row[place][0])
    there = ~np.isnan(x)
    grid = np.linspace(x[there].min(), x[there].max(), _GRID)
    along = [np.repeat(column, _GRID) for column in row]
    along[place] = grid
    curve, band = _estimate(model, use_features(plan, along), output)
    answer, error = (float(each[0]) for each in _estimate(model, asked, output))
    explained = model.explain_rows(asked, top=len(y), output=output)

    ink, paper = (DARK["ink"], DARK["paper"]) if dark else (INK, PAPER)
    figure = new_figure((7.2, 4.4), paper=paper)
    axes = figure.add_subplot(facecolor=paper)
    some = np.flatnonzero(there)
    some = some[:: max(1, len(some) // _MOST_DOTS)]
    axes.plot(x[some], y[some], "o", ms=3.5, color=_DATA, alpha=0.45, mew=0, zorder=1, label="fitted rows")
    axes.plot(grid, curve, color=_CURVE, lw=1.8, zorder=3, label="estimate")
    if np.isfinite(band).all():
        axes.fill_between(
            grid,
            curve - band,
            curve + band,
            color=_CURVE,
            alpha=0.3 if dark else 0.15,
            lw=0,
            zorder=2,
            label="± its error",
        )
    colours = "inferno" if dark else "Reds"
    _weights(figure, axes, x, y, explained.rows[0], explained.weights[0], ink, colours)
    axes.axvline(at, color=_ANSWER, lw=1, ls=(0, (4, 3)), zorder=4)
    bar = [error] if np.isfinite(error) else None
    axes.errorbar(
        [at],
        [answer],
        yerr=bar,
        fmt="X",
        ms=9,
        color=_ANSWER,
        mec="white",
        capsize=4,
        zorder=6,
        label="answer",
    )
    axes.set_xlabel(name, color=ink)
    axes.set_ylabel("value" if len(model.y_mean_) == 1 else f"value {output}", color=ink)
    axes.legend(frameon=False, fontsize=8, labelcolor=ink)
    for side in axes.spines.values():
        side.set_visible(side.spine_type in ("left", "bottom"))
        side.set_color(ink)
    axes.tick_params(colors=ink, labelsize=9)
    said = f"{answer:.3g} ± {error:.3g}" if np.isfinite(error) else f"{answer:.3g}"
    figure.suptitle(f"{at:.3g}  →  {said}", x=0.02, ha="left", fontsize=12, color=ink, fontweight="bold")
    return figure


def _estimate(model: Any, features: Features, output: int) -> tuple[np.ndarray, np.ndarray]:
    value, error = model.predict(features), model.predict_std(features)
    return (value, error) if value.ndim == 1 else (value[:, output], error[:, output])


def _place(model: Any, feature: str | int) -> tuple[int, str]:
    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    count = model.n_features_in_
    if isinstance(feature, str):
        if feature not in names:
            known = ", ".join(names[:12]) or f"none; give a place from 0 to {count - 1}"
            raise OptionError(f"there is no column {feature!r}; the fitted table has {known}.")
        return names.index(feature), feature
    if isinstance(feature, bool) or not 0 <= feature < count:
        raise OptionError(f"there is no column {feature}; places go from 0 to {count - 1}.")
    return int(feature), names[feature] if names else f"column {feature}"


def _query(model: Any, plan: dict[str, Any], rows: dict[str, np.ndarray], query: Any) -> Features:
    if query is None:
        middle = int(np.square(rows["numbers"]).sum(axis=1).argmin())
        return Features(rows["numbers"][[middle]], rows["codes"][[middle]])
    asked: Features = model._asked(query)
    if len(asked) != 1:
        raise DataError(f"a picture shows the answer to one query, and there are {len(asked)}. Give one row.")
    return asked


def _weights(figure: Any, axes: Any, x: Any, y: Any, rows: Any, weights: Any, ink: str, colours: str) -> None:
    """The rows that the answer rests on, redder and larger with their weight."""
    share = weights / weights[0]
    shown = (share > 0.01) & ~np.isnan(x[rows])
    # The heaviest last, so that nothing covers it.
    order = np.flatnonzero(shown)[::-1]
    dots = axes.scatter(
        x[rows[order]],
        y[rows[order]],
        c=weights[order],
        s=8 + 42 * share[order],
        cmap=colours,
        vmin=-0.1 * weights[0],
        vmax=weights[0],
        lw=0,
        zorder=5,
    )
    bar = figure.colorbar(dots, ax=axes, shrink=0.8, aspect=30)
    bar.set_label("weight in the answer", color=ink)
    bar.ax.set_ylim(0, weights[0])
    bar.ax.tick_params(colors=ink, labelsize=8)
    bar.outline.set_visible(False)
