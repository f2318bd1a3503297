"""The folders of the Glasgow collections, of BEIR and of TREC are recognized, or refused with a reason."""

import gzip

import hypothesis.strategies as st
import pytest
from hypothesis import given

from qkv.errors import DataError
from qkv.search import read_collection
from qkv.search.collections import read_documents
from qkv.search.judgements import read_judgements

SMART_DOCUMENTS = ".I 1\n.T\nRings\n.W\nA golden ring.\n.I 2\n.W\nA dark den.\n.I 3\n.W\nThe pilot.\n"
SMART_QUERIES = ".I 1\n.W\ngold\n.I 2\n.W\ncave\n"

TIME = {
    "TIME.ALL": "*TEXT 017 01/04/63\n\nA GOLDEN RING .\n\nOF GOLD\n\n*TEXT 020\n\nA DARK DEN .\n\n"
    "*TEXT 563\n\nTHE PILOT .\n\n*STOP\n",
    "TIME.QUE": "*FIND     1\n\n GOLD\n\n*FIND     2\n\n CAVE\n\n*STOP\n",
    "TIME.REL": "1   1\n\n2   2   3   4   5   6\n",
    "TIME.STP": "A\nABOUT\n",
}
STARS = "*" * 44
LISA = {
    "LISA0.001": "Document   1\nRINGS.\n\nA GOLDEN\nRING.\n"
    + STARS
    + "\nDocument   2\nDENS.\n     \nA DARK DEN.\n"
    + STARS
    + "\n",
    "LISA0.501": "Document   3\nSHIPS.\n\nTHE PILOT.\n" + STARS + "\n",
    "LISA.QUE": "1\nI AM INTERESTED IN GOLD. #\n2\nI AM INTERESTED\nIN CAVES. #\n",
    "LISARJ.NUM": "     1     1     1   \n     2     5     2     3     4\n     5     6\n     3     1     1\n",
    "README": "LISA",
}
NPL = {
    "doc-text": "1\na golden ring\n   /\n2\na dark\nden\n   /\n3\nthe pilot\n   /\n",
    "query-text": "1\nGOLD\n/\n2\nCAVES\n/\n",
    "rlv-ass": "1\n  1\n   /\n2\n  2     3\n   /\n",
    "doc-vecs": "1     3     5 /\n2   7 /\n",
    "term-vocab": "1 golden /\n",
}
TREC = {
    "docs/a.xml.gz": "<DOC>\n<DOCNO> 1 </DOCNO>\n<HEADLINE>Rings</HEADLINE>\n"
    "<TEXT>\n<P>A golden ring &amp; gold.</P>\n</TEXT>\n</DOC>\n"
    "<DOC><DOCNO>2</DOCNO><TEXT>A dark den.</TEXT></DOC>",
    "docs/b.xml": "<DOC><DOCNO>3</DOCNO><TEXT>The pilot.</TEXT></DOC>",
    "topics.1-2": "<top>\n<num> Number: 1\n<title> Gold\n<desc> Description:\nWhat is golden?\n</top>\n"
    "<top>\n<num> Number: 2 </num><title> Caves </title>\n</top>\n",
    "qrels.txt": "1 0 1 1\n2 0 2 1\n2 0 3 2\n2 0 1 0\n",
}
CACM = {
    "cacm.all": SMART_DOCUMENTS + ".I\nis a line of a text\n",
    "query.text": SMART_QUERIES,
    "qrels.text": "01 0001  0 0\n02 0002  0 0\n02 0003  0 0\n",
    "cacm.qrels": "1 0 1 1\n2 0 2 1\n2 0 3 1\n",
    "README.md": "1 0 2 1\n",
}
MED = {
    "MED.ALL": SMART_DOCUMENTS,
    "MED.QRY": SMART_QUERIES,
    "MED.REL": "1 0 1 1\n2 0 2 1\n2 0 3 1\n",
    "MED.REL.OLD": "1 1 0 0.000000\n",
}
LAYOUTS = {"time": TIME, "lisa": LISA, "npl": NPL, "trec": TREC, "cacm": CACM, "med": MED}


@pytest.fixture(name="folder")
def _folder(tmp_path):
    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return tmp_path

    return write


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("line", ["\n", "\r\n"])
def test_the_folders_of_public_collections_are_read(folder, name, line):
    held = read_collection(folder({file: text.replace("\n", line) for file, text in LAYOUTS[name].items()}))
    assert [document.name for document in held.documents] == ["1", "2", "3"]
    assert "golden" in held.documents[0].whole.lower()
    assert held.documents[1].text.lower().replace(".", "").split() == ["a", "dark", "den"]
    assert [query.name for query in held.queries] == ["1", "2"]
    assert "gold" in held.queries[0].text.lower()
    assert "desc" not in held.queries[0].text.lower()
    relevant = {query: {name for name, grade in grades.items() if grade > 0} for query, grades in held.relevant.items()}
    assert relevant["1"] == {"1"}
    assert relevant["2"] >= {"2", "3"}


