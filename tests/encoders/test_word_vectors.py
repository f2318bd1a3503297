"""Word vectors: round trips through every format, errors that name the line or byte, and similarity."""

import csv
import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from qkv.encoders import WordVectors
from qkv.errors import DataError, KindError, OptionError, ShapeError

WORDS = ("the", "King", "queen", "São Paulo", "naïve", "王")
VECTORS = np.random.default_rng(0).normal(size=(len(WORDS), 5)).astype(np.float32)


def some(words=WORDS):
    return WordVectors(words, VECTORS[: len(words)])


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.txt", "word2vec"),
        ("a.vec", "word2vec"),
        ("a.txt", "glove"),
        ("a.txt.gz", "word2vec"),
        ("a.glove.gz", "glove"),
    ],
)
def test_a_text_file_that_was_written_is_read_as_it_was(tmp_path, name, format):
    some().save(tmp_path / name, format=format)
    read = WordVectors.load(tmp_path / name)
    assert read.words == WORDS
    np.testing.assert_array_equal(read.vectors, VECTORS)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a.bin", "a.bin.gz", "a.dat"])
def test_a_binary_file_that_was_written_is_read_as_it_was(tmp_path, name):
    words = tuple(word.replace(" ", "_") for word in WORDS)
    some(words).save(tmp_path / name, format="binary")
    read = WordVectors.load(tmp_path / name, format="binary")
    assert read.words == words
    np.testing.assert_array_equal(read.vectors, VECTORS)


def test_a_binary_file_without_new_lines_after_its_vectors_is_read(tmp_path):
    content = b"2 2\n" + b"a " + struct.pack("<2f", 1, 2) + b"b " + struct.pack("<2f", 3, 4)
    (tmp_path / "a.bin").write_bytes(content)
    read = WordVectors.load(tmp_path / "a.bin")
    assert read.words == ("a", "b")
    np.testing.assert_array_equal(read.vectors, [[1, 2], [3, 4]])


def test_a_limit_reads_the_first_words_only(tmp_path):
    for format, name in (("word2vec", "a.txt"), ("glove", "b.txt"), ("binary", "c.bin")):
        some(WORDS[:3]).save(tmp_path / name, format=format)
        assert WordVectors.load(tmp_path / name, limit=2).words == WORDS[:2]


