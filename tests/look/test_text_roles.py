"""Roles of heads in one text, and the head, query and key that a page shows first."""

import time

import numpy as np
import pytest

from qkv.look.axis import Axis
from qkv.look.roles import HeadScore, RoleTable
from qkv.look.roles.scoring import EncodedSentence, position_scores
from qkv.look.text_roles import content_words, mark_roles, text_roles
from qkv.look.views import HeadRole, Opening, View

SENTENCE = Axis(
    ("[CLS]", "the", "dog", "saw", "that", "she", "lik", "##es", "him", "[SEP]"),
    ("[CLS]", "the", "dog", "saw", "that", "she", "lik", "es", "him", "[SEP]"),
    (-1, 0, 1, 2, 3, 4, 5, 5, 6, -1),
    (True, *[False] * 8, True),
)
N = len(SENTENCE.tokens)


def on(targets):
    """A map that gives each query the whole weight of one key."""
    weights = np.zeros((N, N))
    weights[range(N), targets] = 1
    return weights


def view_of(*maps):
    return View.from_weights(np.stack(maps)[None], SENTENCE)


def names(view):
    return {head: {role.role for role in roles} for (_, head), roles in text_roles(view).items()}


UNIFORM = np.full((N, N), 1 / N)
PREVIOUS = on([0, *range(N - 1)])
NEXT = on([*range(1, N), N - 1])
FIRST = on([0] * N)
LAST = on([N - 1] * N)


def test_known_maps_have_their_roles():
    pronoun = UNIFORM.copy()
    pronoun[[5, 8]] = on([2] * N)[[5, 8]]
    found = names(view_of(PREVIOUS, NEXT, np.eye(N), FIRST, LAST, UNIFORM, pronoun))
    assert found == {
        0: {"previous"}, 1: {"next"}, 2: {"self"}, 3: {"first"}, 4: {"separator"}, 5: {"broad"}, 6: {"pronoun"},
    }  # fmt: skip


def test_scores_equal_those_over_sentences():
    rng = np.random.default_rng(0)
    for causal in (False, True):
        weights = rng.dirichlet(np.full(N, 0.05), (6, N))
        if causal:
            weights = np.tril(weights) + 1e-6 * np.tril(np.ones((N, N)))
            weights /= weights.sum(axis=-1, keepdims=True)
        ids = np.unique(SENTENCE.pieces, return_inverse=True)[1]
        expected = position_scores(weights, EncodedSentence(ids, np.array(SENTENCE.special), ()))
        for (_, head), roles in text_roles(View.from_weights(weights[None], SENTENCE)).items():
            for role in roles:
                if role.role in ("self", "first", "separator", "duplicate", "induction", "broad"):
                    scores, baseline = expected[role.role]
                    assert role.score == pytest.approx(scores[head], abs=2e-3)
                    assert role.baseline == pytest.approx(baseline, abs=6e-4)


def test_the_best_head_of_a_role_is_named_even_if_its_score_is_small():
    weak = 0.3 * PREVIOUS + 0.7 * UNIFORM
    assert names(view_of(UNIFORM, 0.25 * PREVIOUS + 0.75 * UNIFORM, weak))[2] >= {"previous"}
    assert "previous" not in names(view_of(UNIFORM, 0.95 * UNIFORM + 0.05 * PREVIOUS)).get(1, ())


def test_maps_without_roles():
    assert text_roles(View.from_weights(PREVIOUS[None, None], SENTENCE, SENTENCE)) == {}  # cross-attention
    assert text_roles(View.from_weights(PREVIOUS[None, None], Axis.from_count(N))) == {}
    assert text_roles(view_of(-PREVIOUS)) == {}
    assert text_roles(View.from_weights(np.ones((1, 1, 1, 1)), ["a"])) == {}
    assert text_roles(View.from_weights(PREVIOUS[None, None], Axis.from_patches(2, N // 2, N % 2))) == {}
    broken = PREVIOUS.copy()
    broken[1, 1] = np.nan
    assert text_roles(view_of(broken)) == {}


def test_a_page_opens_on_the_clearest_role_and_the_last_content_word():
    # The word "likes" has two tokens; its row is that of the last one.
    assert mark_roles(view_of(FIRST, 0.8 * PREVIOUS + 0.2 * UNIFORM, NEXT)).opening == Opening(0, 2, 7, 8)
    # Attention to the first token says little about the words.
    assert mark_roles(view_of(FIRST, 0.8 * PREVIOUS + 0.2 * UNIFORM)).opening == Opening(0, 1, 7, 6)
    assert mark_roles(view_of(UNIFORM, FIRST)).opening == Opening(0, 1, 7, 0)
    pronoun = UNIFORM.copy()
    pronoun[[5, 8]] = on([2] * N)[[5, 8]]
    assert mark_roles(view_of(UNIFORM, pronoun)).opening == Opening(0, 1, 8, 2)


def test_a_page_without_roles_opens_on_the_sharpest_head():
    keys = ["le", "chat", "dort"]
    sharp = np.zeros((N, 3))
    sharp[:, 1] = 1
    weights = np.stack([np.full((N, 3), 1 / 3), sharp])[None]
    assert mark_roles(View.from_weights(weights, SENTENCE, keys)).opening == Opening(0, 1, 7, 1)
    assert mark_roles(View.from_weights(weights, Axis.from_count(N), keys)).opening is None
    one = mark_roles(View.from_weights(np.ones((1, 1, 1, 1)), ["a"]))
    assert (one.opening, one.roles) == (Opening(), {})


def test_measured_roles_replace_those_of_the_text():
    rows = [HeadScore("coreference", "all", 0, head, 0.8, 0.75, 0.85, 900, 0.5) for head in (1,)]
    view = mark_roles(view_of(PREVIOUS, UNIFORM), RoleTable("m", 900, tuple(rows)).labels())
    assert view.roles == {(0, 1): (HeadRole("coreference", 0.8, 0.5, 900),)}
    assert view.opening is not None
    assert (view.opening.head, view.opening.query) == (1, 8)


def test_content_words_of_any_script():
    assert content_words(SENTENCE) == [[2], [3], [6, 7]]
    assert content_words(Axis.from_words(["Der", "Größe", "—", "42", "дом"])) == [[0], [1], [4]]
    assert content_words(Axis.from_words([""])) == []


def test_roles_of_a_long_text_take_less_than_a_second():
    rng = np.random.default_rng(0)
    weights = rng.random((12, 512, 512), np.float32)
    view = View.from_weights((weights / weights.sum(axis=-1, keepdims=True))[None], [f"w{i}" for i in range(512)])
    start = time.process_time()
    mark_roles(view)
    assert time.process_time() - start < 1


def test_a_head_whose_tokens_all_attend_to_one_word_is_no_pronoun_head():
    pronoun = UNIFORM.copy()
    pronoun[[5, 8]] = 0.4 * on([2] * N)[[5, 8]] + 0.6 * UNIFORM[[5, 8]]
    found = text_roles(view_of(on([2] * N), pronoun))
    assert "pronoun" not in {role.role for role in found.get((0, 0), ())}
    (role,) = (role for role in found[0, 1] if role.role == "pronoun")
    assert (role.score, role.baseline) == pytest.approx((0.46, 0.1), abs=1e-3)
