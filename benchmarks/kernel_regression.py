"""Claim: kernel regression over many rows is faster than with the libraries for it, and as accurate."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import qkv
from benchmarks import _calls, _peers
from benchmarks._calls import WrongError, apart
from benchmarks._claim import AtLeast, AtMost, Claim, Row, Setting
from benchmarks._race import race
from qkv import normalizers, scores

FEWER = 20
"""Queries given to statsmodels, whose time is linear in their number."""
NEIGHBOURS = 32


def rows(setting: Setting) -> Iterator[Row]:
    """Compare with PyKeOps, statsmodels and, for the nearest 32 rows instead of a kernel, scikit-learn."""
    shape = _calls.shapes("regression", setting.quick)
    call, plain = _calls.make("regression", shape), _calls.make("regression", shape, library="numpy")
    _smooth(call.key, call.value)
    told = {"kernel": call.plan.kernel.name, "plan": str(call.plan)}
    errors = call.check(1e-5)
    yield Row(
        "error, PyTorch", "max |result − reference| / max |reference|, float64 reference",
        errors["oracle, output"], "", AtMost(1e-5), errors=errors, **told,
    )  # fmt: skip
    setting.say("compiling PyKeOps's reduction")
    keops = _peers.keops_regression(call)
    errors |= call.check_against("PyKeOps", keops(), 1e-4)
    found = race({"qkv": call.run, "qkv, NumPy": plain.run, "PyKeOps": keops}, setting.rounds)
    yield found.row("compared with PyKeOps", "PyKeOps", AtLeast(4), faster=True, errors=errors, **told)
    yield found.row(
        "compared with PyKeOps, NumPy arrays",
        "PyKeOps",
        ours="qkv, NumPy",
        faster=True,
        errors=plain.check(1e-5),
        kernel=plain.plan.kernel.name,
        plan=str(plain.plan),
    )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        regression = _peers.peer("statsmodels.nonparametric.kernel_regression").KernelReg
    few = call.query[:FEWER]
    columns = few.shape[-1]
    model = regression(
        call.value[:, 0].double().numpy(), call.key.double().numpy(), "c" * columns, "lc", bw=[0.5] * columns
    )
    exact = few.double().numpy()

    def statsmodels() -> Any:
        return model.fit(exact)[0]

    errors = {"statsmodels, output": apart(call.run()[0][:FEWER, 0], statsmodels())}
    if errors["statsmodels, output"] > 1e-4:
        raise WrongError(f"statsmodels gives something else: {errors}")
    setting.say("statsmodels KernelReg, one query at a time")
    yield race({"qkv": call.run, "statsmodels": statsmodels}, setting.rounds).row(
        "compared with statsmodels",
        "statsmodels",
        AtLeast(100),
        faster=True,
        scale=FEWER / call.query.shape[0],
        errors=errors,
        note=f"statsmodels KernelReg estimates a local constant with fixed bandwidths; {FEWER} queries are "
        "timed and scaled linearly to all; its fit also computes slopes",
        **told,
    )
    yield _nearest(call, setting)


def _smooth(key: torch.Tensor, value: torch.Tensor) -> None:
    """Return a smooth function of the columns plus noise, to be estimated."""
    value.mul_(0.1).add_(torch.sin(key.sum(-1, keepdim=True)) + key[:, :1])


def _nearest(call: Any, setting: Setting) -> Row:
    neighbours = _peers.peer("sklearn.neighbors").KNeighborsRegressor
    options = {"score": scores.Gaussian(0.5), "normalizer": normalizers.TopK(NEIGHBOURS, normalizer=normalizers.Mean())}
    key, value, query = (x.numpy() for x in (call.key, call.value, call.query))
    model = neighbours(NEIGHBOURS, algorithm="kd_tree", n_jobs=1).fit(key, value)

    def ours() -> Any:
        return qkv.attend(call.query, call.key, call.value, **options)

    # Near ties of float32 may choose another 32nd neighbour.
    away = np.abs(ours().numpy() - model.predict(query)).max(-1)
    error = float(np.quantile(away, 0.99))
    if error > 1e-3:
        raise WrongError(f"scikit-learn's neighbours give something else: {error:.2g}")
    plan = qkv.explain(call.query, call.key, call.value, **options)
    return race({"qkv": ours, "scikit-learn": lambda: model.predict(query)}, setting.rounds).row(
        f"mean of the {NEIGHBOURS} nearest, compared with scikit-learn",
        "scikit-learn",
        faster=True,
        errors={"scikit-learn, 99 % of outputs": error},
        kernel=plan.kernel.name,
        plan=str(plan),
        note="scikit-learn KNeighborsRegressor uses a k-d tree that was built beforehand; no goal",
    )


CLAIM = Claim(
    "Gaussian kernel regression, 2,000 queries × 100,000 rows × 8 columns, is faster than PyKeOps and statsmodels.",
    "at least 4 × faster than PyKeOps on the CPU and 100 × faster than statsmodels KernelReg, at an error "
    "of at most 1e-5",
    ("PyKeOps", "statsmodels KernelReg", "scikit-learn neighbours"),
    rows,
)
