"""Bad input of every kind: one sentence on stderr, exit code 2, nothing on stdout and no new files."""

import gzip

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from qkv.cli.main import run
from qkv.database import Database

FILES = {
    "t.csv": "x,v,name,day\n1,1,Ann,2020-01-01\n2,2,Bob,2020-01-02\n3,3,Cid,2020-01-03\n4,4,Dan,2020-01-04\n",
    "bad.csv": "x,v\n1,1\nn/a,2\n3,3\n4,4\n?,5\n",
    "bad.json": '[{"x": 1, "v": 1}, {"x": "n/a", "v": 2}, {"x": 3, "v": 3}]',
    "days.csv": "x,v\n2020-01-01,1\n2020-01-02,2\nsoon,3\n",
    "late.csv": "x,v\n" + "".join(f"{i},1\n" for i in range(21_000)) + "n/a,1\n",
    "inf.csv": "x,v\n1.5,1\ninf,2\n3,3\n",
    "header.csv": "x,v\n",
    "nokey.csv": "x,v\n,1\n,2\n",
    "twice.csv": "x,x,v\n1,2,3\n",
    "ragged.csv": 'x,v\n1,"2\n3,4\n5,6,7,8\n',
    "empty.csv": "",
    "words.csv": "x,v\none,1\ntwo,2\n",
    "broken.json": '{"x": 1, "v"',
    "text.parquet": "not parquet",
    "text.arrow": "not arrow",
    "text.csv.gz": "not gzip",
    "t.xyz": "x,v\n1,2\n",
    "noending": "x,v\n1,2\n",
    "de.csv": "day,v\n31.12.2021,1\n01.02.2022,2\n",
    "flags.csv": "b,v\ntrue,1\nfalse,2\n",
    "latin.txt": b"J\xe9r\xf4me\n",
    "latin.csv": b"x,v\nJ\xe9r\xf4me,1\n",
    "zeros.csv": b"\x00\x01\x02\x00",
    "utf16.csv": "x,v\n1,2\n".encode("utf-16"),
    "big-endian.csv": "x,v\nÅ,1\n".encode("utf-16-be"),
    "little-endian.csv": "x,v\nÅ,1\n".encode("utf-16-le"),
    "cut.csv.gz": gzip.compress(b"x,v\n" + b"1,2\n" * 5000)[:-20],
    "wrong-sum.csv.gz": gzip.compress(b"x,v\n1,2\n3,4\n")[:-8] + bytes(4) + (12).to_bytes(4, "little"),
    "cut.csv.zst": pa.Codec("zstd").compress(b"x,v\n1,2\n" * 3000, asbytes=True)[:-5],
    "nested.json": '[{"x": {"y": 1}, "v": 1}, {"x": {"y": 2}, "v": 2}]',
    "scalar.json": "3",
    "noheader.csv": "1,2\n3,4\n",
    "blank.csv": "\n\n\n",
    "huge.csv": "x,v\n1,1e400\n2,-1e400\n",
    "twins.csv": "x,x\n1,2\n",
    "text2.parquet": "not parquet",
}
T = ("ask", "t.csv", "--key", "x", "--value", "v")
N = ("ask", "t.csv", "--key", "name", "--value", "v")
D = ("ask", "t.csv", "--key", "day", "--value", "v")
P = ("ask", "t.csv", "--key", "x,name", "--value", "v")
V = ("ask", "v.arrow", "--key", "at", "--value", "v")
S = ("ask", "s.qkv")
NEW = ("store", "create", "new.qkv")


def of(name, key="x"):
    return ("ask", name, "--key", key, "--value", "v", "1")


