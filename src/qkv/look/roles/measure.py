"""Sentences through a model, and what its heads do in them on the whole."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qkv.errors import DataError
from qkv.look.roles.annotations import Sentence
from qkv.look.roles.role_table import Row, Table
from qkv.look.roles.scoring import Answer, EncodedSentence, answer, position_scores
from qkv.look.text_model import TextModel

__all__ = ["measure"]

LENGTHS = (16, 32, 64, 128, 256, 512)


def measure(
    reader: TextModel,
    sentences: Sequence[Sentence],
    *,
    lengths: Sequence[int] = LENGTHS,
    progress: Callable[[str, int, int], None] | None = None,
) -> Table:
    """Score every head for every role over many sentences.

    Roles of position (`previous`, `next`, `self`, `first`, `separator`, `duplicate`, `induction`): the mean
    weight on what the role asks for, beside what uniform weights put there. `broad`: the entropy of a row,
    over that of uniform weights. Roles of the annotation (`coreference`, `nsubj` …): how often the right
    candidate gets the most weight, beside the nearest candidate and the best fixed offset.

    Args:
        reader: a model, see `qkv.look.text_model.load`.
        sentences: see `qkv.look.roles.annotations`.
        lengths: sentences are also grouped by their tokens, up to each of these.
        progress: called after each sentence.

    Returns:
        A `Table`: a row for each role, head and group, with 95 % intervals.

    Raises:
        DataError: there is no sentence.

    Source:
        Clark, Khandelwal, Levy and Manning 2019, What does BERT look at?; induction: Olsson et al. 2022.
    """
    if not sentences:
        raise DataError("there is no sentence. Give many: a head's role is a matter of statistics.")
    masses: dict[tuple[str, str], list[tuple[np.ndarray, float]]] = defaultdict(list)
    answers: dict[tuple[str, str], list[Answer]] = defaultdict(list)
    layers: list[int] = []
    for number, sentence in enumerate(sentences):
        encoded, maps = _read(reader, sentence.text)
        layers = [len(each) for each in maps]
        weights = np.concatenate(maps)
        length = next((f"≤ {most} tokens" for most in lengths if len(encoded.ids) <= most), "longer")
        for role, share in position_scores(weights, encoded).items():
            masses[role, "all"].append(share)
            masses[role, length].append(share)
        for question in sentence.questions:
            given = answer(weights, encoded, question)
            if given is None:
                continue
            for group in {"all", length, question.condition or "all"}:
                answers[question.role, group].append(given)
        if progress is not None:
            progress("reading sentences", number + 1, len(sentences))
    heads = [(layer, head) for layer, count in enumerate(layers) for head in range(count)]
    rows = [row for key, found in masses.items() for row in _mass_rows(*key, heads, found)]
    rows += [row for key, found in answers.items() for row in _answer_rows(*key, heads, found)]
    return Table(reader.name, len(sentences), tuple(rows))


def _read(reader: TextModel, text: str) -> tuple[EncodedSentence, list[np.ndarray]]:
    """A sentence, cut to what the model takes, and the weights of each layer `(heads, n, n)`."""
    import torch

    from qkv.interop import record
    from qkv.readouts import Dense

    encoded = reader.tokenizer(
        text,
        return_tensors="pt",
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        truncation=reader.longest is not None,
        max_length=reader.longest,
    )
    letters = tuple((int(a), int(b)) for a, b in encoded.pop("offset_mapping")[0])
    special = encoded.pop("special_tokens_mask")[0].bool().numpy()
    with torch.no_grad(), record(reader.model, [Dense()]) as seen:
        reader.model(**encoded)
    maps = [calls[-1].readouts[0][0].float().numpy() for calls in seen.layers.values() if calls[-1].kind == "self"]
    return EncodedSentence(encoded["input_ids"][0].numpy(), special, letters), maps


def _mass_rows(role: str, group: str, heads: list[tuple[int, int]], found: list[Any]) -> list[Row]:
    values = np.stack([share for share, _ in found])
    baseline = float(np.mean([uniform for _, uniform in found]))
    count = len(values)
    mean = values.mean(axis=0)
    error = values.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.full(len(mean), np.inf)
    reach = _student(count) * error
    return [
        Row(
            role,
            group,
            layer,
            head,
            float(m),
            float(max(0.0, m - r)),
            float(min(1.0, m + r)),
            count,
            baseline,
        )
        for (layer, head), m, r in zip(heads, mean, reach, strict=True)
    ]


def _answer_rows(role: str, group: str, heads: list[tuple[int, int]], found: list[Answer]) -> list[Row]:
    from scipy.stats import binomtest

    right = np.stack([each.heads for each in found]).sum(axis=0)
    count = len(found)
    nearest = float(np.mean([each.nearest for each in found]))
    # The best offset of all: found from the answers themselves, so that heads are not favoured.
    common = [offset for offset, _ in Counter(each.offset for each in found).most_common(8)]
    fixed = max(float(np.mean([each.chosen_by_offset(offset) for each in found])) for offset in common)
    rows = []
    for (layer, head), hits in zip(heads, right, strict=True):
        interval = binomtest(int(hits), count).proportion_ci(0.95, method="wilson")
        score = float(hits / count)
        rows.append(
            Row(
                role,
                group,
                layer,
                head,
                score,
                interval.low,
                interval.high,
                count,
                max(nearest, fixed),
                nearest,
                fixed,
            )
        )
    return rows


def _student(count: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.975, max(1, count - 1)))
