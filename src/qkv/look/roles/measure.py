"""Measure the roles of the attention heads of a model over many sentences."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.files import write_atomic
from qkv.core.formatting import counted
from qkv.core.progress import Progress, report
from qkv.core.typing import Float
from qkv.errors import DataError
from qkv.look.figure import add_color_bar, color_figure, new_figure
from qkv.look.roles.annotations import AnnotatedSentence, Question, Span
from qkv.look.roles.scoring import EncodedSentence, QuestionResult, position_scores, score_question
from qkv.look.text_model import TextModel
from qkv.look.views import HeadRole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from qkv.interop.huggingface.attention_record import AttentionRecord


_MIN_COUNT = 30
"""Minimum number of sentences or questions for a role."""
_MARGIN = 0.1


@dataclass(frozen=True)
class HeadScore:
    """The score of one attention head for one role, measured over a group of sentences.

    Attributes:
        role: name of the role.
        group: name of the group of sentences.
        layer, head: indices of the head.
        score: mean score.
        low, high: bounds of the 95 % confidence interval of the mean.
        count: number of sentences or questions.
        baseline: score of the best rule that needs no model.
        nearest, fixed: accuracy of the nearest candidate and of the best fixed offset; None for positional roles,
            whose baseline is uniform weights.
        neither: share of the questions in which another word than the candidates has a larger weight than each of
            them; None for roles without named candidates. The score still counts which candidate has more weight.

    Example:
        >>> from qkv.look.roles import HeadScore
        >>> row = HeadScore("previous", "all", 2, 3, score=0.61, low=0.58, high=0.64, count=200, baseline=0.1)
        >>> row.low > row.baseline  # better than uniform weights
        True
    """

    role: str
    group: str
    layer: int
    head: int
    score: float
    low: float
    high: float
    count: int
    baseline: float
    nearest: float | None = None
    fixed: float | None = None
    neither: float | None = None


@dataclass(frozen=True)
class RoleTable:
    """A table of the scores of all attention heads of a model for each role.

    Attributes:
        model: name of the model.
        sentences: number of sentences.
        rows: one score for each role, group and head.

    Example:
        >>> from qkv.look.roles import HeadScore, RoleTable
        >>> first = HeadScore("previous", "all", 0, 0, score=0.2, low=0.1, high=0.3, count=200, baseline=0.1)
        >>> second = HeadScore("previous", "all", 0, 1, score=0.6, low=0.5, high=0.7, count=200, baseline=0.1)
        >>> [row.head for row in RoleTable("a small model", 200, (first, second)).ranked("previous")]
        [1, 0]
    """

    model: str
    sentences: int
    rows: tuple[HeadScore, ...]

    def roles(self) -> list[str]:
        """Return the names of the roles, in the order in which they first occur in `rows`."""
        return list(dict.fromkeys(row.role for row in self.rows))

    def ranked(self, role: str, group: str = "all") -> list[HeadScore]:
        """Return the scores of all heads for a role over a group of sentences, in decreasing order of score."""
        scores = [row for row in self.rows if row.role == role and row.group == group]
        return sorted(scores, key=lambda row: -row.score)

    def groups(self, role: str) -> list[str]:
        """Return the names of the sentence groups that have scores for a role."""
        return list(dict.fromkeys(row.group for row in self.rows if row.role == role))

    def labels(self) -> dict[tuple[int, int], tuple[HeadRole, ...]]:
        """Return a dictionary from (layer, head) to the roles of the head. Heads without a role are left out.

        A head has a role if the lower end of its interval exceeds the baseline by at least 0.1, its score is at
        least 0.5, and at least 30 sentences or questions were counted. For the role `broad`, the lower end must be at
        least 0.9 instead.
        """
        labels: dict[tuple[int, int], tuple[HeadRole, ...]] = {}
        for row in self.rows:
            clear = row.low >= (0.9 if row.role == "broad" else row.baseline + _MARGIN)
            if row.group == "all" and row.count >= _MIN_COUNT and clear and row.score >= 0.5:
                role = HeadRole(row.role, round(row.score, 3), round(row.baseline, 3), row.count)
                labels[row.layer, row.head] = (*labels.get((row.layer, row.head), ()), role)
        return labels

    def to_text(self, best: int = 3, groups: bool = False) -> str:
        """Return a text table with the scores of the best heads of each role.

        Args:
            best: number of heads per role.
            groups: also include the scores of each group of sentences.
        """
        lines: list[tuple[object, ...]] = [
            ("role", "sentences", "head", "score", "interval", "baseline", "neither", "count")
        ]
        for role in self.roles():
            for group in self.groups(role) if groups else ["all"]:
                for row in self.ranked(role, group)[:best]:
                    numbers = f"{row.score:.3f}", f"{row.low:.3f}–{row.high:.3f}", f"{row.baseline:.3f}"
                    neither = "" if row.neither is None else f"{row.neither:.3f}"
                    lines.append((role, group, f"{row.layer}.{row.head}", *numbers, neither, row.count))
        title = f"{self.model}, {counted(self.sentences, 'sentence', 'sentences')}; scores with 95% intervals"
        return "\n".join([title, "", *("{:<13}{:<14}{:<7}{:<7}{:<13}{:<10}{:<9}{}".format(*line) for line in lines)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table to a JSON file atomically.

        Raises:
            DataError: the file cannot be written.
        """
        body = {"model": self.model, "sentences": self.sentences, "rows": [asdict(row) for row in self.rows]}
        write_atomic(Path(path), json.dumps(body, indent=0).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RoleTable:
        """Load a table from a file written by `save`.

        Raises:
            DataError: the file does not exist, or does not hold a table of roles.
        """
        try:
            body = json.loads(Path(path).read_bytes())
            return cls(body["model"], body["sentences"], tuple(HeadScore(**row) for row in body["rows"]))
        except OSError as error:
            raise DataError(
                f"the file must be readable, got {str(path)!r}, but reading failed: {error.strerror}. Check the path."
            ) from None
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"the file must hold a table of roles, got {str(path)!r}. Write one with RoleTable.save."
            ) from None

    def plot(self, roles: Iterable[str] | None = None) -> Figure:
        """Plot the scores of each role as a heatmap, with layers as rows and heads as columns.

        Args:
            roles: names of roles; None: all.

        Raises:
            MissingPackageError: matplotlib is not installed.
        """
        chosen = list(roles or self.roles())
        across = min(4, len(chosen))
        down = -(-len(chosen) // across)
        figure = new_figure((2.6 * across + 0.6, 2.2 * down + 0.4))
        grid = figure.subplots(down, across, squeeze=False)
        for axes in grid.flat[len(chosen) :]:
            axes.set_axis_off()
        for axes, role in zip(grid.flat, chosen, strict=False):
            rows = self.ranked(role)
            scores = np.full((1 + max(row.layer for row in rows), 1 + max(row.head for row in rows)), np.nan)
            for row in rows:
                scores[row.layer, row.head] = row.score
            image = axes.imshow(scores, cmap="Reds", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
            axes.set_title(f"{role}\nbaseline {rows[0].baseline:.2f}", fontsize=9)
            axes.set_xlabel("head", fontsize=8)
            axes.set_ylabel("layer", fontsize=8)
            axes.tick_params(labelsize=7)
            for axis in (axes.xaxis, axes.yaxis):
                axis.get_major_locator().set_params(integer=True)
        add_color_bar(figure, image, grid, shrink=0.7, label="score")
        color_figure(figure)
        return figure


LENGTHS = (16, 32, 64, 128, 256, 512)
_MAX_BATCH = 32
_MAX_CELLS = 2**18
"""Maximum number of pairs of tokens per batch; the weights of 72 heads then take 75 MB."""


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
        progress: called after each sentence; sentences are run in batches, from the shortest to the longest.

    Returns:
        A table with a row for each role, head and group, and with 95 % confidence intervals.

    Raises:
        DataError: there are no sentences.

    Source:
        Clark, Khandelwal, Levy and Manning 2019, What does BERT look at?; induction: Olsson et al. 2022.

    Example:
        >>> from qkv.look.roles import measure_roles, plain_sentences
        >>> from qkv.look.text_model import load_text_model
        >>> texts = plain_sentences(["When he saw his owner, the dog was happy."])
        >>> table = measure_roles(load_text_model(), texts)  # doctest: +SKIP
        >>> table.ranked("previous")[0].score > 0.9  # doctest: +SKIP
        True
    """
    if not sentences:
        raise DataError(
            "sentences must not be empty. Pass at least 30 sentences; RoleTable.labels names no role from fewer."
        )
    masses: dict[tuple[str, str], list[_Mass]] = defaultdict(list)
    results: dict[tuple[str, str], list[QuestionResult]] = defaultdict(list)
    layers: list[int] = []
    measured: dict[int, tuple[int, dict[str, _Mass], list[tuple[Question, QuestionResult]]]] = {}
    report(progress, "reading sentences", 0, len(sentences))
    for number, encoded, maps in _run_model(text_model, [sentence.text for sentence in sentences]):
        layers = [len(each) for each in maps]
        weights = np.concatenate(maps)
        answers = [(each, score_question(weights, encoded, each)) for each in sentences[number].questions]
        given = [(question, result) for question, result in answers if result is not None]
        measured[number] = len(encoded.ids), position_scores(weights, encoded), given
        report(progress, "reading sentences", len(measured), len(sentences))
    # In the order of the sentences, so that the table does not depend on the batches.
    for number in range(len(sentences)):
        tokens, positions, given = measured[number]
        length = next((f"≤ {limit} tokens" for limit in lengths if tokens <= limit), "longer")
        for role, mass in positions.items():
            masses[role, "all"].append(mass)
            masses[role, length].append(mass)
        for question, result in given:
            for group in {"all", length, question.condition or "all"}:
                results[question.role, group].append(result)
    heads = [(layer, head) for layer, count in enumerate(layers) for head in range(count)]
    rows = [row for key, measured in masses.items() for row in _position_rows(*key, heads, measured)]
    rows += [row for key, measured in results.items() for row in _question_rows(*key, heads, measured)]
    return RoleTable(text_model.name, len(sentences), tuple(rows))


_Mass = tuple[Float[np.ndarray, " heads"], float]
"""The scores of all heads, and the score of uniform weights."""


def _run_model(
    text_model: TextModel, texts: Sequence[str]
) -> Iterator[tuple[int, EncodedSentence, list[Float[np.ndarray, "heads n n"]]]]:
    """Yield the number of each text, its tokens, and the self-attention weights of each layer, shortest text first.

    Texts are truncated to the context length of the model, and shorter texts of a batch are padded on the right.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from qkv.interop import record
    from qkv.readouts import Dense

    rows, spans = zip(*(_tokenize(text_model, text) for text in texts), strict=True)
    order = sorted(range(len(texts)), key=lambda number: len(rows[number]["input_ids"]))
    padding = getattr(text_model.tokenizer, "pad_token_id", None)
    for numbers in _batches([len(rows[number]["input_ids"]) for number in order], padding is not None):
        batch = [order[at] for at in numbers]
        given = [rows[number] for number in batch]
        inputs = {
            name: pad_sequence([torch.tensor(row[name]) for row in given], True, (padding or 0) * (name == "input_ids"))
            for name in given[0]
            if name != "special_tokens_mask"
        }
        maps: list[Float[np.ndarray, "batch heads n n"]] = []

        def consume(name: str, call: AttentionRecord, maps: list[Float[np.ndarray, "batch heads n n"]] = maps) -> None:
            if call.kind == "self":
                maps.append(call.readouts[0].float().numpy())

        with torch.no_grad(), record(text_model.model, [Dense()], consume=consume):
            text_model.model(**inputs)
        for element, (number, row) in enumerate(zip(batch, given, strict=True)):
            n = len(row["input_ids"])
            special = np.array(row["special_tokens_mask"], bool)
            encoded = EncodedSentence(np.array(row["input_ids"]), special, spans[number])
            yield number, encoded, [weights[element, :, :n, :n] for weights in maps]


def _tokenize(text_model: TextModel, text: str) -> tuple[dict[str, list[int]], tuple[Span, ...]]:
    """Return the inputs of the model and the mask of special tokens as lists, and the span of each token."""
    wanted = {f"return_{name}": True for name in ("offsets_mapping", "special_tokens_mask", "attention_mask")}
    most = text_model.max_tokens
    encoded = text_model.tokenizer(text, **wanted, truncation=most is not None, max_length=most)
    spans = tuple((int(start), int(end)) for start, end in encoded["offset_mapping"])
    return {name: list(encoded[name]) for name in encoded if name != "offset_mapping"}, spans


def _batches(lengths: Sequence[int], padded: bool) -> Iterator[range]:
    """Yield ranges of texts, sorted by length, that are run together; without padding, all have the same length."""
    begin = 0
    for end in range(1, len(lengths) + 1):
        full = end == len(lengths) or (end - begin + 1) * lengths[end] ** 2 > _MAX_CELLS or end - begin == _MAX_BATCH
        if full or (not padded and lengths[end] != lengths[begin]):
            yield range(begin, end)
            begin = end


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
    elsewhere = [each.neither for each in measured if each.neither is not None]
    neither = np.stack(elsewhere).mean(axis=0).tolist() if elsewhere else [None] * len(heads)
    rows = []
    for (layer, head), hits, other in zip(heads, right, neither, strict=True):
        interval = binomtest(int(hits), count).proportion_ci(0.95, method="wilson")
        score, low, high = float(hits / count), interval.low, interval.high
        rows.append(HeadScore(role, group, layer, head, score, low, high, count, baseline, nearest, fixed, other))
    return rows
