"""Cyclic columns, such as hours of the day and directions of the wind: distances and means on the circle."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from qkv.database import Database
from qkv.encoders import TableVectors
from qkv.encoders.columns import with_periods
from qkv.errors import DataError, OptionError
from tests.database.databases import every_database

WIND = {"place": ["harbour"] * 4 + ["hill"] * 2, "wind": [350, 10, 355, 5, 170, 190]}
CLOCK = {"hour": [1.0, 23.0, 12.0], "load": [4.0, 6.0, 50.0]}


def drawn(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    hour = rng.uniform(0, 24, rows).round(2)
    return {"hour": hour, "load": 10 * np.cos(2 * np.pi * (hour - 2) / 24) + rng.normal(size=rows)}


def test_keys_are_near_across_midnight():
    answer = Database.open(CLOCK, "hour", "load", cyclic={"hour": 24}).ask(0.0, score="gaussian:1")
    assert answer.value == pytest.approx(5.0)
    assert [row.distance for row in answer.rows] == pytest.approx([1.0, 1.0, 12.0])
    assert "hour is cyclic, with a period of 24" in answer.notes


@pytest.mark.parametrize(("query", "same"), [(-1.0, 23.0), (24.5, 0.5), (50.0, 2.0)])
def test_numbers_beyond_the_period_go_round(query, same):
    clock = Database.open(drawn(200), "hour", "load", cyclic={"hour": 24})
    assert clock.ask(query).value == pytest.approx(clock.ask(same).value)


def test_the_weights_are_those_of_a_gaussian_of_the_chord():
    hour, load = drawn(50).values()
    clock = Database.open({"hour": hour, "load": load}, "hour", "load", cyclic={"hour": 24})
    answer = clock.ask(3.0, score="gaussian:2")
    chord = 24 / np.pi * np.sin(np.pi * (hour - 3) / 24)
    weight = np.exp(-(chord**2) / (2 * 2.0**2))
    assert answer.value == pytest.approx(weight @ load / weight.sum())


def test_the_bandwidth_of_a_clock_predicts_midnight_better_than_that_of_a_line():
    rows = drawn(400)
    straight, clock = (Database.open(rows, "hour", "load", cyclic=each) for each in (None, {"hour": 24}))
    exact = 10 * np.cos(2 * np.pi * -2 / 24)
    assert abs(clock.ask(0.0).value - exact) < abs(straight.ask(0.0).value - exact)


def test_a_mean_of_directions_is_theirs_and_not_that_of_the_numbers():
    found = Database.open(WIND, "place", "wind", cyclic={"wind": 360}).ask(["harbour", "hill"])
    assert found[0].value == pytest.approx(0.0, abs=1e-9)
    assert found[1].value == pytest.approx(180.0)
    resultant = np.mean(np.cos(np.radians([10, 10, 5, 5])))
    assert found[0].spread == pytest.approx(np.degrees(np.sqrt(-2 * np.log(resultant))))


def test_equal_directions_have_no_spread_and_opposite_ones_a_large_one():
    table = {"place": ["a", "a", "b", "b"], "wind": [90, 90, 0, 180]}
    found = Database.open(table, "place", "wind", cyclic={"wind": 360}).ask(["a", "b"])
    assert (found[0].value, found[0].spread) == (90.0, 0.0)
    assert found[1].spread > 360


@pytest.mark.parametrize("scatter", [20.0, 100.0])
def test_the_standard_error_of_a_direction_is_how_far_it_is_from_that_of_many_rows(scatter):
    draw, places = np.random.default_rng(0), np.repeat(np.arange(100), 400)
    winds = (350 + scatter * draw.normal(size=len(places))) % 360
    found = Database.open({"place": list(map(str, places)), "wind": winds}, "place", "wind", cyclic={"wind": 360})
    answer = found.ask([str(place) for place in range(100)])
    away = (np.array(answer.value) - 350 + 180) % 360 - 180
    assert np.sqrt(np.mean((away / answer.standard_error) ** 2)) == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize("memory", ["512 MiB", 1000])
def test_a_store_answers_as_the_table_does(tmp_path, memory):
    rows = drawn(300) | {"wind": np.random.default_rng(1).uniform(0, 360, 300)}
    for key, value in (("hour", "load"), ("hour", "wind"), ("wind,hour", "load")):
        periods = {"hour": 24, "wind": 360}
        own = {name: rows[name] for name in ("hour", "wind", "load")}
        folder = tmp_path / f"{key} {value}"
        Database.create(folder, own, key, value, cyclic=periods)
        queries = [(200.0, 23.9), (10.0, 4.0)] if "," in key else [23.9, 0.1]
        expected = Database.open(own, key, value, cyclic=periods).ask(queries)
        found = Database.open(folder, memory=memory).ask(queries)
        np.testing.assert_allclose([e.value for e in found.entries], [e.value for e in expected.entries], rtol=1e-9)


def test_each_group_of_a_mixed_key_has_a_bandwidth_on_the_circle():
    rows = drawn(400) | {"day": np.array(["week", "end"] * 200)}
    answer = Database.open(rows, "hour,day", "load", cyclic={"hour": 24}).ask((23.9, "week"))
    hours = np.array([row.record["hour"] for row in answer.rows])
    assert (hours < 2).any()
    assert (hours > 22).any()


def test_rows_are_encoded_as_points_on_the_circle():
    table = with_periods(pa.table({"hour": [23.0, 1.0, 11.0, None]}), {"hour": 24})
    encoder = TableVectors().fit(table)
    late, early, noon, missing = encoder.encode(table)
    assert encoder.names == ("hour 0", "hour 1", "hour missing")
    assert np.linalg.norm(late - early) < np.linalg.norm(late - noon) / 3
    assert missing.tolist() == [0.0, 0.0, 1.0]
    # Plain numbers are read by the period of the fitted column.
    np.testing.assert_allclose(encoder.encode({"hour": [25.0, -1.0]}), [early, late], rtol=1e-5)


def test_an_encoder_of_a_cyclic_column_is_saved(tmp_path):
    table = with_periods(pa.table({"hour": [23.0, 1.0, 11.0]}), {"hour": 24})
    encoder = TableVectors().fit(table)
    encoder.save(tmp_path / "hours.npz")
    np.testing.assert_array_equal(TableVectors.load(tmp_path / "hours.npz").encode(table), encoder.encode(table))


@pytest.mark.parametrize(
    ("periods", "error", "said"),
    [
        ({"minute": 60}, DataError, "cyclic must name columns of the table, got 'minute'. Choose from hour, load"),
        ({"hour": 0}, OptionError, "the period of 'hour' must be a positive number, got 0"),
        ({"hour": float("inf")}, OptionError, "must be a positive number, got inf"),
        ({"hour": "24"}, OptionError, "must be a positive number, got '24'"),
    ],
)
def test_impossible_periods_are_refused(periods, error, said):
    with pytest.raises(error, match=said):
        Database.open(CLOCK, "hour", "load", cyclic=periods)


def test_texts_are_not_cyclic():
    with pytest.raises(DataError, match="'place' must hold numbers to be cyclic, got cells of kind text"):
        Database.open(WIND, "place", "wind", cyclic={"place": 4})


def test_no_line_is_fitted_along_a_circle():
    with pytest.raises(OptionError, match="aggregate must be 'mean' for hour"):
        Database.open(drawn(100), "hour", "load", cyclic={"hour": 24}).ask(3.0, aggregate="local-linear")


def test_a_store_refuses_periods_that_it_was_not_created_with(tmp_path):
    Database.create(tmp_path / "clock", CLOCK, "hour", "load")
    with pytest.raises(OptionError, match="cyclic must be None for a store"):
        Database.open(tmp_path / "clock", cyclic={"hour": 24})


def test_a_note_says_that_times_of_day_do_not_go_round(tmp_path):
    table = {"day": ["a", "a"], "time": [dt.time(23, 50), dt.time(0, 10)], "load": [1.0, 2.0]}
    for database in every_database(tmp_path / "store", table, "day", "time"):
        answer = database.ask("a")
        assert answer.value == dt.time(12)
        assert any(note.startswith("time holds times of day, which do not go round") for note in answer.notes)
    assert "go round" in str(Database.open(table, "time", "load").ask("23:50").notes)
    assert "go round" not in str(Database.open(table, "day", "load").ask("a").notes)
