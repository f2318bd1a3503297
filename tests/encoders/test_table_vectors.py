"""Table vectors: each kind of column, missing cells and unknown categories, and files of arrays."""

import datetime as dt
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from qkv.encoders import TableVectors, table_vectors
from qkv.encoders.columns import KINDS
from qkv.errors import DataError, KindError, OptionError

TEXTS = ["red house by the sea", "blue house", "old mill by the river", "mill", "sea and river", "a boat"]
MIXED = {
    "age": [30, 50, None, 40, 20, 60],
    "city": ["Oslo", "Rome", "Oslo", "Rome", "Oslo", None],
    "paid": [True, False, True, None, True, False],
    "since": [dt.date(2020, 1, 1), dt.date(2021, 7, 2), None, dt.date(2020, 1, 1), dt.date(2019, 1, 1)] * 1
    + [dt.date(2022, 1, 1)],
    "about": TEXTS,
    "point": [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0], None, [0.0, 1.0], [2.0, 0.0]],
}


def fitted(**options):
    return TableVectors(**options).fit(MIXED)


def column(vectors, encoded, name):
    return encoded[:, [place for place, one in enumerate(vectors.names) if one.startswith(name)]]


def test_every_number_of_a_vector_has_a_name():
    vectors = fitted()
    encoded = vectors.encode(MIXED)
    assert encoded.shape == (6, vectors.width) == (6, len(vectors.names))
    assert encoded.dtype == np.float32
    assert np.isfinite(encoded).all()


def test_numbers_are_standardised_and_a_missing_one_is_marked():
    vectors = fitted()
    age = column(vectors, vectors.encode(MIXED), "age")
    present = np.array([30, 50, 40, 20, 60])
    np.testing.assert_allclose(age[[0, 1, 3, 4, 5], 0], (present - 40) / present.std(), rtol=1e-6)
    assert age[:, 1].tolist() == [0, 0, 1, 0, 0, 0]
    assert age[2, 0] == 0


def test_two_categories_are_at_distance_one_and_a_new_one_is_zero():
    vectors = fitted()
    encoded = column(vectors, vectors.encode(MIXED), "city=")
    assert np.linalg.norm(encoded[0] - encoded[1]) == pytest.approx(1)
    assert np.linalg.norm(encoded[0] - encoded[2]) == 0
    new = vectors.encode({**{name: cells[:1] for name, cells in MIXED.items()}, "city": ["Bern"]})
    assert not column(vectors, new, "city").any()


def test_texts_that_share_words_are_nearer_than_others_and_have_length_one():
    vectors = TableVectors(("about",), text_width=4, max_categories=1).fit(MIXED)
    encoded = vectors.encode(MIXED)
    np.testing.assert_allclose(np.linalg.norm(encoded[:4], axis=1), 1, rtol=1e-5)
    assert encoded[0] @ encoded[1] > encoded[0] @ encoded[3] + 0.2
    assert not vectors.encode({"about": ["unheard", None]}).any()


def test_the_same_day_of_another_year_is_nearer_than_half_a_year_away():
    vectors = TableVectors(("since",)).fit(MIXED)
    circle = vectors.encode({"since": [dt.date(2020, 1, 1), dt.date(2021, 1, 1), dt.date(2020, 7, 2)]})[:, 1:3]
    assert np.linalg.norm(circle[0] - circle[1]) < 0.02
    assert np.linalg.norm(circle[0] - circle[2]) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("frame", [pa.table, pd.DataFrame, pl.DataFrame])
def test_tables_and_frames_give_the_vectors_of_the_dict(frame):
    some = {name: MIXED[name] for name in ("age", "city", "since", "about")}
    vectors = TableVectors().fit(some)
    given = {**some, "age": [np.nan if age is None else float(age) for age in MIXED["age"]]}
    np.testing.assert_array_equal(vectors.encode(frame(given)), vectors.encode(some))


def test_saved_table_vectors_encode_alike_and_contain_no_code(tmp_path):
    vectors = fitted()
    vectors.save(tmp_path / "a.npz")
    read = TableVectors.load(tmp_path / "a.npz")
    assert read.names == vectors.names
    np.testing.assert_array_equal(read.encode(MIXED), vectors.encode(MIXED))
    assert pickle.dumps(vectors)[:2] not in (tmp_path / "a.npz").read_bytes()


@pytest.mark.parametrize("content", [b"", b"text", pickle.dumps([1])])
def test_a_file_with_other_content_is_refused(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"must be a file that TableVectors\.save wrote"):
        TableVectors.load(tmp_path / "a.npz")


def test_unusable_tables_and_options_are_refused():
    with pytest.raises(OptionError, match="must be fitted first"):
        TableVectors().encode(MIXED)
    with pytest.raises(OptionError, match="must be fitted first"):
        TableVectors().save("x.npz")
    with pytest.raises(OptionError, match="text_width must be an integer of at least 1, got 0"):
        TableVectors(text_width=0)
    with pytest.raises(DataError, match="must have a column 'wage'"):
        TableVectors(("wage",)).fit(MIXED)
    with pytest.raises(DataError, match="at least one row"):
        TableVectors().fit({"a": []})
    with pytest.raises(DataError, match="must hold numbers, to which the encoder was fitted, got texts"):
        fitted().encode({**MIXED, "age": ["old"] * 6})
    zoned = TableVectors().fit({"at": [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]})
    with pytest.raises(DataError, match=r"must hold dates with a time zone, .*, got dates"):
        zoned.encode({"at": [dt.datetime(2020, 1, 1)]})
    with pytest.raises(DataError, match="of 2 elements, to which the encoder was fitted, got 3 elements"):
        fitted().encode({**MIXED, "point": [[1.0, 2.0, 3.0]] * 6})
    with pytest.raises(DataError, match="must hold texts, numbers, categories"):
        TableVectors().fit(pa.table({"a": pa.array([{"b": 1}])}))
    with pytest.raises(KindError, match="table must be"):
        TableVectors().fit(7)


def test_every_kind_of_column_is_encoded():
    assert set(KINDS) - {"boolean"} == set(table_vectors._ENCODE)  # booleans are categories
