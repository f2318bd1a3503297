"""Columns of tables as features, and back."""

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from qkv.errors import DataError, KindError
from qkv.estimators.features import (
    MAX_LEVELS,
    decode_columns,
    encode_columns,
    encoding_sizes,
    fit_encoding,
    require_kinds,
)
from qkv.estimators.input_columns import is_frame, read_columns, read_table

NAN = float("nan")


def columns_of(*columns):
    return read_columns(np.array(list(zip(*columns, strict=True)), object))


def test_a_number_is_standardised_by_median_and_quartiles_and_outliers_stay_within_3():
    x = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 1e200, -1e200])
    encoding = fit_encoding([x])
    low, middle, high = np.quantile(x, (0.25, 0.5, 0.75))
    z = (x[:5] - middle) / ((high - low) / 1.349)
    numbers = encode_columns(encoding, [x]).numbers
    assert numbers.dtype == np.float32
    np.testing.assert_allclose(numbers[:5, 0], z / np.sqrt(1 + (z / 3) ** 2), rtol=1e-6)
    np.testing.assert_allclose(numbers[5:, 0], [3.0, -3.0], rtol=1e-6)


@pytest.mark.parametrize(("x", "spread"), [([2.0] * 9, 1.0), ([0.0] * 9 + [10.0], 3.0), ([NAN] * 3, np.inf)])
def test_without_distance_between_the_quartiles_the_spread_is_the_standard_deviation_1_or_infinite(x, spread):
    encoding = fit_encoding([np.array(x)])
    assert encoding["spreads"].tolist() == pytest.approx([spread])
    assert np.isfinite(encode_columns(encoding, [np.array(x)]).numbers).all()


def test_outliers_are_reconstructed_as_large_finite_numbers_of_their_sign():
    x = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 1e200, -1e200])
    encoding = fit_encoding([x])
    (again,) = decode_columns(encoding, encode_columns(encoding, [x]))
    np.testing.assert_allclose(again[:5], x[:5], rtol=1e-5)
    assert np.isfinite(again).all()
    assert again[5] > 1e3
    assert again[6] < -1e3


def test_a_column_with_a_heavy_tail_is_encoded_by_its_order_of_magnitude_and_reconstructed():
    x = np.exp(np.linspace(0, 25, 100))
    encoding = fit_encoding([x, np.linspace(0, 1, 100)])
    assert encoding["tails"][0] > 0
    assert encoding["tails"][1] == 0
    numbers = encode_columns(encoding, [x, x]).numbers[:, 0]
    assert (np.diff(numbers)[60:] > 0.01).all()  # the largest numbers, which differ by a factor of 1.3 each
    assert (abs(numbers) < 3).all()
    (again, _) = decode_columns(encoding, encode_columns(encoding, [x, x]))
    np.testing.assert_allclose(again[50:], x[50:], rtol=1e-3)
    del encoding["tails"]  # as in files that were written before
    assert encode_columns(encoding, [x, x]).numbers[-1, 0] > 2.99


