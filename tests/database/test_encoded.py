"""Stores with an encoder: the answers equal those of a table whose key is the encoded vectors."""

import datetime as dt
import importlib.util
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

pytest.importorskip("sklearn")

from qkv import store as stores
from qkv.database import Database
from qkv.database.storage import encoding
from qkv.encoders import LatentEncoder, LatentSemantics, TableVectors, WordVectors
from qkv.errors import DamagedStoreError, DataError, KindError, OptionError, QueryError

SRC = str(Path(__file__).parents[2] / "src")
TEXTS = [
    "a shepherd found a golden ring",
    "prisoners see shadows in the den",
    "the sailors quarrel about the steering of the ship",
    "the sun gives light to the eye",
    "gold and silver and brass",
    None,
    "   ",
    "farmers, weavers and builders of the city",
    "the ring of gold turned, and the shepherd was unseen",
]
ROWS = {"text": TEXTS, "number": [float(n) for n in range(9)], "book": list("abcabcabc")}
# The text with "shadows" shares no word with the others, and has the fifth largest singular value: a space of four
# dimensions does not hold it. The sixth singular value is clearly smaller.
RANK_WITH_SHADOWS = 5
UNKNOWN = "the query has a zero or non-finite vector, for example because no word is in the encoder's vocabulary"
MORE = {"text": ["a dark den full of shadows", "xylophone"], "number": [20.0, 21.0], "book": ["d", "d"]}


@pytest.fixture(
    name="backend",
    params=[
        "arrow",
        pytest.param(
            "lance",
            marks=pytest.mark.skipif(importlib.util.find_spec("lance") is None, reason="pylance is not installed"),
        ),
    ],
)
def _backend(request):
    return request.param


@pytest.fixture(name="path")
def _path(tmp_path):
    return tmp_path / "store"


def made(path, backend="arrow", rank=RANK_WITH_SHADOWS, **how):
    return Database.create(path, ROWS, "text", "number", encoder=f"latent:{rank}", backend=backend, **how)


def both(path, *names):
    """The same store in memory and streamed."""
    near, far = Database.open(path, *names), Database.open(path, *names, memory=1)
    assert (near.streams, far.streams) == (False, True)
    return near, far


def by_hand(rows, vectors, name, query, **how):
    """Return the answer of a table in memory whose key is the given vectors."""
    column = [None if vector is None else list(map(float, vector)) for vector in vectors]
    table = pa.table({**rows, "vector": pa.array(column, pa.list_(pa.float32(), len(query)))})
    return Database.open(table, "vector", name).ask([float(number) for number in query], **how)


# -- answers --------------------------------------------------------------------------------------------


def test_answers_are_those_of_vectors_made_by_hand_in_memory_and_streamed(path, backend):
    made(path, backend)
    known = [text for text in TEXTS if text and text.strip()]
    latent = LatentEncoder(RANK_WITH_SHADOWS)
    latent.fit_encode(known)
    vectors = [latent.encode([text])[0] if text in known else None for text in TEXTS]
    for asked, where in (("the golden ring", None), ("who sees a shadow: den", "book <> 'a'")):
        wanted = by_hand(ROWS, vectors, "number", latent.encode([asked])[0], where=where)
        for each in both(path):
            answer = each.ask(asked, where=where)
            assert answer.value == pytest.approx(wanted.value, rel=1e-5)
            assert answer.spread == pytest.approx(wanted.spread, rel=1e-3, abs=1e-5)
            assert answer.perplexity == pytest.approx(wanted.perplexity, rel=1e-4)
            assert answer.found == wanted.found
            assert answer.query == asked
            sure = [(row.index, row.weight) for row in wanted.rows if row.weight > 1e-4]
            assert [row.index for row in answer.rows][: len(sure)] == [index for index, _ in sure]
            assert [row.weight for row in answer.rows][: len(sure)] == pytest.approx(
                [weight for _, weight in sure], rel=1e-4
            )


