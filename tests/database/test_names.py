"""Names are found by words, beginnings, initials and abbreviations; several that match equally give no value."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.database import Database
from qkv.database.execute import in_memory
from qkv.database.keys.name_index import NameIndex, PresentNames
from qkv.scores import Names
from tests.effort import cases

PLACES = ["Denver Intl", "Dover AFB", "San José", "San Diego Intl", "O'Hare", "John F. Kennedy", "St. Louis-Lambert"]
WORDS = ["san", "jose", "santa", "john", "intl", "international", "denver", "a", "21", "ana", "ii", "2", "u21", "x"]


def numbered(keys):
    """Return the numbers of different names, and that of each row, -1 for a row without a name."""
    names = {name: number for number, name in enumerate(dict.fromkeys(name for name in keys if name is not None))}
    return names, np.array([names.get(name, -1) for name in keys])


def opened(names):
    return Database.open({"name": names, "row": list(range(len(names)))}, key="name", value="row")


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("Denver", "Denver Intl"),
        ("denv", "Denver Intl"),
        ("denvre", "Denver Intl"),
        ("denver international", "Denver Intl"),
        ("Intl Denver", "Denver Intl"),
        ("diego", "San Diego Intl"),
        ("san jose", "San José"),
        ("ohare", "O'Hare"),
        ("j f kennedy", "John F. Kennedy"),
        ("Kennedy, John", "John F. Kennedy"),
        ("st louis", "St. Louis-Lambert"),
    ],
)
def test_part_of_a_name_finds_it(query, name):
    answer = opened(PLACES).ask(query)
    assert answer.found, answer.reason
    assert answer.rows[0].record["name"] == name


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("The Silence of t", "The Silence of the Lambs"),
        ("A Nightmare on Elm Street 4", "A Nightmare on Elm Street 4: The Dream Master"),
        ("Teenage Mutant Ninja Turtles II:", "Teenage Mutant Ninja Turtles II: The Secret of the Ooze"),
        ("the missing", None),
        ("king", None),
        ("king k", "King Kong"),
        ("nightm", "Nightmares in Red"),
        ("elm street", None),
    ],
)
def test_the_only_key_that_begins_with_the_query_is_found(query, name):
    titles = ["The Silence of the Lambs", "Mea Maxima Culpa: Silence in the House of God", "King Kong", "King Arthur"]
    titles += ["A Nightmare on Elm Street", "A Nightmare on Elm Street 4: The Dream Master", "Man on a Mission"]
    titles += ["Teenage Mutant Ninja Turtles III", "Teenage Mutant Ninja Turtles II: The Secret of the Ooze"]
    answer = opened([*titles, "The Lion King", "Nightmares in Red", "Kingdom of Heaven"]).ask(query)
    assert answer.found == (name is not None), answer.reason
    assert name is None or answer.rows[0].record["name"] == name


def test_names_in_reasons_can_be_pasted_as_queries():
    names = ["C:\\data new", "C:\\data old", "O'Hara \u200ePub", "O'Hara \u200eInn"]
    for query, first, listed in (
        ("C:\\data", names[0], "'C:\\data new', 'C:\\data old'"),
        ("O'Hara", names[2], '"O\'Hara \\u200ePub"'),
    ):
        answer = opened(names).ask(query)
        assert listed in answer.reason
        shown = answer.reason.split(": ", 1)[1][1:].split(listed[0])[0]
        assert opened(names).ask(shown, printed=True).rows[0].record["name"] == first
    refused = opened(["C:\\new", "C:\\old"]).ask("C:\\other")
    assert r"'C:\new'" in refused.reason or r"'C:\old'" in refused.reason


def test_a_name_that_equals_the_query_is_preferred_and_repeated_rows_are_one_name():
    assert opened([*PLACES, "San"]).ask("san").rows[0].record["name"] == "San"
    repeated = opened(["San Jose"] * 30 + ["Reno"])
    assert repeated.ask("san").found
    assert not opened(["San Jose"] * 30 + ["San Diego"] * 30).ask("san").found


@settings(derandomize=True, deadline=None, max_examples=cases(60))
@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3),
    st.lists(st.lists(st.sampled_from(WORDS), max_size=3), min_size=1, max_size=5),
)
def test_a_key_is_compared_alike_alone_and_among_others(query, keys):
    texts = [" ".join(key) for key in keys]
    asked = np.array([" ".join(query)], object)
    together = Names()(asked, np.array(texts, object))[0]
    alone = [Names()(asked, np.array([text], object))[0, 0] for text in texts]
    np.testing.assert_array_equal(together, alone)
    assert ((together >= 0) & (together <= 1)).all()
    assert ((together == 1) == (asked == np.array(texts, object))).all()


@settings(derandomize=True, deadline=None, max_examples=cases(150))
@given(
    st.lists(
        st.lists(st.sampled_from([*WORDS, "josé", "j", "sán", "東京", "x" * 300]), max_size=4), min_size=1, max_size=40
    ),
    st.lists(
        st.sampled_from([*WORDS, "snaa", "joes", "j", "sant", "iii", "2nd", "021", "東", "denvre", "x" * 290]),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 12),
    st.randoms(use_true_random=False),
    st.sampled_from([0.0, 0.5, 0.8, 0.9]),
)
def test_the_index_finds_the_rows_with_the_largest_similarities(names, query, count, draw, min_similarity):
    keys = np.array([" ".join(name) for name in names], object)
    keys[draw.randrange(len(keys))] = None
    present = np.array([draw.random() < 0.8 for _ in keys])
    text, score = " ".join(query), Names()
    logits = np.where(present & np.not_equal(keys, None), score(np.array([text], object), keys)[0], -np.inf)
    few = len({name for name, one in zip(keys, present, strict=True) if one and name is not None}) <= count
    best = 1 if logits.max() < min_similarity and not few and len(text) < 256 else count
    expected = np.sort(np.argsort(-logits, kind="stable")[: min(best, np.isfinite(logits).sum())])
    rows = PresentNames(NameIndex(*numbered(keys)), present).best_rows(text, score, count, min_similarity)
    assert np.isin(expected, rows).all()
    # All rows are compared if there are few names, or with very long queries.
    if len(set(keys[rows])) > count and len(text) < 256:
        np.testing.assert_array_equal(rows, expected)


@pytest.mark.thinned
@pytest.mark.parametrize("where", [None, "row % 3 = 1"])
@pytest.mark.parametrize("normalizer", [None, "hard", "topk:3"])
def test_an_indexed_table_answers_as_without_index(monkeypatch, where, normalizer):
    draw = np.random.default_rng(0)
    names = [" ".join(draw.choice([*WORDS, *PLACES, "Jürgen", "Smith"], draw.integers(1, 4))) for _ in range(400)]
    queries = ["san", "denvre", "John Kenedy", "smith jurgen", "zzzz", None, "j", names[3], names[5].upper()]
    for values in (list(range(400)), [name[:2] for name in names]):
        rows = {"name": names, "row": list(range(400)), "value": values}
        answers = []
        for least in (1, 10**9):
            monkeypatch.setattr(in_memory, "_INDEXED_ROWS", least)
            table = Database.open(rows, key="name", value="value")
            answers.append(table.ask(queries, where=where, normalizer=normalizer))
        for one, two in zip(*answers, strict=True):
            assert (one.found, one.reason, one.candidates) == (two.found, two.reason, two.candidates)
            assert one.value == pytest.approx(two.value) if isinstance(two.value, float) else one.value == two.value
            assert [row.index for row in one.rows] == [row.index for row in two.rows]
            np.testing.assert_allclose([row.weight for row in one.rows], [row.weight for row in two.rows], rtol=1e-12)


def test_a_table_without_a_selected_row_has_no_match_and_needs_no_index(monkeypatch):
    monkeypatch.setattr(in_memory, "_INDEXED_ROWS", 1)
    assert opened(PLACES).ask("denver", where="row > 100").reason == "no row satisfies the predicate"
    assert [each.found for each in opened([*PLACES, None]).ask([None, "denver"])] == [False, True]


# -- one key answers


PEOPLE = {
    "name": ["José García", "José García", "Jose Garcia-Lopez", "Ann Lee", "Ann Leeds", "Anna Lee"],
    "income": [10.0, 20.0, 90.0, 1.0, 2.0, 4.0],
}


@pytest.mark.parametrize("query", ["Jose Garcia", "garcia, jose", "Jose Garzia", "JOSÉ  GARCÍA"])
def test_the_answer_comes_from_all_rows_of_one_key(query):
    answer = Database.open(PEOPLE, key="name", value="income").ask(query)
    assert answer.found, answer.reason
    assert answer.value == 15.0
    assert [(row.index, row.weight) for row in answer.rows] == [(0, 0.5), (1, 0.5)]
    assert len({row.similarity for row in answer.rows}) == 1
    assert answer.rows[0].similarity > 0.8
    assert "the answer comes from the rows of one key, the most similar one" in answer.notes


@pytest.mark.parametrize(
    ("names", "query"),
    [
        (["Avinov", "Vaginov", "Petrov"], "Avginov"),
        (["Delta County", "Darlington County"], "Dlt County"),
        (["Leitman", "Plitman"], "Litman"),
        (["Darsky", "Daursky", "Darev"], "Daersky"),
    ],
)
def test_names_that_match_about_equally_are_listed_without_a_value(names, query):
    answer = opened(names).ask(query)
    similarities = Names()(np.array([query.lower()], object), np.array([name.lower() for name in names], object))[0]
    first, second = np.sort(similarities)[::-1][:2]
    assert 1e-9 < first - second < 0.02
    assert not answer.found
    assert answer.value is None
    assert set(answer.candidates) == set(names[:2])


def test_the_same_words_in_another_order_need_no_margin():
    names = ["American Red Ale", "Americas American Red Ale"]
    answer = opened(names).ask("Red Ale, American")
    assert answer.found, answer.reason
    assert answer.rows[0].record["name"] == "American Red Ale"


def test_a_chosen_score_or_temperature_mixes_keys_and_says_so():
    people = Database.open(PEOPLE, key="name", value="income")
    for options in ({"score": "spelling"}, {"normalizer": "softmax:0.02"}):
        answer = people.ask("Jose Garcia", **options)
        assert answer.value > 15.5
        assert any(note.startswith("rows of different keys take part in one answer") for note in answer.notes)
    assert people.ask("Jose Garcia", normalizer="hard").value in (10.0, 20.0)


def test_more_names_than_are_compared_are_counted_as_or_more():
    answer = opened([f"San {letter}{letter}{letter}" for letter in "abcdefghijklmno"]).ask("san")
    assert answer.reason.startswith("10 or more keys match about equally: ")


def test_the_plan_of_a_streamed_store_states_the_cost_of_names(tmp_path):
    Database.create(tmp_path / "store", {"name": PLACES, "row": list(range(len(PLACES)))}, key="name", value="row")
    plan = str(Database.open(tmp_path / "store", memory=1).ask("denver").plan)
    assert "names have no index here: about 3 µs of CPU time per row and query" in " ".join(plan.split())
    assert "names have no index" not in str(Database.open(tmp_path / "store").ask("denver").plan)
