"""Measure the roles of the attention heads of a model over many sentences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from qkv.core.progress import Progress, track
from qkv.core.typing import Float
from qkv.errors import DataError
from qkv.look.roles.annotations import AnnotatedSentence
from qkv.look.roles.role_table import HeadScore, RoleTable
from qkv.look.roles.scoring import EncodedSentence, QuestionResult, position_scores, score_question
from qkv.look.text_model import DenseCall, TextModel, run_dense

__all__ = ["measure_roles"]

LENGTHS = (16, 32, 64, 128, 256, 512)


def measure_roles(
    text_model: TextModel,
    sentences: Sequence[AnnotatedSentence],
    *,
    lengths: Sequence[int] = LENGTHS,
    progress: Progress | None = None,
) -> RoleTable:
    """Score every attention head of a model for every role over many sentences.

    The score of a positional role (`previous`, `next`, `self`, `first`, `separator`, `duplicate`, `induction`) is
    the mean weight of the role's target keys; its baseline is the score of uniform weights. The score of `broad` is
    the entropy of a row relative to uniform weights. The score of an annotated role (`coreference`, `nsubj` …) is
    the share of questions in which the right candidate gets the largest weight; its baseline is the better of the
    nearest candidate and the best fixed offset.

    Args:
        text_model: from `qkv.look.text_model.load_text_model`.
        sentences: sentences read by a function of `qkv.look.roles`.
        lengths: maximum numbers of tokens of the groups by length, for which scores are also reported.
        progress: called after each sentence.

    Returns:
        A table with a row for each role, head and group, and with 95 % confidence intervals.

    Raises:
        DataError: there are no sentences.

    Source:
        Clark, Khandelwal, Levy and Manning 2019, What does BERT look at?; induction: Olsson et al. 2022.
    """
    if not sentences:
        raise DataError(
            "sentences must not be empty. Pass at least 30 sentences; RoleTable.labels names no role from fewer."
        )
    masses: dict[tuple[str, str], list[_Mass]] = defaultdict(list)
    results: dict[tuple[str, str], list[QuestionResult]] = defaultdict(list)
    layers: list[int] = []
    for sentence in track(sentences, "reading sentences", progress):
        encoded, maps = _run_model(text_model, sentence.text)
        layers = [len(each) for each in maps]
        weights = np.concatenate(maps)
        length = next((f"≤ {limit} tokens" for limit in lengths if len(encoded.ids) <= limit), "longer")
        for role, mass in position_scores(weights, encoded).items():
            masses[role, "all"].append(mass)
            masses[role, length].append(mass)
        for question in sentence.questions:
            result = score_question(weights, encoded, question)
            if result is not None:
                for group in {"all", length, question.condition or "all"}:
                    results[question.role, group].append(result)
    heads = [(layer, head) for layer, count in enumerate(layers) for head in range(count)]
    rows = [row for key, measured in masses.items() for row in _position_rows(*key, heads, measured)]
    rows += [row for key, measured in results.items() for row in _question_rows(*key, heads, measured)]
    return RoleTable(text_model.name, len(sentences), tuple(rows))


_Mass = tuple[Float[np.ndarray, " heads"], float]
"""The scores of all heads, and the score of uniform weights."""


def _run_model(text_model: TextModel, text: str) -> tuple[EncodedSentence, list[Float[np.ndarray, "heads n n"]]]:
    """Run a model on a text, and return the tokens and the self-attention weights of each layer.

    The text is truncated to the context length of the model.
    """
    encoded = text_model.tokenizer(
        text,
        return_tensors="pt",
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        truncation=text_model.max_tokens is not None,
        max_length=text_model.max_tokens,
    )
    spans = tuple((int(a), int(b)) for a, b in encoded.pop("offset_mapping")[0])
    special = encoded.pop("special_tokens_mask")[0].bool().numpy()
    calls: list[DenseCall] = []
    run_dense(text_model.model, encoded, calls.append)
    maps = [call.weights for call in calls if call.kind == "self"]
    return EncodedSentence(encoded["input_ids"][0].numpy(), special, spans), maps


def _position_rows(role: str, group: str, heads: list[tuple[int, int]], measured: list[_Mass]) -> list[HeadScore]:
    from scipy.stats import t

    values = np.stack([mass for mass, _ in measured])
    baseline = float(np.mean([uniform for _, uniform in measured]))
    count = len(values)
    mean = values.mean(axis=0)
    error = values.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.full(len(mean), np.inf)
    margin = t.ppf(0.975, max(1, count - 1)) * error
    return [
        HeadScore(role, group, layer, head, float(m), float(max(0.0, m - r)), float(min(1.0, m + r)), count, baseline)
        for (layer, head), m, r in zip(heads, mean, margin, strict=True)
    ]


def _question_rows(
    role: str, group: str, heads: list[tuple[int, int]], measured: list[QuestionResult]
) -> list[HeadScore]:
    from scipy.stats import binomtest

    right = np.stack([each.heads for each in measured]).sum(axis=0)
    count = len(measured)
    nearest = float(np.mean([each.nearest for each in measured]))
    # The offset is chosen on the questions themselves, which favours this baseline and not the heads.
    common = [offset for offset, _ in Counter(each.offset for each in measured).most_common(8)]
    fixed = max(float(np.mean([each.chosen_by_offset(offset) for each in measured])) for offset in common)
    baseline = max(nearest, fixed)
    rows = []
    for (layer, head), hits in zip(heads, right, strict=True):
        interval = binomtest(int(hits), count).proportion_ci(0.95, method="wilson")
        score, low, high = float(hits / count), interval.low, interval.high
        rows.append(HeadScore(role, group, layer, head, score, low, high, count, baseline, nearest, fixed))
    return rows