def test_records_tables_and_predicates_show_the_columns_that_were_given_and_no_vector(path, backend):
    made(path, backend)
    for each in both(path):
        answer = each.ask("golden ring")
        assert answer.rows[0].record == {"text": TEXTS[0], "number": 0.0, "book": "a"} or (
            answer.rows[0].record == {"text": TEXTS[8], "number": 8.0, "book": "c"}
        )
        assert answer.table.column_names == each.table.column_names == ["text", "number", "book"]
        assert answer.keys == ("text",)
        assert answer.to_arrow().column("query").to_pylist() == ["golden ring"]
        with pytest.raises(QueryError, match='columns "text", "number", "book", such'):
            each.ask("ring", where="colour = 3")
        with pytest.raises(QueryError, match='columns "text", "number", "book", such'):
            each.delete("colour = 3")
        assert not each.ask("golden ring", where="number > 99").found
        assert (len(each), each.missing_cells) == (7, {"text": 2})


@pytest.mark.parametrize("encoder", ["latent", "table"])
def test_the_rows_of_a_new_store_are_encoded_once(tmp_path, monkeypatch, encoder):
    rows, told = [], []
    plain = encoding.Encoding._vectors
    monkeypatch.setattr(
        encoding.Encoding, "_vectors", lambda self, table: rows.append(table.num_rows) or plain(self, table)
    )
    parts = ({"text": [f"{first} cat", f"{first} dog", "bird"], "n": [1, 2, 3]} for first in ("red", "blue"))
    made = Database.create(
        tmp_path / "store", parts, "text", "n", encoder=encoder, progress=lambda *said: told.append(said)
    )
    assert (rows, len(made)) == ([3, 3], 6)
    assert [done for what, done, _ in told if what == "encoding rows"] == [3, 6]


def test_plan_and_notes_name_the_encoder(path):
    made(path)
    near, far = (each.ask("golden ring") for each in both(path))
    said = "latent semantics (log-entropy), 5 numbers"
    assert f"keys to vectors by {said}" in str(near.plan)
    assert f"encoder     {said}" in str(far.plan)
    assert "vector of text fixed_size_list<item: float>[5]" in str(far.plan)
    for answer in (near, far):
        assert f"keys and queries encoded by {said}" in answer.notes
        assert "no match under a cosine of 0.2" in answer.notes
        assert "2 left out (text missing in 2)" in answer.notes[0]


def test_the_least_cosine_is_the_largest_expected_of_unrelated_keys(tmp_path):
    rng = np.random.default_rng(0)
    words = [f"w{number}" for number in range(400)]
    vectors = tmp_path / "words.txt"
    # Directions in 50 dimensions: a cosine of two has the deviation 1/√50; two words in ten are one group.
    points = rng.normal(size=(400, 50)) + 6 * (np.arange(400) < 80)[:, None]
    lines = (f"{word} {' '.join(f'{x:.4f}' for x in row)}\n" for word, row in zip(words, points, strict=True))
    vectors.write_text("".join(lines))
    made = Database.create(
        tmp_path / "store", {"word": words, "number": range(400)}, "word", "number", encoder=str(vectors)
    )
    assert made.min_similarity == pytest.approx(np.sqrt(2 * np.log(400) / 50), rel=0.15)
    assert Database.open(tmp_path / "store").min_similarity == made.min_similarity
    # It is meant for cosines alone, and a limit of one's own comes first.
    for how in ({"score": "gaussian:2"}, {"min_similarity": -1.0}):
        assert not any(f"cosine of {made.min_similarity}" in note for note in made.ask("w3", **how).notes)
    other = Database.create(
        tmp_path / "other", {"word": words, "number": range(400)}, "word", "number",
        encoder=str(vectors), min_similarity=0.1,
    )  # fmt: skip
    assert other.min_similarity == 0.1


@pytest.mark.parametrize("how", [{}, {"score": "dot", "normalizer": "softmax"}, {"min_similarity": -1.0}])
def test_a_query_of_unknown_words_has_no_match_and_gives_no_nan(path, how):
    made(path).append(MORE)
    for each in both(path):
        answers = each.ask(["xylophone", None, "  ", "golden ring"], **how)
        assert answers.found == [False, False, False, True]
        assert answers.reason[:3] == [UNKNOWN, "the query is missing", "the query is missing"]
        assert answers.value[:3] == [None] * 3
        assert np.isfinite([row.weight for row in answers[3].rows]).all()
        assert np.isfinite([answers[3].value, answers[3].spread, answers[3].perplexity]).all()