CASES = [
    # arguments
    (("ask",), "FILE must be given"),
    (("ask", "--key", "x", "--value", "v"), "FILE must be given"),
    (("ask", "t.csv"), "--key must be given"),
    (("ask", "t.csv", "--key", "x", "1"), "--value must be given"),
    (("ask", "t.csv", "--value", "v", "1"), "--key must be given"),
    (("ask", "--key"), "--key"),
    (("aks",), "aks"),
    ((*T, "1", "--nomalizer", "mean"), "got --nomalizer"),
    ((*T, "1", "-q"), "got -q"),
    ((*T, "1", "--top", "many"), "--top must be an integer"),
    ((*T, "1", "--top", "0"), "--top must be at least 1"),
    ((*T, "1", "--format", "xml"), "got 'xml'"),
    ((*T, "1", "--max-distance", "near"), "--max-distance must be"),
    ((*T, "1", "--seed", "x"), "--seed must be an integer"),
    ((*T, "1", "--version", "1"), "--version must be used with a store"),
    ((*T, "1", "--on-bad-cell", "drop"), "--on-bad-cell must be"),
    ((*T, "1", "2", "--plot", "p.png"), "--plot must be used with exactly one query"),
    ((*T, "1", "--plot", "p.jpg"), "must end in"),
    ((*T, "1", "--plot", "nowhere/p.png"), "must exist"),
    # scores and normalizers
    ((*T, "1", "--score", "gausian"), "Did you mean 'gaussian'?"),
    ((*T, "1", "--score", "gaussian:wide"), "must be a number"),
    ((*T, "1", "--score", "gaussian:-1"), "bandwidth"),
    ((*T, "1", "--score", "gaussian:1:2:3"), "at most"),
    ((*T, "1", "--score", "additive"), "only numbers as required parameters"),
    ((*T, "1", "--score", ""), "score must be one of"),
    ((*N, "Ann", "--score", "gaussian"), "which compares numbers"),
    ((*P, "1,Ann", "--score", "gaussian"), "Omit score"),
    ((*T, "1", "--score", "spelling"), "score must support the key columns"),
    ((*T, "1", "--normalizer", "sofmax"), "Did you mean 'softmax'?"),
    ((*T, "1", "--normalizer", "topk"), "number of keys"),
    ((*T, "1", "--normalizer", "topk:0"), "must be an integer of at least 1"),
    # predicates and SQL
    ((*T, "1", "--where", "v >"), "failed"),
    ((*T, "1", "--where", "name"), "failed"),
    ((*T, "1", "--where", "v > 1; drop table data"), "failed"),
    ((*T, "1", "--where", "v > (select count(*) from 'bad.csv')"), "got the table bad.csv in"),
    (("ask", "--sql", "selct", "--key", "a", "--value", "b", "1"), "SQL"),
    (("ask", "--sql", "copy (select 1) to 'out.csv'", "--key", "a", "--value", "b", "1"), "must be one SELECT"),
    (("ask", "--sql", "select 1 as a; select 2 as a", "--key", "a", "--value", "a", "1"), "must be one SELECT"),
    (("ask", "--sql", "select * from 'no.csv'", "--key", "a", "--value", "b", "1"), "no.csv"),
    (("ask", "--sql", "select 1 as a", "--key", "a", "--value", "b", "1"), "got 'b'"),
    (("ask", "--sql", "select 1 as a, 2 as b where false", "--key", "a", "--value", "b", "1"), "at least one row"),
    # fits, and tables of answers
    ((*T, "1", "--aggregate", "cubic"), "--aggregate must be one of mean, vote, local-linear"),
    ((*N, "Ann", "--aggregate", "local-linear"), "aggregate must be 'mean' for name"),
    ((*T, "1", "--output", "a.xyz"), "must end in"),
    ((*T, "1", "--output", "nowhere/a.csv"), "must exist"),
    ((*T, "1", "--on", "x=v"), "--on must be used with --output"),
    ((*T, "1", "--id", "name"), "--id must be used with --output"),
    ((*T, "1", "--quote-formulas"), "--quote-formulas must be used with --format csv"),
    ((*T, "--queries", "words.csv", "--output", "a.csv", "--on", "q=v"), "on must name the key columns x, got 'q'"),
    ((*T, "--queries", "words.csv", "--output", "a.csv", "--on", "x=q"), "must have the column 'q'"),
    ((*T, "--queries", "no.csv", "--output", "a.csv"), "must be an existing file"),
    ((*T, "--queries", "de.csv", "--output", "a.csv", "--on", "x=v", "--id", "q"), "id must be one of"),
    ((*T, "--queries", "words.csv", "--output", "a.csv", "--format", "json"), "--format must not be given"),
    ((*T, "--queries", "words.csv", "--output", "a.csv", "--plot", "p.png"), "--plot must not be given"),
    # files
    (of("no.csv"), "must be an existing file"),
    (of("t.cvs"), "Did you mean 't.csv'?"),
    (of("nothing/"), "got the folder 'nothing' without tables"),
    (of("nothing/*.csv"), "must match at least one file"),
    (("ask", "t.csv", "de.csv", "--key", "x", "--value", "v", "1"), "got 'x'"),
    (("ask", "t.csv", "words.csv", "--key", "x", "--value", "v", "1"), "must have columns of the same types"),
    ((*T, "1", "--encoding", "utf-99"), "encoding must be a text encoding"),
    ((*T, "1", "--encoding", "base64"), "encoding must be a text encoding"),
    ((*T, "1", "--delimiter", "::"), "delimiter must be one character"),
    ((*T, "1", "--decimal", ",", "--delimiter", ","), "decimal must differ"),
    ((*T, "1", "--decimal", ";"), "decimal must be '.' or ','"),
    ((*of("latin.csv"), "--encoding", "utf-16"), "must be text in utf-16"),
    ((*S, "1", "--encoding", "latin-1"), "must be used with a table"),
    (of("t.xyz"), "must end in"),
    (of("noending"), "must end in"),
    (of("empty.csv"), "is empty"),
    (of("header.csv"), "at least one row"),
    (of("nokey.csv"), "at least one row with a value"),
    (of("ragged.csv"), "cannot be read"),
    (of("broken.json"), "cannot be read"),
    (of("text.parquet"), "cannot be read"),
    (of("text.arrow"), "must be an intact Arrow file"),
    (of("text.csv.gz"), "must be a complete gzip file"),
    (of("zeros.csv"), "qkv: "),
    (of("utf16.csv"), "Pass --encoding utf-16"),
    (of("latin.csv"), "Pass --encoding latin-1"),
    (of("blob.arrow"), "must hold texts, numbers"),
    (of("uneven.arrow", "at"), "vectors of one length"),
    ((*of("bad.csv"), "--on-bad-cell", "refuse"), "must be finite numbers in 'bad.csv', got '?', one of 2"),
    ((*of("inf.csv"), "--on-bad-cell", "refuse"), "must be finite numbers in 'inf.csv', got 'inf'"),
    ((*of("days.csv"), "--on-bad-cell", "refuse"), "must be dates in 'days.csv', got 'soon'"),
    ((*of("bad.json"), "--on-bad-cell", "refuse"), "must be finite numbers in 'bad.json', got 'n/a'"),
    ((*S, "1", "--on-bad-cell", "refuse"), "must be used with a file of rows, got a store"),
    (("ask", "--sql", "select 1 as a", "--key", "a", "--value", "a", "--on-bad-cell", "text", "1"), "got --sql"),
    (of("twice.arrow"), "column names must be unique, got x more than once"),
    # columns
    (("ask", "t.csv", "--key", "nmae", "--value", "v", "1"), "Did you mean 'name'?"),
    (("ask", "t.csv", "--key", "x", "--value", "w", "1"), "got 'w'"),
    (("ask", "t.csv", "--key", "x,x", "--value", "v", "1"), "must name each column once"),
    (("ask", "t.csv", "--key", "x,", "--value", "v", "1"), "key must be"),
    # queries
    ((*T, "abc"), "must be a finite number"),
    ((*T, "nan"), "must be a finite number"),
    ((*T, "1,5"), "must be a finite number"),
    ((*T, "0x10"), "must be a finite number"),
    ((*D, "yesterday"), "must be a timestamp"),
    ((*D, "2020-02-30"), "must be a timestamp"),
    ((*D, "7"), "must be a timestamp"),
    ((*D, "2020-01-01T00:00:00+01:00"), "without a time zone"),
    (("ask", "de.csv", "--key", "day", "--value", "v", "12/31/2021"), "must be a timestamp"),
    (("ask", "flags.csv", "--key", "b", "--value", "v", "maybe"), "must be true or false"),
    ((*V, "1,2,3"), "must be a vector of 2 finite elements"),
    ((*V, "1,inf"), "must be a vector of 2 finite elements"),
    ((*P, "1"), "must have 2 parts"),
    ((*T, "1", "--queries", "t.csv"), "Omit one of them"),
    ((*T, "--queries", "t.csv"), "must have one column for each key column (x), got 4 in"),
    ((*T, "--queries", "no.txt"), "must be a readable file"),
    ((*T, "--queries", "."), "folder"),
    ((*T, "--queries", "empty.csv", "--plot", "p.png"), "exactly one query"),
    # stores
    ((*S, "1", "--version", "99"), "99"),
    ((*S, "1", "--key", "q"), "got 'q'"),
    ((*S, "1", "--memory", "much"), "memory"),
    (("store", "create", "s.qkv", "t.csv", "--key", "x", "--value", "v"), "s.qkv"),
    ((*NEW, "t.csv"), "--key must be given"),
    ((*NEW, "t.csv", "--key", "x", "--value", "v", "--backend", "zip"), "backend"),
    ((*NEW, "t.csv", "--key", "x", "--value", "v", "--encoder", "nothing"), "folder must contain a model"),
    ((*NEW, "bad.csv", "--key", "x", "--value", "v", "--on-bad-cell", "refuse"), "one of 2 cells that are not"),
    ((*NEW, "late.csv", "--key", "x", "--value", "v", "--on-bad-cell", "refuse"), "got 'n/a'"),
    (("store", "append", "s.qkv", "bad.csv", "--on-bad-cell", "refuse"), "must be finite numbers in 'bad.csv'"),
    (("store", "append", "s.qkv", "bad.csv", "--on-bad-cell", "text"), "x"),
    (("store", "append", "s.qkv", "de.csv"), "must have the columns x, v, name, day"),
    (
        ("store", "create", "t.csv/new", "t.csv", "--key", "x", "--value", "v"),
        "the parent of the store must be a folder",
    ),
    (("store", "copy", "s.qkv", "s.qkv", "--overwrite"), "path must be a folder apart from the store"),
    (("store", "copy", "s.qkv", "new.qkv", "--version", "9"), "version must exist in 's.qkv', got 9"),
    (("store", "export", "s.qkv", "nowhere/rows.arrow"), "the folder of the export must exist, got 'nowhere'"),
    (("store", "export", "nowhere", "rows.arrow"), "path must be a store, got 'nowhere'"),
    (("store", "append", "no.qkv", "t.csv"), "no.qkv"),
    (("store", "append", "s.qkv"), "FILE"),
    (("store", "delete", "s.qkv", "w > 1"), "failed"),
    (("store", "versions", "no.qkv"), "no.qkv"),
    (("store", "compact", "s.qkv", "--keep", "0"), "--keep must be at least 1"),
    (("store", "verify", "t.csv"), "t.csv"),
    (("store", "erase", "s.qkv"), "erase"),
    # tables that are named twice, that are elsewhere, or that are damaged
    (of("copies"), "each table must be given once, got 'copies/a.csv' and 'copies/a.csv.gz'"),
    (of("copies/*.csv*"), "Name the files that are meant"),
    (of("formats"), "got 'formats/a.csv' and 'formats/a.jsonl'"),
    (("ask", "t.csv", "t.csv", "--key", "x", "--value", "v", "1"), "got 't.csv' and 't.csv'"),
    (of(""), "source must be a file or a folder, got ''"),
    (of("https://example.com/a.csv"), "Download the file"),
    (of("link.csv"), "must be an existing file, got 'link.csv'"),
    (of("cut.csv.gz"), "must be a complete gzip file"),
    (of("wrong-sum.csv.gz"), "must be a complete gzip file"),
    (of("cut.csv.zst"), "must be a complete zstd file"),
    (of("half.parquet"), "cannot be read as parquet"),
    (of("big-endian.csv"), "Pass --encoding utf-16-be"),
    (of("little-endian.csv"), "Pass --encoding utf-16-le"),
    (of("nested.json"), "got struct<y: int64>"),
    (of("records.parquet"), "got struct<a: int64>"),
    (of("lists.parquet"), "vectors of one length"),
    (of("scalar.json"), "got 'x'. Name one of them."),
    (
        of("noheader.csv"),
        "must be one of column0, column1 in noheader.csv, got 'x'. No line was read as the header; --header-row 1",
    ),
    (of("blank.csv"), "got 'x'"),
    (of("nulls.arrow"), "at least one row with a value"),
    (of("huge.csv"), "at least one row with a value"),
    # options that contradict the table or one another
    ((*T, "1", "--date-format", "%Q"), "date_format must be one format of dates"),
    ((*T, "1", "--date-format", "%d.%m.%Y,%Y-%m-%d"), "date_format must be one format of dates"),
    ((*D, "2020-01-01", "--date-format", "%d/%m/%Y"), "fits day and v of 't.csv' in few cells or none"),
    ((*of("nulls.arrow"), "--date-format", "%d.%m.%Y"), "must be None for a table that states the types"),
    ((*T, "1", "--delimiter", ";"), "must be one of x,v,name,day"),
    ((*T, "1", "--max-distance", "nan"), "max_distance must be a number of at least 0, got nan"),
    ((*T, "1", "--max-distance", "-1"), "max_distance must be a number of at least 0, got -1"),
    ((*T, "1", "--gradient"), "--gradient must be used with --aggregate local-linear"),
    ((*T, "1", "--format", "JSON"), "--format must be one of table, json, csv"),
    ((*T, "1", "--memory", "-5"), "memory must be a positive amount"),
    ((*T, "1", "--normalizer", "softmax:nan"), "temperature of Softmax must be a positive number"),
    ((*T, "1", "--where", "x = 'one'"), "Could not convert string 'one'"),
    (("ask", "t.csv", "--key", "x", "--value", "x,v", "1"), "got 'x,v'"),
    (("ask", "--sql", "select 1 a", "--key", "a", "--value", "a", "--encoding", "latin-1", "1"), "got --sql"),
    ((*T, "\x1b[31m"), r"got '\x1b[31m'"),
    ((*T, "--queries", "text2.parquet"), "must be lines of text unless --output is given"),
    ((*T, "--queries", "text2.parquet", "--output", "a.csv"), "cannot be read as parquet"),
    ((*T, "--queries", "utf16.csv", "--output", "a.csv"), "probably utf-16. Convert the file with iconv."),
    ((*T, "--queries", "twins.csv", "--output", "a.csv"), "column names must be unique"),
    ((*T, "--queries", "words.csv", "--output", "a.csv", "--on", "x=x,x=v"), "on must name each key column once"),
    ((*T, "--queries", "words.csv", "--output", "a.csv", "--on", "="), "on must name the key columns x"),
    ((*T, "--queries", "words.csv", "--output", "t.csv"), "must be another file than the table and the queries"),
    ((*T, "--queries", "words.csv", "--output", "words.csv"), "must be another file than the table and the queries"),
    (("store", "export", "s.qkv", "out.xyz"), "must end in"),
    (("store", "copy", "s.qkv", "t.csv"), "must be new or an empty folder"),
]


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad input")
    for name, text in FILES.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    for name in ("nothing", "copies", "formats"):
        (folder / name).mkdir()
    (folder / "copies" / "a.csv").write_text("x,v\n1,2\n2,3\n")
    (folder / "copies" / "a.csv.gz").write_bytes(gzip.compress(b"x,v\n1,2\n2,3\n"))
    (folder / "formats" / "a.csv").write_text("x,v\n1,2\n2,3\n")
    (folder / "formats" / "a.jsonl").write_text('{"x": 1, "v": 2}\n')
    (folder / "link.csv").symlink_to(folder / "gone.csv")
    parquet.write_table(pa.table({"x": [[1, 2], [3]], "v": [1, 2]}), folder / "lists.parquet")
    parquet.write_table(pa.table({"x": [{"a": 1}, {"a": 2}], "v": [1, 2]}), folder / "records.parquet")
    whole = (folder / "lists.parquet").read_bytes()
    (folder / "half.parquet").write_bytes(whole[: len(whole) // 2])
    feather.write_feather(pa.table({"x": [1, 2], "v": pa.nulls(2, pa.float64())}), folder / "nulls.arrow")
    feather.write_feather(pa.table({"x": pa.array([b"a", b"b"]), "v": [1, 2]}), folder / "blob.arrow")
    twice = pa.Table.from_arrays([pa.array([1])] * 3, names=["x", "x", "v"])
    with pa.ipc.new_file(folder / "twice.arrow", twice.schema) as file:
        file.write_table(twice)
    feather.write_feather(pa.table({"at": [[1.0], [1.0, 2.0]], "v": [1, 2]}), folder / "uneven.arrow")
    feather.write_feather(pa.table({"at": [[1.0, 0.0], [1.0, 2.0]], "v": [1, 2]}), folder / "v.arrow")
    Database.create(folder / "s.qkv", folder / "t.csv", key="x", value="v")
    return folder, contents(folder)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "cache" not in str(path)}


def test_there_are_at_least_160_kinds_of_bad_input():
    assert len({(arguments, part) for arguments, part in CASES}) == len(CASES) >= 160


@pytest.mark.parametrize(
    ("arguments", "part"), CASES, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_bad_input_is_one_sentence_with_exit_code_2_and_nothing_is_written(folder, capfd, monkeypatch, arguments, part):
    place, before = folder
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "80")
    code = run(list(arguments))
    out, err = capfd.readouterr()
    assert code == 2, (out, err)
    assert out == ""
    assert err.startswith("qkv: ")
    assert err.count("\n") == 1
    assert part in err
    assert "bug" not in err
    assert err.rstrip().endswith((".", "?"))
    assert contents(place) == before
