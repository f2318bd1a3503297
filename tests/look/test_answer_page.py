"""The page of answers without a browser: queries at places, coordinates of answers, settings and refusals."""

import base64
import datetime as dt
import decimal
import json
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv import look
from qkv.database import Database
from qkv.errors import DataError, OptionError
from qkv.look.answers import AnswerPage, TableSource
from qkv.look.answers.answer_settings import AnswerSettings
from qkv.look.answers.query_axis import QueryAxis
from qkv.look.answers.saved_answers import export_answers
from tests.effort import cases


def column(cells, type_=None):
    table = pa.table({"key": pa.array(cells, type_), "value": np.arange(float(len(cells)))})
    return Database.open(table, "key", "value").column("key")


START = dt.datetime(2024, 2, 28, 23, 59, 7)
COLUMNS = {
    "numbers": column([2.0, 3.5, 4.0]),
    "whole": column([1900, 1950, 2020]),
    "tiny": column([1e-12, 5e-12]),
    "huge": column([1e18, 3e18]),
    "offset": column([1e9, 1e9 + 0.001]),
    "negative": column([-3.0, -1.0]),
    "constant": column([5, 5]),
    "dates": column([dt.date(1969, 1, 1), dt.date(2024, 2, 29)]),
    "two days": column([dt.date(2024, 2, 28), dt.date(2024, 2, 29)]),
    "timestamps": column([START, START + dt.timedelta(days=900)], pa.timestamp("us")),
    "hours": column([START, START + dt.timedelta(hours=9)], pa.timestamp("ms")),
    "seconds": column([START, START + dt.timedelta(seconds=2)], pa.timestamp("ns")),
    "zoned": column([START, START + dt.timedelta(days=90)], pa.timestamp("us", "Europe/Oslo")),
    "times": column([dt.time(3, 4), dt.time(23, 1)], pa.time32("s")),
    "durations": column([dt.timedelta(hours=3), dt.timedelta(days=8)]),
}


@pytest.mark.parametrize("name", COLUMNS)
@settings(max_examples=cases(15), deadline=None)
@given(share=st.floats(0, 1))
def test_a_query_at_a_place_is_a_text_that_is_read_as_a_place_near_it(name, share):
    axis = QueryAxis(COLUMNS[name])
    low, high = (axis.low, axis.low + axis.span) if name in ("times",) else axis.ends
    at = low + share * (high - low)
    text = axis.text(at)
    found = axis.parse(text)
    assert found is not None
    # Halves of a step by rounding, and the precision of large numbers.
    assert abs(found - at) <= 0.51 * axis.step + 4e-16 * abs(at) * 10
    assert len(text) <= 35
    assert axis.step <= axis.span / 5 or name in ("two days", "constant")


def test_dates_are_rounded_to_units_that_the_axis_shows():
    assert QueryAxis(COLUMNS["dates"]).text(19_781.3) == "2024-02-28"
    assert QueryAxis(COLUMNS["timestamps"]).text(19_800.4) == "2024-03-18"
    assert QueryAxis(COLUMNS["hours"]).text(19_781.5).startswith("2024-02-28 12:00:00")
    assert QueryAxis(COLUMNS["numbers"]).text(3.14159) == "3.142"
    assert QueryAxis(COLUMNS["whole"]).text(1999.93) == "1999.9"


def test_a_decimal_comma_is_written_where_the_file_has_it(tmp_path):
    file = tmp_path / "pay.csv"
    file.write_text("years;pay\n1,250;1.200,50\n2,375;1.300,75\n3,125;1.500,25\n")
    page = AnswerPage(Database.open(file, "years", "pay"), TableSource.of_table("pay.csv", key="years", value="pay"))
    assert page.query == "2,375"
    answer = page.respond({"what": "answer", "at": [3.12504], "settings": {"score": "exact"}})
    assert answer["at"] == [3.125]
    assert answer["command"] == "qkv ask pay.csv --key years --value pay --score exact 3,125"
    assert answer["value"] == 1500.25


random = np.random.default_rng(0)
KEYS = {
    "numbers": random.normal(size=60),
    "dates": [dt.date(2020, 1, 1) + dt.timedelta(days=int(day)) for day in random.integers(0, 900, 60)],
    "zoned": pa.array([START + dt.timedelta(days=int(day)) for day in range(60)], pa.timestamp("us", "Asia/Tokyo")),
    "texts": [f"name {number}" for number in range(60)],
    "booleans": [bool(number % 2) for number in range(60)],
    "categories": pa.array(["a", "b", "c"] * 20).dictionary_encode(),
    "vectors": [[float(number), 1.0] for number in range(60)],
}
VALUES = {
    "numbers": random.normal(size=60),
    "missing": [None if number % 3 else float(number) for number in range(60)],
    "dates": [dt.datetime(2020, 1, 1, 5) + dt.timedelta(hours=int(hour)) for hour in random.integers(0, 900, 60)],
    "times": pa.array([dt.time(int(hour), 5) for hour in random.integers(0, 24, 60)]),
    "decimals": [decimal.Decimal(int(number)) / 8 for number in random.integers(0, 99, 60)],
    "texts": [f"value {number % 11}" for number in range(60)],
    "booleans": [bool(number % 3) for number in range(60)],
    "vectors": [[float(number), -1.0] for number in range(60)],
    "constant": [7] * 60,
}