def test_a_query_of_another_kind_is_refused(path):
    made(path)
    for each in both(path):
        with pytest.raises(QueryError, match="the query for the key 'text' must be a text"):
            each.ask(3.5)
        with pytest.raises(QueryError, match="the query for the key 'text' must be a text"):
            each.ask([[0.1, 0.2, 0.3, 0.4]])


def test_a_score_of_texts_compares_the_key_itself(path):
    made(path, min_similarity=0.999, normalizer="hard")
    plain = Database.open(ROWS, "text", "number").ask("a shepherd fuond a golden rnig", score="spelling")
    for each in both(path):
        answer = each.ask("a shepherd fuond a golden rnig", score="spelling")
        assert answer.value == pytest.approx(plain.value)
        assert "compared by Spelling()" in answer.notes
        assert not any("encoded" in note for note in answer.notes)
        assert each.ask(TEXTS[3], score="exact").value == 3.0


def test_defaults_of_ask_are_saved_beside_the_encoder(path):
    made(path, score="gaussian:0.5", normalizer="topk:1", max_distance=0.7)
    for each in both(path):
        answer = each.ask(["a golden ring", "xylophone"])
        assert "compared by Gaussian(0.5)" in answer.notes
        assert len(answer[0].rows) == 1
        assert answer[0].rows[0].distance < 0.7
        far = each.ask("den", max_distance=0.01, where="number = 3")
        assert not far.found
        assert "no match beyond a distance of 0.01" in far.reason


# -- writing and versions -------------------------------------------------------------------------------


def test_appended_rows_are_encoded_by_the_encoder_fitted_to_the_first_rows(path, backend):
    store = made(path, backend)
    before = (path / "attached" / "encoder.npz").read_bytes()
    store.append(MORE)
    for each in both(path):
        assert each.ask("shadows").value == pytest.approx(10.5, abs=0.01)
        assert each.at(1).ask("shadows").value == pytest.approx(1.0, abs=0.01)
    assert (path / "attached" / "encoder.npz").read_bytes() == before
    vectors = store.store.to_table(["vector of text"]).column(0).to_pylist()
    assert vectors[5] is vectors[6] is None
    assert vectors[-1] == [0.0] * RANK_WITH_SHADOWS
    assert store.delete("number = 1") == 1
    store.compact(keep=1)
    assert store.verify() == []
    for each in both(path):
        assert each.ask("shadows").value == pytest.approx(20.0, abs=0.01)


def test_another_key_of_the_store_is_compared_without_the_encoder(path):
    here = made(path)
    other = Database.open(path, "book", "text")
    assert "compared by Names" in other.ask("b").notes[1]
    other.append(MORE)
    assert here.refresh()
    assert here.ask("shadows").value == pytest.approx(10.5, abs=0.01)
    turned = here.swap()
    assert (turned.key, turned.value) == (("number",), "text")
    assert turned.ask(3.0, score="gaussian:0.1").value == TEXTS[3]
    assert turned.swap().ask("shadows").value == pytest.approx(10.5, abs=0.01)
    with pytest.raises(DataError, match="got 'vector of text'"):
        Database.open(path, "vector of text", "number")


def test_rows_that_do_not_fit_are_refused_by_the_names_of_the_visible_columns(path):
    store = made(path)
    with pytest.raises(DataError, match=r"columns text, number, book; missing: book; unknown: none"):
        store.append({"text": ["a"], "number": [1.0]})
    with pytest.raises(DataError, match="unknown: vector of text"):
        store.append(store.store.to_table())
    assert (store.version, len(store.store)) == (1, 9)


