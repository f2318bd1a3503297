"""Texts, queries and judgements from the formats that public collections come in."""

import gzip
import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from qkv.errors import DataError
from qkv.search import read_collection, read_texts
from qkv.search.collections import read_documents
from qkv.search.judgements import read_judgements, read_run

SMART = """.I 1
.T
wings in a
slipstream
.A
brenckman,m.
.W
lift of a wing .
.5 is no field
.I 002
.W
heat in slabs
"""


@pytest.fixture(name="smart")
def _smart(tmp_path):
    (tmp_path / "x.all.gz").write_bytes(gzip.compress(SMART.encode()))
    (tmp_path / "x.qry").write_text(".I 001\n.W\nlift\n.I 007\n.W\nheat\n.I 009\n.W\nnobody judged\n")
    (tmp_path / "xrel").write_text("1 1 2\n1 2 -1\n2 2 3\n")
    (tmp_path / "xrel.readme").write_text("about")
    return tmp_path


@pytest.fixture(name="beir")
def _beir(tmp_path):
    (tmp_path / "qrels").mkdir()
    corpus = [{"_id": "d1", "title": "Rings", "text": "A golden ring."}, {"_id": "d2", "text": "A den."}]
    queries = [{"_id": "q1", "text": "gold"}, {"_id": "q2", "text": "cave"}]
    for name, records in (("corpus", corpus), ("queries", queries)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n")
    return tmp_path


def test_smart_records_have_numbers_titles_and_texts(smart):
    first, second = read_documents(smart / "x.all.gz")
    assert (first.name, first.title, first.text) == ("1", "wings in a\nslipstream", "lift of a wing .\n.5 is no field")
    assert (second.name, second.title, second.text) == ("2", "", "heat in slabs")


def test_queries_whose_numbers_are_not_those_of_the_judgements_are_numbered_by_their_order(smart):
    held = read_collection(smart)
    assert [(query.name, query.text) for query in held.queries] == [("1", "lift"), ("2", "heat")]
    assert any("by their order" in note for note in held.notes)


def test_every_pair_of_a_smart_file_is_relevant_whatever_its_grade(smart):
    assert read_collection(smart).relevant == {"1": {"1": 1, "2": 1}, "2": {"2": 1}}


def test_queries_without_judgements_are_skipped_and_counted(smart):
    assert "1 of 3 queries are not judged and are skipped" in read_collection(smart).notes


def test_cisis_judgements_are_read_in_their_own_columns(tmp_path):
    (tmp_path / "rel").write_text("     1     28\t0\t0.000000\n     1     35\t0\t0.000000\n")
    assert read_judgements(tmp_path / "rel") == {"1": {"28": 1, "35": 1}}
    (tmp_path / "rel").write_text("1 28 -1\n1 35 0\n1 41 3\n")  # no scale of relevance contains 0
    assert read_judgements(tmp_path / "rel") == {"1": {"28": 1, "35": 0, "41": 1}}


def test_the_document_0_keeps_its_number(smart):
    (smart / "x.all.gz").write_bytes(gzip.compress(b".I 0\n.W\nlift of a wing\n.I 012\n.W\nheat\n"))
    (smart / "xrel").write_text("1 0\n007 012\n")
    assert read_collection(smart).relevant == {"1": {"0": 1}, "7": {"12": 1}}


def test_names_of_smart_judgements_have_leading_zeros_where_those_of_the_documents_have_them(tmp_path):
    (tmp_path / "t.csv").write_text("id,body\n007,a golden ring\n07,a den\n12,a pilot\n")
    (tmp_path / "q.tsv").write_text("01\tgold\n2\tcave\n")
    (tmp_path / "r.txt").write_text("01 007\n02 07\n2 012\n")
    held = read_collection(tmp_path / "t.csv", queries=tmp_path / "q.tsv", relevant=tmp_path / "r.txt")
    assert held.relevant == {"01": {"007": 1}, "2": {"07": 1, "12": 1}}


def test_trec_judgements_keep_their_grades(tmp_path):
    (tmp_path / "qrels").write_text("q1 0 doc-7 2\nq1 0 doc-8 0\n")
    assert read_judgements(tmp_path / "qrels") == {"q1": {"doc-7": 2, "doc-8": 0}}


def test_a_beir_folder_is_a_collection(beir):
    held = read_collection(beir)
    assert held.documents[0].whole == "Rings\nA golden ring."
    assert [query.name for query in held.queries] == ["q1"]
    assert held.relevant == {"q1": {"d1": 2, "d2": 0}}


def test_a_table_with_named_files_is_a_collection(tmp_path):
    (tmp_path / "t.csv").write_text("id,kind,body\nd1,x,a golden ring\nd2,y,a den\n")
    (tmp_path / "q.tsv").write_text("q1\tgold\n")
    (tmp_path / "r.txt").write_text("q1 0 d1 1\n")
    held = read_collection(tmp_path / "t.csv", queries=tmp_path / "q.tsv", relevant=tmp_path / "r.txt")
    assert [document.text for document in held.documents] == ["a golden ring", "a den"]


def test_a_folder_gives_its_texts_and_no_hidden_files(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "a" / "one.md").write_text("One.")
    (tmp_path / "two.txt.gz").write_bytes(gzip.compress(b"Two."))
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / ".git" / "three.txt").write_text("Three.")
    (tmp_path / "four.py").write_text("Four.")
    assert [(each.name, each.text) for each in read_texts(tmp_path)] == [("a/one.md", "One."), ("two.txt.gz", "Two.")]


