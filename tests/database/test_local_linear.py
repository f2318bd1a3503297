"""Local linear regression: as weighted least squares written out, in every face, and where no line can be fitted."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from qkv import scores
from qkv.database import Database
from qkv.database.answer import format_gradient
from qkv.errors import OptionError
from qkv.estimators.regression.local_linear import COLLINEAR, ONE_KEY, ONE_SIDE, WEAK, compare_fits
from tests.database.databases import every_database
from tests.effort import LONG, seeds


def least_squares(weights, offsets, values):
    """Return the estimate, the slopes, their standard errors and the effective weights of a weighted line."""
    design = np.concatenate([np.ones((len(offsets), 1)), offsets], axis=1)
    inverse = np.linalg.inv(design.T @ (weights[:, None] * design))
    hat = inverse @ design.T * weights
    found = hat @ values
    residual = values - design @ found
    # The expectation of the weighted residual sum of squares is σ² times this trace.
    smoother = design @ hat
    trace = np.trace((np.eye(len(values)) - smoother).T @ np.diag(weights) @ (np.eye(len(values)) - smoother))
    noise = np.sqrt(weights @ np.square(residual) / trace)
    return found, noise * np.sqrt(np.square(hat).sum(axis=1)), hat[0]


def faces(folder, table, key, value):
    Database.create(folder / "s", table, key, value)
    return [Database.open(table, key, value), Database.open(folder / "s"), Database.open(folder / "s", memory=1)]


@pytest.mark.parametrize("seed", seeds(6, 3))
def test_answers_are_those_of_weighted_least_squares_in_every_face(seed, tmp_path):
    draw = np.random.default_rng(seed)
    width, count = int(draw.integers(1, 4)), int(draw.integers(30, 200))
    shift, scale = 10.0 ** draw.uniform(-3, 6), 10.0 ** draw.uniform(-3, 3)
    x = shift + scale * draw.normal(size=(count, width))
    v = 1e3 + x @ draw.normal(size=width) / scale + draw.normal(size=count)
    names = [f"x{n}" for n in range(width)]
    table = dict(zip(names, x.T, strict=True)) | {"v": v}
    h = float(draw.uniform(0.8, 2.0)) * scale
    queries = shift + scale * draw.uniform(-1, 1, size=(4, width))
    asked = [tuple(query) for query in queries.tolist()]
    how = {"score": scores.Gaussian(h), "max_distance": 1e9, "aggregate": "local-linear", "top": count}
    for database in faces(tmp_path, table, names, "v"):
        answers = database.ask(asked if width > 1 else [query for (query,) in asked], **how)
        for query, answer in zip(queries, answers, strict=True):
            weights = np.exp(-np.square(x - query).sum(axis=1) / (2 * h * h))
            weights /= weights.sum()
            found, errors, effective = least_squares(weights, x - query, v)
            assert answer.fit_note == ""
            assert answer.value == pytest.approx(found[0], rel=1e-9)
            assert answer.standard_error == pytest.approx(errors[0], rel=1e-5)
            assert list(answer.gradient.values()) == pytest.approx(found[1:].tolist(), rel=1e-5, abs=1e-6 / scale)
            assert list(answer.gradient_error.values()) == pytest.approx(errors[1:].tolist(), rel=1e-5)
            assert answer.effective_rows == pytest.approx(1 / np.square(effective).sum(), rel=1e-6)
            given = {row.index: row.weight for row in answer.rows}  # some weights are negative
            assert [given.get(row, 0) for row in range(count)] == pytest.approx(effective, rel=1e-6, abs=1e-9)
            assert np.abs([*given.values()]).tolist() == sorted(np.abs([*given.values()]), reverse=True)


@pytest.mark.parametrize("score", [None, "boxcar", "epanechnikov", "laplace", "triangular:0.5"])
def test_a_straight_line_is_found_exactly_by_every_kernel(score, tmp_path):
    draw = np.random.default_rng(0)
    x = draw.random(300)
    for database in faces(tmp_path, {"x": x, "v": 5 - 3 * x}, "x", "v"):
        for query in (0.0, 0.3, 1.0):
            answer = database.ask(query, aggregate="local-linear", score=score)
            assert answer.value == pytest.approx(5 - 3 * query, abs=1e-9)
            assert answer.gradient["x"] == pytest.approx(-3, abs=1e-7)


def test_a_wide_boxcar_finds_every_query_within_the_keys(tmp_path):
    draw = np.random.default_rng(6)
    for database in faces(tmp_path, {"x": draw.random(200), "v": draw.normal(size=200)}, "x", "v"):
        for aggregate in ("mean", "local-linear"):
            assert all(database.ask([0.05, 0.5, 0.95], score="boxcar", aggregate=aggregate).found)


def test_dates_have_a_gradient_per_day_and_in_days(tmp_path):
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=n) for n in range(60)]
    table = pa.table(
        {"on": days, "v": np.arange(60.0), "until": [dt.datetime(2021, 1, 1) + 2 * (d - days[0]) for d in days]}
    )
    for database in faces(tmp_path, table, "on", "v"):
        answer = database.ask(days[20], aggregate="local-linear")
        assert answer.value == pytest.approx(20.0)
        assert answer.gradient["on"] == pytest.approx(1.0)
    answer = Database.open(table, "on", "until").ask(days[20], aggregate="local-linear")
    assert abs(answer.value - dt.datetime(2021, 2, 10)) < dt.timedelta(seconds=1)
    assert answer.gradient["on"] == pytest.approx(2.0)


def notes(folder, table, key, query, **how):
    found = [
        each.ask(query, aggregate="local-linear", max_distance=1e9, **how) for each in faces(folder, table, key, "v")
    ]
    mean = Database.open(table, key, "v").ask(query, max_distance=1e9, **how)
    for answer in found:
        assert answer.value == pytest.approx(found[0].value, rel=1e-9)
        assert answer.fit_note == found[0].fit_note
        if answer.fit_note.startswith("weighted mean"):
            assert answer.value == pytest.approx(mean.value, rel=1e-9)
            assert (answer.standard_error is None) == (mean.standard_error is None)
            assert answer.standard_error is None or answer.standard_error == pytest.approx(mean.standard_error)
            assert min(row.weight for row in answer.rows) >= 0
    return found[0].fit_note


def test_where_there_is_no_line_the_answer_is_the_mean_with_a_reason(tmp_path):
    v = [1.0, 2.0, 4.0, 8.0]
    assert ONE_KEY in notes(tmp_path / "a", {"x": [3.0] * 4, "v": v}, "x", 3.0, score="gaussian:1")
    assert ONE_SIDE in notes(tmp_path / "b", {"x": [5.0, 5.1, 5.2, 5.3], "v": v}, "x", 3.0, score="gaussian:1")
    # Both sides, but so far away and so unequal that the line is that of two rows.
    assert WEAK in notes(tmp_path / "c", {"x": [0.0, 1.0, 9.0, 9.1], "v": v}, "x", -0.3, score="gaussian:0.5")
    line = {"x": [0.0, 1.0, 2.0, 3.0], "y": [0.0, 2.0, 4.0, 6.0], "v": v}
    assert COLLINEAR in notes(tmp_path / "d", line, "x,y", (1.0, 3.0), score="gaussian:1")


def test_a_constant_key_column_leaves_a_line_in_the_others(tmp_path):
    draw = np.random.default_rng(2)
    x = draw.random(50)
    for database in faces(tmp_path, {"x": x, "c": np.full(50, 7.0), "v": 2 * x}, "x,c", "v"):
        answer = database.ask((0.5, 7.0), aggregate="local-linear")
        assert answer.value == pytest.approx(1.0)
        assert answer.gradient == {"x": pytest.approx(2.0), "c": None}
        assert [text.partition(" ±")[0] for text in format_gradient(answer)] == [
            f"slope along x: {2.0:g}",
            "slope along c: unknown",
        ]
        assert "1 of 2 directions" in answer.fit_note


def test_groups_have_lines_of_their_own(tmp_path):
    draw = np.random.default_rng(3)
    x, shop = draw.random(200), draw.integers(0, 2, 200)
    table = {"shop": [f"shop {n}" for n in shop], "x": x, "v": np.where(shop, 4 * x, 1 - x)}
    for database in faces(tmp_path, table, "shop,x", "v"):
        for name, value, slope in (("shop 0", 0.5, -1.0), ("shop 1", 2.0, 4.0)):
            answer = database.ask((name, 0.5), aggregate="local-linear")
            assert answer.value == pytest.approx(value)
            assert answer.gradient == {"x": pytest.approx(slope)}


@pytest.mark.parametrize("seed", seeds(4, 2))
def test_a_filter_gives_the_line_of_the_table_filtered_beforehand(seed, tmp_path):
    draw = np.random.default_rng(seed)
    x, kind = draw.normal(size=300), draw.integers(0, 3, 300)
    v = np.sin(x) * 10.0**kind + draw.normal(size=300)
    few = {"x": x[kind == 1], "v": v[kind == 1]}
    queries = draw.uniform(-1, 1, 5).tolist()
    wanted = Database.open(few, "x", "v").ask(queries, aggregate="local-linear")
    for database in faces(tmp_path, {"x": x, "kind": kind, "v": v}, "x", "v"):
        got = database.ask(queries, aggregate="local-linear", where="kind = 1")
        assert got.value == pytest.approx(wanted.value, rel=1e-7)
        assert got.standard_error == pytest.approx(wanted.standard_error, rel=1e-6)
        for one, other in zip(got.prediction_interval, wanted.prediction_interval, strict=True):
            assert one == pytest.approx(other, rel=1e-5)


def test_normalizers_of_few_rows_fit_a_line_through_these_rows(tmp_path):
    x = np.linspace(0, 1, 80)
    for database in faces(tmp_path, {"x": x, "v": 3 * x}, "x", "v"):
        answer = database.ask(0.5, aggregate="local-linear", normalizer="topk:6", top=20)
        assert answer.value == pytest.approx(1.5)
        assert len(answer.rows) == 6


@pytest.mark.parametrize(
    ("table", "how", "message"),
    [
        ({"k": ["a", "b"], "v": [1.0, 2.0]}, {}, "aggregate must be 'mean' for k"),
        ({"k": [1.0, 2.0], "v": ["a", "b"]}, {}, "kind text"),
        ({"k": [1.0, 2.0], "v": [[1.0], [2.0]]}, {}, "kind vector"),
        ({"k": [1.0, 2.0], "v": [1.0, 2.0]}, {"normalizer": "sample"}, "normalizer must"),
        ({"k": [1.0, 2.0], "v": [1.0, 2.0]}, {"normalizer": "identity"}, "normalizer must"),
        ({"k": [1.0, 2.0], "v": [1.0, 2.0]}, {"score": "exact"}, "aggregate must be 'mean' for k"),
        ({"k": [1.0, 2.0], "v": [1.0, 2.0]}, {"aggregate": "loess"}, "aggregate must be"),
    ],
)
def test_what_has_no_line_is_refused(table, how, message, tmp_path):
    for database in faces(tmp_path, table, "k", "v"):
        with pytest.raises(OptionError, match=message):
            database.ask(table["k"][0], **{"aggregate": "local-linear", **how})


def test_a_clearly_better_line_is_named_in_the_notes(tmp_path):
    draw = np.random.default_rng(4)
    x = draw.random((300, 3))
    table = {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "v": x @ [1.0, 2.0, 3.0] + 0.05 * draw.normal(size=300)}
    for database in faces(tmp_path, table, "a,b,c", "v"):
        assert any("aggregate local-linear" in note for note in database.ask((0.5, 0.5, 0.5)).notes)
    noise = {"x": x[:, 0], "v": draw.normal(size=300)}
    assert not any("aggregate local-linear" in note for note in Database.open(noise, "x", "v").ask(0.5).notes)


@pytest.mark.parametrize("wave", [1.0, 0.0])
def test_the_compared_errors_are_those_of_leaving_out_each_row(wave):
    draw = np.random.default_rng(5)
    x = draw.random(60)
    v = wave * np.sin(4 * x) + 0.2 * draw.normal(size=60)
    found = compare_fits(x[:, None], v)
    best = {"mean": np.inf, "linear": np.inf}
    for h in 4 * 2.0 ** (-np.arange(26) / 2):
        errors = {"mean": [], "linear": []}
        for i in range(60):
            others = np.arange(60) != i
            with np.errstate(under="ignore"):
                weights = np.exp(-np.square(x[others] - x[i]) / (2 * h * h))
            if weights.sum() < 1e-100:
                break
            weights /= weights.sum()
            errors["mean"].append(v[i] - weights @ v[others])
            line = least_squares(weights, (x[others] - x[i])[:, None], v[others]) if h > 0.03 else None
            errors["linear"].append(np.inf if line is None else v[i] - line[0][0])
        else:
            for aggregate, each in errors.items():
                best[aggregate] = min(best[aggregate], np.sqrt(np.mean(np.square(each))))
    assert found.mean == pytest.approx(best["mean"], rel=1e-6)
    # Lines beyond the other rows are replaced by the mean.
    assert found.linear == pytest.approx(best["linear"], rel=0.02)


def functions(draw, x):
    """Return values of a random function of x: waves, a line, a bend or a step."""
    waves = np.cos(np.outer(x, draw.normal(size=5)) * draw.choice([2, 20]) + draw.random(5) * 6) @ draw.normal(size=5)
    return [waves, draw.normal() * 20 * x, np.maximum(x, 0.5) * 20, np.where(x < draw.random(), 0.0, 3.0)][
        draw.integers(4)
    ]


@pytest.mark.parametrize("grouped", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_line_that_is_said_to_be_better_predicts_new_rows_of_random_functions_better(grouped, tmp_path):
    said = 0
    for seed in range(8 if LONG or not grouped else 4):
        draw = np.random.default_rng(seed)
        x, shop = draw.random(700), np.array(["a", "b", "c"])[draw.integers(0, 3 if grouped else 1, 700)]
        number = np.searchsorted(["a", "b", "c"], shop)
        y = functions(draw, x) * (1 + number) + 100.0 * number + draw.choice([0.02, 0.5]) * draw.normal(size=700)
        key = "shop,x" if grouped else "x"
        database = Database.open({"shop": shop[:400], "x": x[:400], "y": y[:400]}, key, "y")
        queries = list(zip(shop[400:].tolist(), x[400:].tolist(), strict=True)) if grouped else x[400:].tolist()
        answers = [database.ask(queries, top=1, aggregate=aggregate) for aggregate in ("mean", "local-linear")]
        if not any("is clearly better" in note for note in answers[0].notes):
            continue
        said += 1
        values = np.array([answer.value for answer in answers], float)
        errors = np.nanmean(np.square(values - y[400:]), axis=1)
        assert errors[1] < errors[0], seed
    assert said >= 2


@pytest.mark.parametrize("noise", ["normal", "heavy tails", "growing"])
def test_no_line_is_said_to_be_better_in_noise(noise):
    for seed in range(20):
        draw = np.random.default_rng(seed)
        x, groups = draw.random((int(draw.choice([45, 150, 500])), 1)), None
        groups = draw.integers(0, 3, len(x)) if seed % 2 else None
        values = draw.standard_t(3, len(x)) if noise == "heavy tails" else draw.normal(size=len(x))
        found = compare_fits(x, values * x[:, 0] ** 3 if noise == "growing" else values, groups)
        assert not found.clear


def test_groups_of_identifiers_and_texts_are_compared_with_lines_and_those_of_vectors_are_not(tmp_path):
    draw = np.random.default_rng(0)
    x, shop = draw.random(300), draw.integers(1000, 1004, 300)
    table = {"shop_id": shop, "x": x, "y": shop * x + 0.1 * draw.normal(size=300), "city": shop.astype(str)}
    for key, query in (("shop_id,x", (1001, 0.5)), ("city,x", ("1001", 0.5)), ("city,shop_id,x", ("1001", 1001, 0.5))):
        for database in every_database(tmp_path / key, table, key, "y"):
            assert any("is clearly better" in note for note in database.ask(query).notes)
    vectors = {"v": draw.normal(size=(300, 3)), "x": x, "y": 1000 * x}
    notes = Database.open(vectors, "v,x", "y").ask([([0.1, 0.2, 0.3], 0.5)]).notes
    assert not any("is clearly better" in note for note in notes)