def test_rows_are_encoded_in_batches_each_text_once_with_progress(path, monkeypatch):
    monkeypatch.setattr(encoding, "_BATCH", 4)
    seen, encoded = [], []
    real = LatentEncoder.encode
    monkeypatch.setattr(LatentEncoder, "encode", lambda self, texts: encoded.append(list(texts)) or real(self, texts))
    store = made(path, progress=lambda *told: seen.append(told))
    assert [told for told in seen if told[0] == "encoding rows"] == [("encoding rows", done, 0) for done in (4, 8, 9)]
    encoded.clear()
    rows = {"text": ["ring", "ring", "den", "ring", "den"], "number": [1.0] * 5, "book": ["x"] * 5}
    store.append(rows)
    assert encoded == [["ring", "den"], ["den"]]
    vectors = store.store.to_table(["vector of text"]).column(0).to_pylist()[-5:]
    assert vectors[0] == vectors[1] == vectors[3] != vectors[2] == vectors[4]


def test_a_key_of_categories_is_encoded_as_texts(path, backend):
    table = pa.table({"key": pa.array(["red rose", "white wine", "red rose", None]), "value": [1.0, 2.0, 3.0, 4.0]})
    table = table.set_column(0, "key", table.column("key").dictionary_encode())
    Database.create(path, table, "key", "value", encoder="latent", backend=backend)
    for each in both(path):
        assert each.ask(["rose", "wine"]).value == pytest.approx([2.0, 2.0], abs=1e-3)
        assert each.missing_cells == {"key": 1}


def test_a_file_whose_first_part_has_no_rows_is_encoded(tmp_path, path):
    csv = tmp_path / "rows.csv"
    csv.write_text("text,number\n" + "".join(f"word{i % 7} of row,{i}\n" for i in range(50)))
    store = Database.create(path, csv, "text", "number", encoder="latent")
    assert len(store) == 50
    assert store.ask("word3").value == pytest.approx(np.mean([i for i in range(50) if i % 7 == 3]))


def test_a_plot_of_an_encoded_answer_is_saved(tmp_path, path):
    pytest.importorskip("matplotlib")
    from qkv.look.query_plot import save_query_plot

    made(path)
    for each in both(path):
        save_query_plot(each, each.ask("golden ring"), tmp_path / "picture.png")
        assert (tmp_path / "picture.png").stat().st_size > 5000


# -- damage ---------------------------------------------------------------------------------------------


def test_a_damaged_encoder_file_is_reported_when_the_store_is_opened(path, backend):
    made(path, backend)
    file = path / "attached" / "encoder.npz"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedStoreError, match=r"attached/encoder\.npz"):
        Database.open(path)
    rest = Database.open(path, damaged="skip")
    assert [damage.file for damage in rest.verify()] == ["attached/encoder.npz"]
    assert rest.ask(TEXTS[3], score="spelling").value == pytest.approx(3)
    with pytest.raises(DamagedStoreError, match=r"attached/encoder\.npz"):
        rest.ask("golden ring")
    with pytest.raises(DamagedStoreError, match=r"attached/encoder\.npz"):
        rest.append(MORE)
    assert rest.version == 1


@pytest.mark.parametrize(
    ("how", "error", "sentence"),
    [
        ({"encoder": "nope"}, OptionError, "one of latent, latent:N"),
        ({"encoder": "latent:0"}, OptionError, "must have a number of at least 1"),
        ({"encoder": 3}, KindError, "got an object of type int"),
        ({"encoder": LatentSemantics(2).fit(np.eye(4))}, OptionError, "fitted to counts"),
        ({"encoder": TableVectors().fit({"z": [1.0, 2.0]})}, OptionError, "the encoder was fitted, z, got text"),
        ({"key": "number"}, OptionError, "must be a column of texts .* got 'number' with numbers"),
        ({"key": "text,book"}, OptionError, "must be one column of texts"),
        ({"source": {"text": [None, "of the"], "number": [1.0, 2.0]}}, DataError, "must contain at least one word"),
        (
            {"source": pa.schema({"text": pa.string(), "number": pa.float64()})},
            OptionError,
            "must have rows to fit the encoder",
        ),
        ({"source": {**ROWS, "Vector of TEXT": [1] * 9}}, DataError, "reserved for vectors"),
        ({"source": iter([ROWS, {**ROWS, "number": ["x"] * 9}])}, DataError, "rows must fit the column types"),
    ],
)
def test_an_encoder_that_cannot_be_used_leaves_no_store(path, how, error, sentence):
    asked = {"source": ROWS, "key": "text", "value": "number", "encoder": "latent"} | how
    with pytest.raises(error, match=sentence):
        Database.create(path, **asked)
    assert not path.exists()