def test_repeated_ids_of_a_table_are_refused():
    with pytest.raises(DataError, match="the ids of the dict must be unique, got 'a' more than once"):
        read_texts({"id": ["a", "a"], "text": ["One.", "Two."]})


@pytest.mark.parametrize("named", [False, True])
def test_ids_titles_and_texts_of_a_file_are_read_as_they_are_written(named, tmp_path):
    rows = [
        ("007", "2001", "12"),
        ("1e5", "n/a", "05.01.2024"),
        ("100000", "01/02", "hello there"),
        ("2.50", "x", "TRUE"),
    ]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["id,title,Text", *map(",".join, rows)]) + "\n")
    found = read_texts(path, "Text" if named else None)
    assert [(document.name, document.title, document.text) for document in found] == rows
    other = tmp_path / "n.csv"
    other.write_text("id,n\n1,5\n2,6\n3,7\n4,none of them\n")
    assert [document.text for document in read_texts(other, "n")] == ["5", "6", "7", "none of them"]


def test_texts_of_any_list_are_numbered_and_missing_ones_are_refused():
    texts = ["One.", "Two."]
    for source in (tuple(texts), np.array(texts), pd.Series(texts), pl.Series(texts), pa.array(texts)):
        assert [(document.name, document.text) for document in read_texts(source)] == [("1", "One."), ("2", "Two.")]
    with pytest.raises(DataError, match="must be texts, got None at index 1"):
        read_texts(["One.", None])
    assert [document.name for document in read_texts(pd.DataFrame({"id": [1.0, 2.0], "text": texts}))] == ["1", "2"]


def test_a_list_of_texts_is_numbered_from_one():
    assert [(each.name, each.text) for each in read_texts(["One.", ""])] == [("1", "One."), ("2", "")]


def wrong(path, content, read, says):
    path.write_bytes(content)
    with pytest.raises(DataError, match=says):
        read(path)


def test_unreadable_files_raise_errors_that_name_the_line(tmp_path, beir):
    wrong(tmp_path / "a.txt", b"\xff\xfe\x00", read_texts, "must be UTF-8 text")
    wrong(tmp_path / "a.txt", b"", read_texts, "got an empty or blank file")
    wrong(tmp_path / "q", b"q1 0 d1\nq1 0\n\nq2 0 d2 high 5\n", read_judgements, "line 4 .* must be a judgement")
    wrong(tmp_path / "q", b"\n", read_judgements, "at least one judgement, got none")
    wrong(tmp_path / "q", b"q1 0 d1 1\nq1 0 d1 0\n", read_judgements, "got 1 and 0 for query q1 and document d1")
    wrong(tmp_path / "run", b"q1 Q0 d1 1 2 me\nq1 Q0 d1 2 1 me\n", read_run, "got 2.0 and 1.0 for query q1")
    wrong(tmp_path / "run", b"q1 Q0 d1 1 high me\n", read_run, "line 1 .* must be a line of a TREC run")
    wrong(tmp_path / "t.csv", b"a,b\nx,y\n", read_texts, "got 2 columns of strings.*--text")
    wrong(tmp_path / "t.csv", b"a,b\n1,2\n", read_texts, "got 0 columns of strings")
    (beir / "corpus.jsonl").write_text('{"text": "no id"}\n')
    with pytest.raises(DataError, match=r"line 1 of .*corpus.jsonl"):
        read_collection(beir)


def test_parts_that_do_not_belong_together_are_refused(beir):
    (beir / "other.tsv").write_text("query-id\tcorpus-id\tscore\nq9\td1\t1\n")
    with pytest.raises(DataError, match=r"queries of .* got queries 'q1'.* 'q9'"):
        read_collection(beir, relevant=beir / "other.tsv")
    (beir / "other.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td9\t1\n")
    with pytest.raises(DataError, match=r"must include at least one of its documents.*'d9'.*'d1'"):
        read_collection(beir, relevant=beir / "other.tsv")
    with pytest.raises(DataError, match=r"split must be one of test, the files in qrels/ .* got 'dev'"):
        read_collection(beir, split="dev")


def test_the_public_collections_are_read_whole(public):
    cranfield, cisi = (read_collection(public / name) for name in ("cranfield", "cisi"))
    assert (len(cranfield.documents), len(cranfield.queries)) == (1400, 225)
    assert [each.name for each in cranfield.documents if not each.whole.strip()] == ["471", "995"]
    assert cranfield.queries[2].text.startswith("what problems of heat conduction")
    assert sum(map(len, cranfield.relevant.values())) == 1837
    assert (len(cisi.documents), len(cisi.queries)) == (1460, 76)
    assert "36 of 112 queries are not judged and are skipped" in cisi.notes
