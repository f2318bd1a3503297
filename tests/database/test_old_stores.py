"""Stores written in format 1, by the revision before the database was laid out by stage, open and answer the same.

`stores_format_1.tar.gz` holds three stores as that revision wrote them, with the statistics it cached.
"""

import tarfile
from pathlib import Path

import pytest

from qkv.database import Database

WRITTEN = Path(__file__).with_name("stores_format_1.tar.gz")


@pytest.fixture(name="stores")
def _stores(tmp_path):
    with tarfile.open(WRITTEN) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return tmp_path


@pytest.mark.parametrize("memory", ["512 MiB", 1])
def test_a_store_of_format_1_answers_as_when_it_was_written(stores, memory):
    plain = Database.open(stores / "plain", memory=memory)
    assert (plain.score, plain.normalizer) == ("jaro-winkler", "topk:3:0.05")
    # One number was saved, which is the least similarity here and would be the largest distance of a key of numbers.
    assert plain.min_similarity == plain.max_distance == 0.7
    answers = plain.ask(["john doe", "li", "rachel hu"])
    assert answers.value == [pytest.approx(2132.5958516014703), None, pytest.approx(3.2109805786743446)]
    assert [version.operation for version in plain.versions()] == ["create", "append", "append", "delete"]
    assert plain.at(2).ask("jane roe").value == pytest.approx(1993.0797606702763)
    assert plain.verify() == []


@pytest.mark.parametrize("memory", ["512 MiB", 1])
def test_encoded_stores_of_format_1_answer_as_when_they_were_written(stores, memory):
    encoded = Database.open(stores / "encoded", memory=memory)
    answers = encoded.ask(["wine", "golden ring", "zzz"])
    assert answers.value == [pytest.approx(1.266761527345773, rel=1e-5), pytest.approx(5.0), None]
    assert encoded.verify() == []
    table = Database.open(stores / "table", memory=memory)
    assert (table.ask("2,y").value, table.score) == (pytest.approx(2.0), "gaussian:0.1531")


def test_a_store_of_format_1_is_written_on(stores):
    plain = Database.open(stores / "plain")
    plain.append({"name": ["New"], "income": [9.0], "born": [None]})
    assert plain.delete("income = 3") == 1
    plain.compact()
    assert plain.ask("new").rows[0].record["income"] == 9.0
    encoded = Database.open(stores / "encoded")
    encoded.append({"text": ["golden wine"], "v": [7.0]})
    assert len(encoded) == 7
