"""Methods of `benchmarks.tables`, with their defaults and the spaces of the random search.

Peers are imported when they are made. Numbers are standardized and categories have a column for each level, except for
histogram gradient boosting and forests (integer codes), and for XGBoost, LightGBM, CatBoost, RealMLP, TabM, TabR and
qkv, which encode categories themselves. TabR needs the packages faiss-cpu and skorch besides pytabkit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pandas as pd
from examples.tables import coded_columns, scaled_columns

__all__ = ["METHODS", "Method", "draw_parameters"]

Draw = Callable[[np.random.Generator], Any]


def _log(low: float, high: float) -> Draw:
    return lambda rng: float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _whole(low: float, high: float) -> Draw:
    return lambda rng: round(_log(low, high)(rng))


def _uniform(low: float, high: float) -> Draw:
    return lambda rng: float(rng.uniform(low, high))


def _one_of(*choices: Any) -> Draw:
    return lambda rng: choices[rng.integers(len(choices))]


class Encoded:
    """An estimator on transformed columns, with a standardized target if `scale_y`."""

    def __init__(self, columns: Any, model: Any, scale_y: bool = False) -> None:
        self.columns = columns
        self.model = model
        self.scale_y = scale_y

    def fit(self, X: pd.DataFrame, y: np.ndarray) -> Encoded:
        self.mean_, self.deviation_ = (y.mean(), y.std() or 1.0) if self.scale_y else (0.0, 1.0)
        encoded = self._dense(self.columns.fit_transform(X))
        self.model.fit(encoded, (y - self.mean_) / self.deviation_ if self.scale_y else y)
        return self

    def predict(self, X: pd.DataFrame) -> np.ndarray:
        return np.ravel(self.model.predict(self._encode(X))) * self.deviation_ + self.mean_

    def predict_proba(self, X: pd.DataFrame) -> np.ndarray:
        return self.model.predict_proba(self._encode(X))

    def predict_interval(self, X: pd.DataFrame, level: float) -> tuple[np.ndarray, np.ndarray]:
        low, high = self.model.predict_interval(self._encode(X), level)
        return low * self.deviation_ + self.mean_, high * self.deviation_ + self.mean_

    def _encode(self, X: pd.DataFrame) -> Any:
        return self._dense(self.columns.transform(X))

    @staticmethod
    def _dense(encoded: Any) -> Any:
        return encoded.toarray() if hasattr(encoded, "toarray") else encoded


class Levels:
    """Replace text columns by pandas categories with the training levels; optionally impute numbers by the median."""

    def __init__(self, impute: bool = False, text: bool = False) -> None:
        self.impute = impute
        self.text = text

    def fit_transform(self, X: pd.DataFrame) -> pd.DataFrame:
        categories = X.select_dtypes(exclude="number")
        self.levels_ = {name: sorted(categories[name].dropna().unique()) for name in categories}
        self.medians_ = X.select_dtypes("number").median()
        return self.transform(X)

    def transform(self, X: pd.DataFrame) -> pd.DataFrame:
        X = X.fillna(self.medians_) if self.impute else X.copy()
        for name, levels in self.levels_.items():
            known = X[name].where(X[name].isin(levels))
            X[name] = (
                known.astype(object).where(known.notna(), "missing")
                if self.text
                else pd.Categorical(known, categories=levels)
            )
        return X.rename(columns={name: str(name).replace(" ", "_") for name in X})


@dataclass(frozen=True)
class Method:
    """A method that is compared.

    Attributes:
        package: distribution whose version is recorded.
        make: returns an estimator; takes whether the target is a class, the training columns, and parameters.
        space: parameters of the random search.
        classes: whether it predicts classes.
        largest: largest number of training rows, 0 means any.
    """

    package: str
    make: Callable[..., Any]
    space: Mapping[str, Draw]
    classes: bool = True
    largest: int = 0

    @property
    def version(self) -> str:
        try:
            return version(self.package)
        except PackageNotFoundError:
            return ""


def draw_parameters(method: Method, seed: int, number: int) -> dict[str, Any]:
    """Return the parameters of one step of the random search; number 0 are the defaults."""
    rng = np.random.default_rng((seed, number))
    return {name: draw(rng) for name, draw in method.space.items()} if number else {}


def _attention(effort: str) -> Callable[..., Any]:
    def make(classes: bool, X: pd.DataFrame, **parameters: Any) -> Any:
        from qkv.estimators import AttentionClassifier, AttentionRegressor

        return (AttentionClassifier if classes else AttentionRegressor)(effort=effort, random_state=0, **parameters)

    return make


def _linear(classes: bool, X: pd.DataFrame, **parameters: Any) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge

    model = LogisticRegression(max_iter=1000) if classes else Ridge()
    if parameters:
        strength = parameters["strength"]
        model.set_params(**({"C": 1 / strength} if classes else {"alpha": strength}))
    return Encoded(scaled_columns(), model)


def _scikit(module: str, stem: str, columns: Callable[[], Any], scale_y: bool = False, **fixed: Any) -> Any:
    def make(classes: bool, X: pd.DataFrame, **parameters: Any) -> Any:
        from importlib import import_module

        found = getattr(import_module(f"sklearn.{module}"), stem + ("Classifier" if classes else "Regressor"))
        return Encoded(columns(), found(**fixed, **parameters), scale_y and not classes)

    return make


def _xgboost(classes: bool, X: pd.DataFrame, **parameters: Any) -> Any:
    from xgboost import XGBClassifier, XGBRegressor

    found = XGBClassifier if classes else XGBRegressor
    return Encoded(Levels(), found(n_jobs=1, random_state=0, enable_categorical=True, **parameters))


def _lightgbm(classes: bool, X: pd.DataFrame, **parameters: Any) -> Any:
    from lightgbm import LGBMClassifier, LGBMRegressor

    found = LGBMClassifier if classes else LGBMRegressor
    return Encoded(Levels(), found(n_jobs=1, random_state=0, verbosity=-1, **parameters))


def _catboost(classes: bool, X: pd.DataFrame, **parameters: Any) -> Any:
    from catboost import CatBoostClassifier, CatBoostRegressor

    found = CatBoostClassifier if classes else CatBoostRegressor
    text = [str(name).replace(" ", "_") for name in X.select_dtypes(exclude="number")]
    fixed = {"thread_count": 1, "random_seed": 0, "verbose": False, "allow_writing_files": False}
    return Encoded(Levels(text=True), found(cat_features=text, **fixed, **parameters))


def _process(inducing: int) -> Callable[..., Any]:
    def make(classes: bool, X: pd.DataFrame, **parameters: Any) -> Any:
        from benchmarks._gaussian_process import GaussianProcess

        return Encoded(scaled_columns(), GaussianProcess(inducing, **parameters), scale_y=True)

    return make


def _pytabkit(stem: str) -> Callable[..., Any]:
    def make(classes: bool, X: pd.DataFrame, **parameters: Any) -> Any:
        import pytabkit

        fixed = {"device": "cpu", "random_state": 0, "n_threads": 1, "verbosity": 0}
        if stem == "TabR_S_D":
            from benchmarks._tabr import TabR

            return Encoded(Levels(impute=True), TabR(classes, **fixed, **parameters))
        found = getattr(pytabkit, f"{stem}_{'Classifier' if classes else 'Regressor'}")
        return Encoded(Levels(impute=True), found(**fixed, **parameters))

    return make


def _modern_nca(classes: bool, X: pd.DataFrame, **parameters: Any) -> Any:
    from benchmarks._modern_nca import ModernNCA

    numbers = X.select_dtypes("number").shape[1]
    return Encoded(scaled_columns(), ModernNCA(classes, numbers, **parameters), scale_y=not classes)


_ATTENTION = {
    "learning_rate": _log(0.003, 0.03),
    "weight_decay": _log(1e-5, 1e-1),
    "dropout": _uniform(0, 0.3),
    "n_components": _one_of(8, 16, 32),
}
_FOREST = {"max_features": _uniform(0.2, 1.0), "min_samples_leaf": _whole(1, 20), "n_estimators": _one_of(100, 300)}

METHODS: dict[str, Method] = {
    "attention, quick": Method("qkv", _attention("quick"), _ATTENTION),
    "attention, standard": Method("qkv", _attention("standard"), _ATTENTION),
    "attention, best": Method("qkv", _attention("best"), _ATTENTION),
    "linear": Method("scikit-learn", _linear, {"strength": _log(1e-3, 1e3)}),
    "nearest neighbours": Method(
        "scikit-learn",
        _scikit("neighbors", "KNeighbors", scaled_columns, n_jobs=1),
        {"n_neighbors": _whole(1, 50), "weights": _one_of("uniform", "distance"), "p": _one_of(1, 2)},
    ),
    "histogram boosting": Method(
        "scikit-learn",
        _scikit("ensemble", "HistGradientBoosting", coded_columns, random_state=0),
        {
            "learning_rate": _log(0.02, 0.3),
            "max_iter": _one_of(100, 300, 1000),
            "max_leaf_nodes": _whole(7, 63),
            "min_samples_leaf": _whole(5, 50),
            "l2_regularization": _log(1e-3, 10),
        },
    ),
    "random forest": Method(
        "scikit-learn", _scikit("ensemble", "RandomForest", coded_columns, n_jobs=1, random_state=0), _FOREST
    ),
    "extra trees": Method(
        "scikit-learn", _scikit("ensemble", "ExtraTrees", coded_columns, n_jobs=1, random_state=0), _FOREST
    ),
    "XGBoost": Method(
        "xgboost-cpu",
        _xgboost,
        {
            "learning_rate": _log(0.02, 0.3),
            "n_estimators": _one_of(100, 300, 1000),
            "max_depth": _one_of(3, 4, 6, 8),
            "min_child_weight": _log(1, 20),
            "subsample": _uniform(0.5, 1),
            "colsample_bytree": _uniform(0.5, 1),
            "reg_lambda": _log(0.1, 10),
        },
    ),
    "LightGBM": Method(
        "lightgbm",
        _lightgbm,
        {
            "learning_rate": _log(0.02, 0.3),
            "n_estimators": _one_of(100, 300, 1000),
            "num_leaves": _whole(7, 63),
            "min_child_samples": _whole(3, 50),
            "colsample_bytree": _uniform(0.5, 1),
            "reg_lambda": _log(1e-3, 10),
        },
    ),
    "CatBoost": Method(
        "catboost", _catboost, {"learning_rate": _log(0.02, 0.3), "depth": _one_of(4, 6, 8), "l2_leaf_reg": _log(1, 10)}
    ),
    "Gaussian process, exact": Method(
        "gpytorch", _process(0), {"steps": _one_of(50, 100, 200), "learning_rate": _log(0.03, 0.3)}, False, 3000
    ),
    "Gaussian process, sparse": Method(
        "gpytorch", _process(256), {"steps": _one_of(50, 100, 200), "learning_rate": _log(0.03, 0.3)}, False
    ),
    "MLP": Method(
        "scikit-learn",
        _scikit("neural_network", "MLP", scaled_columns, scale_y=True, random_state=0),
        {
            "hidden_layer_sizes": _one_of((100,), (100, 100), (200, 200)),
            "alpha": _log(1e-6, 1e-1),
            "learning_rate_init": _log(3e-4, 1e-2),
            "max_iter": _one_of(200, 500),
        },
    ),
    "RealMLP": Method(
        "pytabkit",
        _pytabkit("RealMLP_TD"),
        {"lr": _log(0.02, 0.2), "p_drop": _one_of(0.0, 0.15, 0.3), "hidden_width": _one_of(128, 256)},
    ),
    "TabM": Method(
        "pytabkit",
        _pytabkit("TabM_D"),
        {"lr": _log(3e-4, 5e-3), "dropout": _uniform(0, 0.3), "d_block": _one_of(128, 256, 512)},
    ),
    "TabR": Method("pytabkit", _pytabkit("TabR_S_D"), {"lr": _log(1e-4, 1e-3), "dropout0": _uniform(0, 0.5)}),
    "ModernNCA": Method(
        "torch",
        _modern_nca,
        {
            "learning_rate": _log(1e-3, 3e-2),
            "width": _one_of(64, 128, 256),
            "blocks": _one_of(0, 0, 1, 2),
            "frequency_scale": _log(0.005, 1.0),
            "share": _uniform(0.05, 0.6),
        },
    ),
}