def test_an_existing_store_is_refused_before_the_encoder_is_fitted(path, monkeypatch):
    made(path)
    monkeypatch.setattr(LatentEncoder, "fit_encode", lambda *given: pytest.fail("it was fitted"))
    with pytest.raises(DataError, match="must be new or an empty folder"):
        made(path)


# -- other encoders -------------------------------------------------------------------------------------


def test_all_word_vectors_are_saved_with_the_store(tmp_path, path):
    words = WordVectors(("king", "queen", "apple"), np.array([[1, 0.1], [0.9, 0.2], [0, 1]], np.float32))
    words.save(tmp_path / "words.bin", format="binary")
    rows = {"key": ["the King", "an apple", "zzz", None], "value": [1.0, 2.0, 3.0, 4.0]}
    Database.create(path, rows, "key", "value", encoder=str(tmp_path / "words.bin"))
    (tmp_path / "words.bin").unlink()
    for each in both(path):
        answer = each.ask(["Queen", "pears"])
        assert answer.value[0] == pytest.approx(1, abs=1e-4)
        assert answer.reason[1] == UNKNOWN
        assert answer[0].rows[0].similarity == pytest.approx(words.similarity("king", "queen"), abs=1e-6)
        assert "the mean of word vectors (3 words), 2 numbers" in answer.notes[1]


def test_a_fitted_encoder_is_not_fitted_again_and_allows_an_empty_store(path):
    words = WordVectors(("a", "b"), np.eye(2, dtype=np.float32)).weighted_by(["a", "a b"])
    schema = pa.schema({"key": pa.string(), "value": pa.float64()})
    Database.create(path, schema, "key", "value", encoder=words).append({"key": ["a b"], "value": [5.0]})
    store = Database.open(path)
    (vector,) = store.store.to_table(["vector of key"]).column(0).to_pylist()
    assert vector == pytest.approx(words.encode(["a b"])[0].tolist())
    latent = LatentEncoder(2)
    latent.fit_encode(["red rose", "red wine", "white wine"])
    other = Database.create(path.parent / "other", ROWS, "text", "number", encoder=latent)
    assert other.ask("red wine").reason != UNKNOWN
    assert other.ask("golden ring").reason == UNKNOWN


def test_a_row_whose_vector_is_not_finite_takes_no_part(path):
    words = WordVectors(("a", "b"), np.array([[np.nan, 1], [1, 0]], np.float32))
    Database.create(path, {"key": ["a", "b"], "value": [1.0, 2.0]}, "key", "value", encoder=words)
    for each in both(path):
        assert (len(each), each.missing_cells) == (1, {"key": 1})
        assert each.ask(["a", "b"]).value == [None, 2.0]


MIXED = 240


def mixed():
    draw = np.random.default_rng(0)
    age, city = draw.integers(20, 70, MIXED).astype(float), draw.choice(["Oslo", "Rome", "Bern"], MIXED)
    return {
        "age": [None if i % 50 == 3 else one for i, one in enumerate(age.tolist())],
        "city": city.tolist(),
        "since": [dt.date(2020, 1, 1) + dt.timedelta(days=int(d)) for d in draw.integers(0, 900, MIXED)],
        "member": (age > 40).tolist(),
        "pay": (1000 + 20 * age + 300 * (city == "Oslo") + 30 * draw.standard_normal(MIXED)).tolist(),
    }