def test_the_first_vector_of_a_repeated_word_is_kept(tmp_path):
    (tmp_path / "a.txt").write_text("a 1 2\nb 3 4\na 5 6\n")
    read = WordVectors.load(tmp_path / "a.txt")
    assert read.words == ("a", "b")
    np.testing.assert_array_equal(read.vectors, [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (
            b"a 1 2\nb 3\n",
            "a.txt",
            "the row in line 2 of a.txt must hold a word and a vector of width 2, like the other lines, got width 1",
        ),
        (b"2 2\na 1 2\nb x 4\n", "a.txt", "line 3 of a.txt must hold a word and a vector of width 2, got 'b x 4'"),
        (b"3 2\na 1 2\n", "a.txt", "a.txt must hold 3 words, as its first line states, got only 1"),
        (b"a 1 nan\n", "a.txt", "the vector of 'a' in line 1 of a.txt must be finite"),
        (b"a 1\n\xff\xfe 1\n", "a.txt", "word in line 2 of a.txt must be valid UTF-8"),
        (b"", "a.txt", "got an empty line"),
        (b"word\n", "a.txt", "line 1 of a.txt must hold a word and at least one number, got width 0"),
        (b"a b\n", "a.bin", "the first line of a.bin must be the number of words"),
        (
            b"2 2\na " + struct.pack("<2f", 1, 2),
            "a.bin",
            "a.bin must hold 2 words, as its first line states, but ends after 1 words, at byte 14",
        ),
        (b"1 2\na " + struct.pack("<f", 1), "a.bin", "ends at byte 10, within the vector of word 1"),
        (b"1 1\na " + struct.pack("<f", float("inf")), "a.bin", "the vector of 'a' at byte 6 of a.bin must be finite"),
        (b"1 1\n" + b"x" * 20_000, "a.bin", "word at byte 4 of a.bin must have at most 10,000 bytes"),
        (b"1 1\n\xff " + struct.pack("<f", 1), "a.bin", "word at byte 4 of a.bin must be valid UTF-8"),
        (gzip.compress(b"a 1 2\n" * 999, mtime=0)[:30], "a.txt.gz", "must be a complete gzip file"),
        (b"a 1 2\n", "a.txt.gz", "must be a complete gzip file"),
    ],
)
def test_errors_in_a_file_name_the_line_or_byte(tmp_path, content, name, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        WordVectors.load(tmp_path / name)
    assert said in str(error.value)


def test_a_wrong_size_in_the_first_line_allocates_no_memory(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"99999999999999 300\na " + struct.pack("<300f", *range(300)))
    with pytest.raises(DataError, match="ends after 1 words"):
        WordVectors.load(tmp_path / "a.bin")


def test_absent_files_and_unknown_formats_are_refused(tmp_path):
    with pytest.raises(DataError, match="path must be a readable file"):
        WordVectors.load(tmp_path / "none.txt")
    with pytest.raises(OptionError, match="word2vec, glove, binary"):
        some().save(tmp_path / "a.txt", format="fasttext")
    with pytest.raises(DataError, match="must not be empty or contain a newline"):
        some().save(tmp_path / "a.bin", format="binary")
    assert list(tmp_path.iterdir()) == []


def test_a_word_is_found_in_lower_case_and_with_a_capital_and_else_not():
    vectors = some()
    np.testing.assert_array_equal(vectors["THE"], vectors["the"])
    np.testing.assert_array_equal(vectors["king"], vectors["King"])
    assert "kings" not in vectors
    with pytest.raises(KeyError):
        vectors["kings"]


def test_a_text_is_the_weighted_mean_of_the_words_that_are_found():
    vectors = some()
    the, king = VECTORS[0].astype(float), VECTORS[1].astype(float)
    encoded = vectors.encode(["the king, unheard of", None, "unheard", "the"])
    np.testing.assert_allclose(encoded, [(the + king) / 2, 0 * the, 0 * the, the], atol=1e-6)
    weighted = vectors.weighted_by(["the king", "the queen", "the the"])
    rare, common = np.log(4 / 2) + 1, np.log(4 / 4) + 1
    wanted = (common * the + rare * king) / (common + rare)
    np.testing.assert_allclose(weighted.encode(["the king"])[0], wanted, atol=1e-6)
    assert vectors.coverage(["the king unheard of"]) == 0.5


def test_a_single_string_and_other_objects_are_refused_as_texts():
    with pytest.raises(KindError, match="list of texts"):
        some().encode("the king")
    with pytest.raises(KindError, match="each text must be a string"):
        some().encode([3])


def test_arguments_of_the_wrong_size_are_refused():
    with pytest.raises(KindError, match="texts must be a list of texts, got the string 'the king'"):
        some().weighted_by("the king")
    with pytest.raises(ShapeError, match=r"a vector of shape \(5,\), got shape \(3,\)"):
        some().nearest(np.ones(3))
    with pytest.raises(OptionError, match="top must be an integer of at least 0, got -1"):
        some().nearest("king", top=-1)
    with pytest.raises(DataError, match=r"weights must have shape \(6,\), one for each word, got shape \(2,\)"):
        WordVectors(WORDS, VECTORS, np.ones(2))
    assert some().nearest("king", top=0) == []


def test_words_without_weight_add_nothing():
    weights = np.zeros(len(WORDS))
    assert (WordVectors(WORDS, VECTORS, weights).encode(["the king"]) == 0).all()
    weights[1] = 2.0
    np.testing.assert_allclose(WordVectors(WORDS, VECTORS, weights).encode(["the king"])[0], VECTORS[1], atol=1e-6)


def test_words_with_vowel_signs_and_decomposed_accents_are_found():
    vectors = WordVectors(("हिन्दी", "café", "ภาษา"), np.eye(3))
    assert "cafe\u0301" in vectors
    assert "Cafe\u0301" in vectors
    np.testing.assert_array_equal(vectors.encode(["हिन्दी।", "un cafe\u0301", "ภาษา"]), np.eye(3))
    assert vectors.coverage(["हिन्दी x"]) == 0.5


def test_progress_reaches_the_end():
    seen = []
    some().encode(["the"] * 10_500, progress=lambda *said: seen.append(said))
    assert seen == [("encoding", 10_000, 10_500), ("encoding", 10_500, 10_500)]


@pytest.fixture(scope="module", name="published")
def _published():
    if "QKV_DATA" not in os.environ:
        pytest.skip("QKV_DATA does not name the folder of public data")
    folder = Path(os.environ["QKV_DATA"]) / "vectors"
    with gzip.open(folder / "googlenews8k_300d_f16.npy.gz") as stream:
        vectors = np.load(stream)
    words = (folder / "googlenews8k_words.txt").read_text(encoding="utf-8").split()
    return WordVectors(tuple(words), vectors.astype(np.float32)), folder


def test_words_that_people_find_similar_have_a_large_cosine(published):
    from scipy.stats import spearmanr

    vectors, folder = published
    lines = (folder / "EN-WS-353-ALL.txt").read_text(encoding="utf-8").splitlines()
    pairs = [row[:3] for row in csv.reader(lines, delimiter="\t") if not row[0].startswith("#")]
    pairs = [(a, b, float(mean)) for a, b, mean in pairs if a in vectors and b in vectors]
    assert len(pairs) > 250
    found = spearmanr([mean for *_, mean in pairs], [vectors.similarity(a, b) for a, b, _ in pairs]).statistic
    assert found > 0.65


def test_a_word2vec_file_read_as_glove_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    WordVectors(("a", "b"), np.ones((2, 3))).save(path)
    with pytest.raises(DataError, match="Pass format='word2vec'"):
        WordVectors.load(path, format="glove")
    path.write_text("2 3\n4 5\n")  # two words of width 1
    assert WordVectors.load(path, format="glove").words == ("2", "4")
    path.write_text("2 3\n4 x\n")
    with pytest.raises(DataError, match=r"in line 2 of a\.txt"):
        WordVectors.load(path, format="glove")


def test_lists_of_numbers_are_vectors_and_others_are_refused():
    assert WordVectors(["a", "b"], [[1, 0], [0, 1]]).nearest("a", top=1) == [("b", 0.0)]
    for wrong in ([["x"], ["y"]], [[1.0], [1.0, 2.0]], None):
        with pytest.raises(KindError, match="vectors must be an array of numbers"):
            WordVectors(("a", "b"), wrong)