@pytest.mark.thinned
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", VALUES)
def test_answers_and_points_of_every_kind_are_json_and_those_of_ask(key, value):
    database = Database.open(pa.table({"key": pa.array(KEYS[key]), "value": pa.array(VALUES[value])}), "key", "value")
    page = AnswerPage(database)
    assert page.mode == ("axis" if key in ("numbers", "dates", "zoned") else "typed")
    json.dumps(page.meta(), allow_nan=False)
    answer = page.respond({"what": "answer", "query": page.query, "settings": {}})
    json.dumps(answer, allow_nan=False)
    direct = database.ask([page.query], printed=True)[0]
    assert answer["found"] == direct.found
    assert [row["weight"] for row in answer["evidence"]["rows"]] == [f"{row.weight:.3f}" for row in direct.rows]
    points = page.respond({"what": "points", "settings": {}})
    assert points["count"] == len(database)
    if page.axes:
        curve = page.respond({"what": "curve", "settings": {}, "places": [[page.axes[0].low], [page.axes[0].high]]})
        json.dumps(curve, allow_nan=False)
        assert len(curve["values"]) == 2


def test_the_weights_that_are_drawn_belong_to_the_rows_of_their_keys():
    x = random.normal(size=50)
    database = Database.open({"x": x, "y": x * 2}, "x", "y")
    page = AnswerPage(database)
    answer = page.respond({"what": "answer", "query": "0.3", "settings": {"where": "x > 0", "score": "gaussian:0.2"}})
    drawn, axis = answer["drawn"], page.axes[0]
    keys = axis.low + np.array(drawn["keys"][0]) / 65535 * axis.span
    direct = database.ask(0.3, where="x > 0", score="gaussian:0.2", top=50)
    rows = [row for row in direct.rows if row.weight > 0.002 * direct.rows[0].weight]
    assert len(rows) < len(direct.rows)
    np.testing.assert_allclose(keys, [row.record["x"] for row in rows], atol=axis.span / 65535)
    np.testing.assert_allclose(np.array(drawn["weights"]) * rows[0].weight, [row.weight for row in rows], atol=1e-3)


def test_a_store_that_is_read_block_by_block_answers_like_the_table(tmp_path):
    x = random.normal(size=3000)
    table = {"x": x, "y": np.sin(x)}
    Database.create(tmp_path / "store", table, "x", "y")
    streamed = AnswerPage(Database.open(tmp_path / "store", memory="20 KiB"))
    in_memory = AnswerPage(Database.open(table, "x", "y"))
    request = {"what": "answer", "query": "0.25", "settings": {"score": "gaussian:0.3"}}
    one, other = streamed.respond(request), in_memory.respond(request)
    assert one["estimate"] == other["estimate"]
    for row, same in zip(one["evidence"]["rows"], other["evidence"]["rows"], strict=True):
        assert row | {"share": 0} == same | {"share": 0}
        assert row["share"] == pytest.approx(same["share"])
    np.testing.assert_allclose(
        one["drawn"]["weights"], other["drawn"]["weights"][: len(one["drawn"]["weights"])], atol=1e-3
    )


@pytest.mark.parametrize(
    "request_",
    [
        None,
        [],
        {"what": "row"},
        {"what": "answer"},
        {"what": "answer", "query": " "},
        {"what": "answer", "query": 3},
        {"what": "answer", "at": [[1]]},
        {"what": "answer", "at": ["a"]},
        {"what": "answer", "at": [float("nan")]},
        {"what": "answer", "at": [1, 2]},
        {"what": "curve", "places": [[1]] * 601},
        {"what": "curve", "places": "all"},
        {"what": "answer", "query": "1", "settings": {"rows": "3"}},
        {"what": "answer", "query": "1", "settings": {"top": 3}},
        {"what": "answer", "query": "1", "settings": {"top": "-3"}},
        {"what": "answer", "query": "1", "settings": {"where": "x >"}},
        {"what": "answer", "query": "1", "settings": {"where": "x" * 3000}},
        {"what": "answer", "query": "1", "settings": {"score": "cosin"}},
        {"what": "answer", "query": "1", "settings": {"bandwidth": "a"}},
        {"what": "answer", "query": "1", "settings": {"neighbours": "0"}},
        {"what": "answer", "query": "1", "settings": {"max_distance": "-1"}},
        {"what": "answer", "query": "one", "settings": {}},
    ],
    ids=str,
)
def test_requests_that_cannot_be_answered_get_a_sentence(request_):
    page = AnswerPage(Database.open({"x": [1.0, 2.0], "y": [3.0, 4.0]}, "x", "y"))
    response = page.respond(request_)
    assert set(response) == {"error"}
    assert len(response["error"]) > 20


