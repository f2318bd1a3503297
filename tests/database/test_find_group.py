"""Texts beside other key columns select the rows of one group, as a filter would, in memory and from a store."""

import numpy as np
import pyarrow as pa
import pytest

from qkv.database import Database

SHOPS = ["Oslo Central", "Bergen Harbour", "Tromsø", "Oslo North", "St. Hanshaugen"]
NAMES = ["José García", "Jose Garcia-Lopez", "Ann Lee", "Ann Leeds", "Maria Gonzalez", "Mario Gonzales"]
CITIES = ["Oslo", "Bergen", "Tromsø"]


def panel(seed, rows=150):
    draw = np.random.default_rng(seed)
    shop = draw.integers(len(SHOPS), size=rows)
    day = draw.integers(0, 60, rows).astype(float)
    price = 100.0 * shop + day + draw.normal(size=rows)
    return {"shop": [SHOPS[each] for each in shop], "day": day, "price": price}


def changed(text, draw):
    """A text with two neighbouring letters swapped, a word of it, or the text in capitals."""
    kind, at = draw.integers(4), int(draw.integers(1, len(text) - 2))
    swapped = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    return [swapped, text.split()[0], text.upper(), text][kind]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))])
def test_a_text_beside_a_number_selects_the_rows_of_one_group(seed, tmp_path):
    draw, table = np.random.default_rng(seed), panel(seed)
    here = Database.open(table, key="shop,day", value="price")
    Database.create(tmp_path / "store", table, key="shop,day", value="price")
    streamed = Database.open(tmp_path / "store", memory=1)
    assert streamed.streams
    queries = [(changed(str(draw.choice(SHOPS)), draw), float(draw.integers(0, 60))) for _ in range(30)]
    batch, by_store = here.ask(queries, top=150), streamed.ask(queries, top=150)
    assert any(batch.found)
    assert any(answer.candidates for answer in batch)
    for query, answer, stored in zip(queries, batch, by_store, strict=True):
        single = here.ask([query], top=150)[0]
        assert (single.reason, single.candidates) == (answer.reason, answer.candidates)
        assert single.found == answer.found
        assert not single.found or single.value == pytest.approx(answer.value, rel=1e-12)
        assert (stored.found, stored.reason) == (answer.found, answer.reason)
        assert set(stored.candidates) == set(answer.candidates)
        if not answer.found:
            assert answer.value is None
            continue
        assert stored.value == pytest.approx(answer.value, rel=1e-6)
        shops = {row.record["shop"] for row in answer.rows}
        assert len(shops) == 1
        # As if the rows of the shop had been selected first: the same weights as for its full name.
        full = here.ask([(shops.pop(), query[1])], top=150)[0]
        assert answer.value == pytest.approx(full.value, rel=1e-12)
        own = np.array([row.record["day"] for row in answer.rows])
        weights = np.array([row.weight for row in answer.rows])
        apart = np.abs(own - query[1])
        assert (np.diff(weights[np.argsort(apart, kind="stable")]) <= 1e-12).all()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))])
def test_two_texts_are_answered_as_by_a_filter(seed):
    draw = np.random.default_rng(seed)
    rows = [(str(draw.choice(NAMES)), str(draw.choice(CITIES)), float(draw.normal())) for _ in range(40)]
    table = {name: [row[at] for row in rows] for at, name in enumerate(("name", "city", "value"))}
    both = Database.open(table, key="name,city", value="value")
    by_name = Database.open(table, key="name", value="value")
    found = 0
    for _ in range(40):
        name, city = changed(str(draw.choice(NAMES)), draw), str(draw.choice(CITIES))
        answer, first = both.ask([(name, city)])[0], by_name.ask(name, where=f"city = '{city}'")
        # A name of another city in full is not replaced by a similar name of this city.
        full = [each for each in NAMES if each.casefold() == name.casefold()]
        if full and (full[0], city) not in {row[:2] for row in rows}:
            assert not answer.found
            continue
        assert answer.found == first.found
        if answer.found:
            found += 1
            assert answer.value == pytest.approx(first.value, rel=1e-12)
            assert {row.index for row in answer.rows} == {row.index for row in first.rows}
        elif first.candidates:
            assert set(answer.candidates) == {f"{each}, {city}" for each in first.candidates}
    assert found > 10


def test_texts_in_no_row_together_have_no_match():
    people = Database.open({"name": ["Ann Lee", "Bo Ek"], "city": ["Oslo", "Rome"], "v": [1, 2]}, "name,city", "v")
    assert people.ask("Ann Lee,Rome").reason == "no row matches name 'ann lee' and city 'rome'"
    assert people.ask("Ann Leh,Olso").value == 1
    assert people.ask([("Ann Lee", None)])[0].reason == "the query is missing"
    assert "no row satisfies" in people.ask("Ann Lee,Oslo", where="v > 9").reason


def test_categories_and_identifiers_beside_texts_are_equal():
    names = ["Ann Lee", "Ann Leeds", "Ann Lee", "Bo Ek"]
    kind = pa.array(["a", "b", "a", "b"]).dictionary_encode()
    table = pa.table(
        {"name": names, "kind": kind, "zip": ["00123", "00124", "00123", "00124"], "v": [1.0, 5.0, 3.0, 7.0]}
    )
    for key, one, other, none in (("name,kind", "a", "b", "c"), ("name,zip", "00123", "00124", "99999")):
        people = Database.open(table, key=key, value="v")
        assert people.ask([("Ann Leh", one)])[0].value == 2.0
        assert people.ask([("Ann", other)])[0].value == 5.0
        assert people.ask([("Ann Lee", other)])[0].reason == "no row matches name 'ann lee' and the other columns"
        reason = people.ask([("Ann Lee", none)])[0].reason
        assert reason.startswith(f"{key.split(',')[1]}: ")


def test_a_chosen_normalizer_mixes_groups_and_says_so():
    table = {"name": ["Ann Lee", "Ann Leeds"], "day": [1.0, 1.0], "v": [0.0, 1.0]}
    answer = Database.open(table, key="name,day", value="v").ask([("Ann Le", 1.0)], normalizer="softmax")
    assert 0 < answer[0].value < 1
    assert any(note.startswith("rows of different keys take part") for note in answer.notes)