def test_gaps_of_several_columns_after_a_category_are_reconstructed_where_they_were():
    columns = columns_of(["a", "b", "a", "c"], [1.0, NAN, 3.0, 9.0], [NAN, 2.0, 2.0, 5.0], [1.0, 2.0, 3.0, NAN])
    encoding = fit_encoding(columns)
    again = decode_columns(encoding, encode_columns(encoding, columns))
    assert again[0].tolist() == ["a", "b", "a", "c"]
    for got, wanted in zip(again[1:], columns[1:], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_a_level_that_was_not_fitted_and_a_rare_one_share_a_code_and_are_reconstructed_as_none():
    frequent = [f"level {n:03}" for n in range(MAX_LEVELS)]
    fitted = columns_of(frequent * 2 + ["rare"])
    encoding = fit_encoding(fitted)
    assert encoding_sizes(encoding) == (0, [MAX_LEVELS + 1])
    features = encode_columns(encoding, columns_of(["rare", "new", frequent[7]]))
    assert features.codes.tolist() == [[MAX_LEVELS], [MAX_LEVELS], [7]]
    assert decode_columns(encoding, features)[0].tolist() == [None, None, frequent[7]]


def test_repeated_numbers_are_also_categories_if_they_make_up_most_of_the_column():
    some = np.array([1.0] * 40 + [2.0] * 40 + [3.0] * 5)
    encoding = fit_encoding([some], network=True)
    assert encoding["common"][0].tolist() == [1.0, 2.0]
    assert encoding_sizes(encoding) == (1, [3])
    assert encode_columns(encoding, [np.array([2.0, 3.0, 1.0, 9.0])]).codes.tolist() == [[1], [2], [0], [2]]
    assert fit_encoding([some])["common"] == []
    few = np.concatenate([[1.0] * 40, np.arange(100.0)])
    assert fit_encoding([few], network=True)["common"] == []


def test_a_missing_number_is_the_median_and_marked_only_where_the_fitted_column_had_gaps():
    encoding = fit_encoding([np.array([1.0, 2.0, NAN, 3.0]), np.array([1.0, 2.0, 3.0, 4.0])])
    assert encoding["gaps"].tolist() == [0]
    features = encode_columns(encoding, [np.array([NAN, 2.0]), np.array([NAN, 2.5])])
    assert features.numbers[0].tolist() == [0.0, 0.0]
    assert features.codes.tolist() == [[1], [0]]


def test_dates_and_durations_are_microseconds_and_missing_ones_are_nan():
    day, hour = dt.date(1970, 1, 2), dt.timedelta(hours=1)
    dates, moments, text = columns_of([day, None], [dt.datetime(1970, 1, 1, 1), day], [day, "x"])
    assert dates[0] == 86_400e6
    assert np.isnan(dates[1])
    assert moments.tolist() == [3_600e6, 86_400e6]
    assert text.tolist() == ["1970-01-02", "x"]
    (durations,) = read_columns(np.array([[hour], [None]], "timedelta64[ms]"))
    assert durations[0] == 3_600e6
    assert np.isnan(durations[1])


def test_booleans_and_numbers_of_any_type_are_numbers():
    (flags,) = read_columns(np.array([[True], [False]]))
    assert flags.tolist() == [1.0, 0.0]
    mixed, missing = columns_of([1, 2.5, np.float32(3), True], [None, NAN, 1, 2])
    assert mixed.tolist() == [1.0, 2.5, 3.0, 1.0]
    assert np.isnan(missing[:2]).all()
    assert mixed.dtype == missing.dtype == np.float64


def test_infinite_numbers_and_cells_of_other_kinds_are_refused_by_column():
    with pytest.raises(DataError, match=r"infinity or a value too large .* in column 1"):
        columns_of([1.0, 2.0], [1.0, np.inf])
    with pytest.raises(KindError, match=r"cells of column 0 must be .*, got a list"):
        columns_of([[1], [2]], [1, 2])


def test_text_in_a_column_that_was_fitted_to_numbers_is_refused():
    encoding = fit_encoding(columns_of([1.0, 2.0]))
    with pytest.raises(DataError, match=r"column 0 must hold numbers, because it held numbers in the call of fit"):
        encode_columns(encoding, columns_of(["a", "b"]))


def test_whole_numbers_in_a_column_that_was_fitted_to_text_are_their_digits():
    encoding = fit_encoding(columns_of(["10115", "20095", "unknown"] * 3))
    codes = [
        encode_columns(encoding, columns_of(cells)).codes.tolist() for cells in (["20095", "10115"], [20095, 10115])
    ]
    assert codes[0] == codes[1]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_have_the_columns_of_the_array(library):
    frames = pytest.importorskip(library)
    cells = {"city": ["a", None, "b"], "size": [1, None, 3], "flag": [True, False, True]}
    frame = frames.table(cells) if library == "pyarrow" else frames.DataFrame(cells)
    if library == "pandas":
        frame["size"] = frame["size"].astype("Int64")
    assert is_frame(frame)
    assert not is_frame(np.zeros((3, 3)))
    city, size, flag = read_columns(frame)
    assert city.tolist() == ["a", "\0missing", "b"]
    np.testing.assert_array_equal(size, [1.0, NAN, 3.0])
    assert flag.tolist() == [1.0, 0.0, 1.0]
    with pytest.raises(DataError, match="in size"):
        read_columns(frames.table({"size": [np.inf]}) if library == "pyarrow" else frames.DataFrame({"size": [np.inf]}))


def test_a_network_has_codes_for_more_levels_of_which_rare_ones_have_two_rows():
    names = [f"level {n:04}" for n in range(1300)]
    cells = np.array(names + names[:1100] + names[:80], object)
    (known,) = fit_encoding([cells], network=True)["levels"]
    assert known.tolist() == names[:1024]
    once = np.array([*names[:70], *names[:66]], object)
    (known,) = fit_encoding([once], network=True)["levels"]
    assert known.tolist() == names[:66]
    (known,) = fit_encoding([once])["levels"]
    assert known.tolist() == names[:MAX_LEVELS]


def test_many_columns_with_many_levels_have_at_most_2048_beyond_the_first_64_of_each():
    generator = np.random.default_rng(0)
    columns = [generator.integers(0, 900, 9000).astype(str).astype(object) for _ in range(4)]
    columns.append(np.array(["only"] * 9000, object))
    levels = fit_encoding(columns, network=True)["levels"]
    assert all(len(known) > MAX_LEVELS for known in levels[:4])
    assert levels[4].tolist() == ["only"]
    assert sum(len(known) - MAX_LEVELS for known in levels[:4]) <= 2048
    counts = [dict(zip(*np.unique(column.astype(str), return_counts=True), strict=True)) for column in columns[:4]]
    pairs = list(zip(levels[:4], counts, strict=True))
    left_out = [count for known, own in pairs for level, count in own.items() if level not in known]
    kept = [own[level] for known, own in pairs for level in known]
    assert max(left_out) <= min(kept)


@pytest.mark.parametrize("missing", [None, NAN])
def test_dates_as_text_are_numbers_as_if_they_were_timestamps(missing):
    texts = ["2024-02-28", "2024-02-29 12:30", "2024-03-01T00:00:01", missing, "1969-12-31"]
    moments = [None if text is missing else dt.datetime.fromisoformat(text) for text in texts]
    texts, moments = columns_of(texts)[0], columns_of(moments)[0]
    encodings = fit_encoding([texts]), fit_encoding([moments])
    np.testing.assert_array_equal(encodings[0]["middles"], encodings[1]["middles"])
    assert encodings[0]["dates"].tolist() == [0]
    wanted = encode_columns(encodings[1], [moments])
    for encoding in encodings:
        found = encode_columns(encoding, [moments])
        np.testing.assert_array_equal(found.numbers, wanted.numbers)
    for part in (slice(None), slice(3, 4), slice(0, 1)):
        found = encode_columns(encodings[0], [texts[part]])
        np.testing.assert_array_equal(found.numbers, wanted.numbers[part])
        np.testing.assert_array_equal(found.codes, wanted.codes[part])
    assert fit_encoding([np.arange(5.0), texts])["dates"].tolist() == [1]
    with pytest.raises(DataError, match="column 0 must hold dates"):
        encode_columns(encodings[0], [np.array(["2024-02-30"], object)])


@pytest.mark.parametrize("text", ["2024-02-30", "2024", "2024/1/5", "12345-01-01", "2024-01-05x"])
def test_other_text_than_dates_stays_text(text):
    encoding = fit_encoding([np.array(["2024-01-05", text] * 3, object)])
    assert len(encoding["dates"]) == 0
    assert encoding["levels"][0].tolist() == sorted({"2024-01-05", text})


def test_cells_of_every_library_are_the_same_columns():
    zoned = pa.array([0, None, 3_600_000_000], pa.timestamp("us", "Europe/Oslo"))
    table = pa.table(
        {"color": pa.array(["red", None, "blue"]).dictionary_encode(), "at": zoned, "ok": [True, None, False]}
    )
    color, at, ok = read_columns(table)
    assert color.tolist() == ["red", "\0missing", "blue"]
    objects = pd.DataFrame({name: pd.Series(table[name].to_pylist(), dtype=object) for name in table.column_names})
    for frame in (table.to_pandas(), table.to_pandas(types_mapper=pd.ArrowDtype), pl.from_arrow(table), objects):
        for found, expected in zip(read_columns(frame), (color, at, ok), strict=True):
            np.testing.assert_array_equal(found, expected)
    for cells in (pa.array([[1.0], [2.0]], pa.list_(pa.float64(), 1)), pa.array([1], pa.time64("ns"))):
        for frame in (pa.table({"x": cells}), pl.from_arrow(pa.table({"x": cells}))):
            with pytest.raises(KindError, match="cells of x must be"):
                read_columns(frame)


DAYS = [dt.datetime(2024, 1, 1 + day) for day in range(20)]
KINDS_OF_CELLS = {
    "number": [float(n) for n in range(20)],
    "date": DAYS,
    "date with a time zone": [day.replace(tzinfo=dt.timezone(dt.timedelta(hours=2))) for day in DAYS],
    "duration": [day - DAYS[0] for day in DAYS],
    "text": [f"level {n}" for n in range(20)],
}
CONTAINERS = {
    "pandas": pd.DataFrame,
    "pandas of arrow": lambda cells: pa.table(cells).to_pandas(types_mapper=pd.ArrowDtype),
    "pandas objects": lambda cells: pd.DataFrame({name: pd.Series(each, dtype=object) for name, each in cells.items()}),
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
    "array": lambda cells: np.array([*zip(*cells.values(), strict=True)], object),
}


@pytest.mark.parametrize("fitted", KINDS_OF_CELLS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_cells_of_another_kind_than_in_the_call_of_fit_are_refused_in_every_container(container, fitted):
    columns, kinds = read_table(CONTAINERS[container]({"x": KINDS_OF_CELLS[fitted]}))
    assert kinds == [fitted]
    encoding = fit_encoding(columns, kinds=kinds)
    for kind, cells in KINDS_OF_CELLS.items():
        missing = CONTAINERS[container]({"x": [None] * 3})
        for part in ({"x": cells[:2]}, {"x": [None, cells[0]]}):
            columns, kinds = read_table(CONTAINERS[container](part))
            if kind == fitted or (fitted, kind) == ("text", "number"):
                require_kinds(encoding, kinds)
                encode_columns(encoding, columns)
                require_kinds(encoding, read_table(missing)[1])
                continue
            refused = pytest.raises(DataError, match=r"column 0 must hold .*because it held .*in the call of fit, got")
            with refused:
                require_kinds(encoding, kinds)
                encode_columns(encoding, columns)


def test_texts_of_dates_are_read_in_a_column_of_dates_and_numbers_are_refused_in_one_of_such_texts():
    dates, kinds = read_table(pd.DataFrame({"x": DAYS}))
    texts = read_columns(pd.DataFrame({"x": [f"{day:%Y-%m-%d}" for day in DAYS]}))
    wanted = encode_columns(fit_encoding(dates, kinds=kinds), dates).numbers
    for fitted in (dates, texts):
        encoding = fit_encoding(fitted, kinds=kinds)
        np.testing.assert_array_equal(encode_columns(encoding, texts).numbers, wanted)
        with pytest.raises(DataError, match=r"column 0 must hold dates, .* got numbers"):
            require_kinds(encoding, ["number"])
    with pytest.raises(DataError, match="column 0 must hold dates such as 2026-11-28, "):
        encode_columns(encoding, columns_of(["2024-01-02 10:00+02:00"]))


def test_dates_of_which_no_cell_decides_whether_the_day_is_first_are_read_day_first_with_a_warning():
    texts = columns_of(["03/04/2020", "05/06/2020", None])
    with pytest.warns(UserWarning, match=r"column 0 is read in the format %d/%m/%Y, day first, .* format %m/%d/%Y"):
        encoding = fit_encoding(texts)
    assert encoding["date_formats"].tolist() == ["%d/%m/%Y"]
    for decided in (["03/04/2020", "25/06/2020"], ["03/03/2020", "04/04/2020"], ["2020-04-03"]):
        fit_encoding(columns_of(decided))  # without a warning, which would be an error here


@pytest.mark.parametrize("container", CONTAINERS)
def test_different_integers_that_are_one_float64_are_refused(container):
    close = [2**60 + 1, 2**60 + 2, 5]
    for cells in (close, [*close, None]) if container != "pandas" else (close,):  # it makes floats beside None
        with pytest.raises(DataError, match=r"integers of .* must differ as float64, .*such as 1152921504606846978"):
            read_columns(CONTAINERS[container]({"x": cells}))
    far = [2**60, 2**61, None]
    np.testing.assert_array_equal(read_columns(CONTAINERS[container]({"x": far}))[0], [2.0**60, 2.0**61, NAN])


def test_integers_of_128_bits_are_numbers_and_categories_of_numbers_are_categories():
    (wide,) = read_columns(pl.DataFrame({"x": pl.Series([2**70, None, -1], dtype=pl.Int128)}))
    np.testing.assert_array_equal(wide, [2.0**70, NAN, -1.0])
    for frame in (
        pd.DataFrame({"x": pd.Categorical([1, None, 3])}),
        pa.table({"x": pa.array([1, None, 3]).dictionary_encode()}),
    ):
        (codes,) = read_columns(frame)
        assert codes.tolist() == ["1", "\0missing", "3"]