def test_titles_and_texts_of_lisa_and_trec_are_told_apart(folder):
    first = read_documents(folder(LISA))[0]
    assert (first.title, first.text) == ("RINGS.", "A GOLDEN\nRING.")


def test_marks_and_entities_of_trec_are_no_text(folder):
    first = read_documents(folder(TREC))[0]
    assert (first.title, first.text) == ("Rings", "A golden ring & gold.")


def test_two_files_that_could_be_the_judgements_are_refused_by_name(folder):
    path = folder(CACM | {"cacm.qrels": "1 0 1 1\n2 0 3 1\n"})
    with pytest.raises(
        DataError, match=r"got 'cacm.qrels' and 'qrels.text', which differ in 1 relevant pairs.*--relevant"
    ):
        read_collection(path)
    assert read_collection(path, relevant=path / "cacm.qrels").relevant == {"1": {"1": 1}, "2": {"3": 1}}


def test_two_files_of_documents_or_queries_are_refused_by_name(folder):
    path = folder(CACM | {"old.all": SMART_DOCUMENTS})
    with pytest.raises(DataError, match=r"documents of .* must be in one file, got 'cacm.all', 'old.all'"):
        read_collection(path)
    (path / "old.all").rename(path / "old.qry")
    with pytest.raises(DataError, match=r"queries of .* must be in one file, got 'old.qry', 'query.text'"):
        read_collection(path)
    assert len(read_collection(path, queries=path / "query.text").queries) == 2


def test_a_missing_part_is_named(folder):
    path = folder({name: text for name, text in NPL.items() if name != "rlv-ass"})
    with pytest.raises(DataError, match=r"must contain a file of judgements, got none. .*--relevant"):
        read_collection(path)


def test_documents_of_two_formats_are_refused(folder):
    with pytest.raises(DataError, match="must have one format, got NPL and TIME"):
        read_collection(folder(NPL | TIME))


def test_a_document_of_trec_without_a_number_is_refused(folder):
    with pytest.raises(DataError, match=r"each <DOC> must have a <DOCNO>, got 'A den.'"):
        read_documents(folder({"a.xml": "<DOC><TEXT>A den.</TEXT></DOC>"}) / "a.xml")


def test_notes_that_look_like_records_are_texts(folder):
    path = folder({"a.txt": "1\nfirst I bought a ring\n/\n", "b.md": "Document it.\n", "c.txt": "2\nthen a den #\n"})
    assert [document.name for document in read_documents(path)] == ["a.txt", "b.md", "c.txt"]


def test_lisas_two_forms_of_judgements_agree(tmp_path):
    blocks = (
        "Query 1\n1 Relevant Refs:\n1 -1\n ",
        "Query 2\n5 Relevant Refs:\n2 3\n4 5 6 -1\n",
        "Query 3\n1 Relevant Refs:\n1 -1\n",
    )
    (tmp_path / "LISA.REL").write_text("\n".join(blocks))
    (tmp_path / "LISARJ.NUM").write_text(LISA["LISARJ.NUM"])
    assert read_judgements(tmp_path / "LISA.REL") == read_judgements(tmp_path / "LISARJ.NUM")


@given(st.lists(st.lists(st.integers(100, 9999), min_size=1, max_size=12, unique=True), min_size=1, max_size=6))
def test_lists_of_documents_are_read_back(tmp_path_factory, lists):
    path = tmp_path_factory.mktemp("lists") / "rel"
    expected = {str(query): {str(document): 1 for document in each} for query, each in enumerate(lists, 1)}
    npl = "".join(f"{query}\n {'  '.join(map(str, each))}\n   /\n" for query, each in enumerate(lists, 1))
    path.write_text(npl)
    assert read_judgements(path) == expected
    if max(map(len, lists)) > 4:
        rows = [[query, *each] for query, each in enumerate(lists, 1)]
        path.write_text("\n\n".join(" ".join(map(str, row)) for row in rows))
        assert read_judgements(path) == expected
        path.write_text("\n".join(f"{row[0]} {len(row) - 1} " + " ".join(map(str, row[1:])) for row in rows))
        assert read_judgements(path) == expected


def test_the_public_folder_of_cacm_is_read_whole(public):
    held = read_collection(public / "cacm")
    assert (len(held.documents), len(held.queries)) == (3204, 52)
    assert sum(map(len, held.relevant.values())) == 796