def test_settings_are_those_of_the_command_line():
    parsed = AnswerSettings.from_options(score="Gaussian:0.5", normalizer="topk:3:sparsemax", max_distance=0.25, top=4)
    assert (parsed.score, parsed.bandwidth, parsed.normalizer, parsed.neighbours) == (
        "Gaussian",
        "0.5",
        "sparsemax",
        "3",
    )
    assert parsed.options() == {
        "score": "Gaussian:0.5",
        "normalizer": "topk:3:sparsemax",
        "max_distance": 0.25,
        "top": 4,
    }
    low = AnswerSettings.from_options(normalizer="topk:3:0.02")
    assert low.options()["normalizer"] == "topk:3:0.02"
    assert AnswerSettings(neighbours="5").options("0.02") == {"normalizer": "topk:5:0.02", "top": 10}


@pytest.mark.parametrize("query", ["-Smith", "--all", "O'Connor", "a b", "a\\x09b", "$HOME", "-3.5"])
def test_commands_quote_what_shells_and_options_would_read(query):
    source = TableSource.of_table("my table.csv", key="name", value="pay")
    line = source.shell(query, {"top": 10})
    assert line.startswith(
        "printf" if query in ("-Smith", "--all") else "qkv ask 'my table.csv' --key name --value pay "
    )
    assert repr(query) in source.python(query, {"top": 10})
    assert ("printed=True" in source.python(query, {"top": 10})) == ("\\" in query)


def test_pages_that_cannot_be_exported_say_why(tmp_path):
    texts = AnswerPage(Database.open({"name": ["a", "b"], "y": [1, 2]}, "name", "y"))
    with pytest.raises(DataError, match="columns of numbers or dates, got name"):
        export_answers(texts, tmp_path / "a.html")
    many = AnswerPage(
        Database.open({"x": np.arange(20_001.0), "y": np.arange(20_001.0)}, "x", "y"),
        settings=AnswerSettings(score="boxcar", bandwidth="1", aggregate="vote"),
    )
    with pytest.raises(DataError, match="20,000 rows"):
        export_answers(many, tmp_path / "a.html")
    with pytest.raises(DataError, match=r"\.html"):
        export_answers(AnswerPage(Database.open({"x": [1, 2], "y": [1, 2]}, "x", "y")), tmp_path / "a.pdf")
    assert not list(tmp_path.iterdir())


def test_unknown_names_are_refused_before_a_page_is_made():
    database = Database.open({"x": [1.0, 2.0], "y": [3.0, 4.0]}, "x", "y")
    with pytest.raises(OptionError, match="score"):
        AnswerPage(database, settings=AnswerSettings(score="gauss"))


def test_the_widget_answers_messages_and_has_a_picture_in_a_saved_notebook(monkeypatch):
    database = Database.open({"x": [1.0, 2.0, 3.0], "y": [3.0, 4.0, 5.0]}, "x", "y")
    widget = look.explorer(database, "2", file="a.csv", score="boxcar:1.5")
    sent = []
    monkeypatch.setattr(widget, "send", lambda content, buffers: sent.append(content))
    request = {"what": "answer", "query": "2", "settings": widget.meta["settings"]}
    widget._handle_custom_msg({"id": 3, "request": request}, [])
    widget._handle_custom_msg("nonsense", [])
    assert sent[0]["id"] == 3
    assert sent[0]["response"]["value"] == pytest.approx(4)
    assert sent[0]["response"]["command"] == "qkv ask a.csv --key x --value y --score boxcar:1.5 2"
    assert set(sent[1]["response"]) == {"error"}
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **_: shown.append(data))
    widget._ipython_display_()
    # Two outputs, because exports of notebooks show one type of each, and that of the widget is blank without a kernel.
    assert "application/vnd.jupyter.widget-view+json" in shown[0]
    assert base64.b64decode(shown[1]["image/png"]).startswith(b"\x89PNG")
    assert shown[1]["image/png"].endswith(widget.picture)


@pytest.mark.long
def test_the_answer_among_100_000_rows_takes_less_than_50_ms():
    x = random.normal(size=100_000)
    page = AnswerPage(Database.open({"x": x, "y": np.sin(x)}, "x", "y"))
    seconds = []
    for at in random.uniform(-2, 2, 15):
        began = time.process_time()
        json.dumps(page.respond({"what": "answer", "at": [at], "settings": {}}))
        seconds.append(time.process_time() - began)
    assert np.median(seconds) < 0.05