def test_a_key_of_several_kinds_answers_as_table_vectors_made_by_hand(path, backend):
    rows, key = mixed(), ["age", "city", "since", "member"]
    store = Database.create(path, rows, key, "pay", encoder="table", backend=backend)
    table = TableVectors().fit({name: rows[name] for name in key})
    query = {"age": 45.0, "city": "Oslo", "since": dt.date(2021, 1, 1), "member": True}
    vector = table.encode({name: [cell] for name, cell in query.items()})[0]
    vectors = table.encode({name: rows[name] for name in key})
    wanted = by_hand(rows, vectors, "pay", vector, score=store.score, max_distance=store.max_distance)
    for each in both(path):
        for asked in (query, tuple(query.values()), "45,Oslo,2021-01-01,true"):
            answer = each.ask(asked)
            assert answer.value == pytest.approx(wanted.value, rel=1e-5)
            assert answer.perplexity == pytest.approx(wanted.perplexity, rel=1e-4)
            assert answer.rows[0].distance == pytest.approx(wanted.rows[0].distance, rel=1e-4)
        assert abs(answer.value - (1000 + 20 * 45 + 300)) < 100
        assert len(each) == MIXED
        far = each.ask([(400, "Oslo", dt.date(1950, 1, 1), False), (None, None, None, None)])
        assert far.found == [False, False]
        assert "no match beyond a distance of" in far.reason[0]
        assert far.reason[1] == "the query is missing"
        with pytest.raises(QueryError, match="key 'age' must be a finite number"):
            each.ask(("old", "Oslo", "2021-01-01", True))
        with pytest.raises(QueryError, match="must have 4 parts"):
            each.ask((45, "Oslo"))


def test_a_vector_in_a_key_of_several_columns_must_have_its_width(path):
    draw = np.random.default_rng(0)
    rows = {"age": draw.uniform(20, 60, 80), "point": draw.standard_normal((80, 3)), "pay": draw.uniform(0, 1, 80)}
    Database.create(path, rows, "age,point", "pay", encoder=TableVectors(), score="gaussian:1")
    assert Database.open(path).ask({"age": 30.0, "point": [0.0, 0.1, 0.2]}).found
    with pytest.raises(QueryError, match="a vector of 3 finite elements"):
        Database.open(path).ask({"age": 30.0, "point": [0.0, 0.1]})


def test_an_empty_list_of_texts_has_no_answers(path):
    assert list(made(path).ask([])) == []


def test_vectors_of_an_encoder_are_copied_but_not_exported(tmp_path: Path) -> None:
    texts = {"text": ["a golden ring", "shadows in the den", "the ship sails", "dark dens"], "days": [1, 2, 3, 4]}
    database = Database.create(tmp_path / "a", texts, "text", "days", encoder="latent:2")
    copied = database.copy(tmp_path / "b")
    assert copied.ask("golden ring").value == database.ask("golden ring").value
    assert Database.open(tmp_path / "b").ask("ship sails").value == database.ask("ship sails").value
    database.export(tmp_path / "a.parquet")
    assert parquet.read_table(tmp_path / "a.parquet").to_pydict() == texts
    assert len(Database.create(tmp_path / "c", tmp_path / "a.parquet", "text", "days", encoder="latent:2")) == 4


def test_a_repaired_store_without_its_encoder_compares_by_spelling_and_is_created_again(tmp_path: Path) -> None:
    texts = {"text": ["a golden ring", "shadows in the den", "the ship sails", "dark dens"], "days": [1, 2, 3, 4]}
    Database.create(tmp_path / "a", texts, "text", "days", encoder="latent:2")
    (tmp_path / "a" / "attached" / "encoder.npz").write_bytes(b"")
    done = stores.repair(tmp_path / "a")
    assert (done.rows, done.lost) == (4, {})
    database = Database.open(tmp_path / "a")
    assert database.verify() == []
    assert database.ask("a goldn ring", score="spelling").rows[0].record == {"text": "a golden ring", "days": 1}
    for use in (lambda: database.ask("golden ring"), lambda: database.append(texts)):
        with pytest.raises(DataError, match=r"a repair removed it.* score='spelling', or create the store again"):
            use()
    database.export(tmp_path / "a.parquet")
    again = Database.create(tmp_path / "b", tmp_path / "a.parquet", "text", "days", encoder="latent:4")
    assert again.ask("golden ring").rows[0].record["days"] == 1
