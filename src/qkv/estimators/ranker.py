"""AttentionRanker: W_Q and W_K, learned so that attention falls on what was relevant.

    a(q, d) = softmax_d( (W_Q q · W_K d) / T )                      over the whole collection
    loss    = mean_q mean_{d relevant to q} −log a(q, d)  +  λ/n (‖W_Q − 1‖² + ‖W_K − 1‖²)

n is the number of relevant pairs: the more is known, the further the maps may go from the start,
W_Q = W_K = 1, which leaves the order of inner products as it is. The loss is lowered by L-BFGS over all
queries; the softmax over the collection is taken tile by tile, so that memory is linear in queries and
documents.

Source: Bai et al. (2009), Supervised semantic indexing, section 3: a map for queries, one for documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from qkv.core.progress import Progress
from qkv.errors import DataError, MissingPackageError, OptionError, ShapeError

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise MissingPackageError(
        'a ranker needs scikit-learn, which is not installed. Run: pip install "qkv[learn]"'
    ) from None

__all__ = ["AttentionRanker", "Ranking"]

_LOSSES = ("each", "mass")


class Ranking(NamedTuple):
    """What a query attends to, heaviest first.

    documents: `(queries, top)` rows of what was fitted; −1 where there are fewer.
    weights: `(queries, top)`, their attention.
    """

    documents: np.ndarray
    weights: np.ndarray


class AttentionRanker(BaseEstimator):  # type: ignore[misc]
    """Ranks documents by attention, with maps that are learned from queries and relevant documents.

    Args:
        temperature: T of the softmax.
        penalty: λ, what it costs to leave the start, in relevant pairs.
        loss: `"each"`, −log of the attention on each relevant document, averaged; or `"mass"`, −log of what
            falls on all of them together, which is content with one that is found.
        steps: of L-BFGS, at most. 0: the untrained start.
        memory: for the softmax over the collection, as in `qkv.attend`.

    Attributes:
        query_weight_, key_weight_: W_Q and W_K, `(width, width)`, laid out as `torch.nn.Linear` has them.
        losses_: after each look at the queries.

    Raises:
        MissingPackageError: PyTorch is not installed.
        OptionError, ShapeError, DataError: when fitted, an option or the data cannot be used.

    Example:
        >>> angles = np.arange(12) * np.pi / 6
        >>> points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> turned = np.roll(points, 3, axis=0)          # relevant is what stands a quarter turn behind
        >>> ranker = AttentionRanker(temperature=0.5, penalty=0.1)
        >>> ranker = ranker.fit(turned, points, relevant=[[i] for i in range(12)])
        >>> ranker.rank(turned, top=1).documents[:, 0].tolist() == list(range(12))
        True
    """

    def __init__(
        self,
        *,
        temperature: float = 0.05,
        penalty: float = 500.0,
        loss: str = "each",
        steps: int = 20,
        memory: int | str = "512 MiB",
    ) -> None:
        self.temperature = temperature
        self.penalty = penalty
        self.loss = loss
        self.steps = steps
        self.memory = memory

    def fit(
        self,
        queries: Any,
        documents: Any,
        relevant: Sequence[Iterable[int]],
        *,
        owners: Any = None,
        progress: Progress | None = None,
    ) -> Self:
        """Learn both maps.

        Args:
            queries: `(queries, width)`.
            documents: `(documents, width)`, the whole collection.
            relevant: for each query, the rows of its relevant documents; a query without any teaches nothing.
            owners: where rows are passages, the number of the document each belongs to; `relevant` then
                holds these numbers, and attention on a document is that on its passages together.
            progress: called after each look at the queries.
        """
        self._check()
        queries, documents = _rows(queries, "queries"), _rows(documents, "documents")
        if queries.shape[1] != documents.shape[1]:
            raise ShapeError(
                f"queries have width {queries.shape[1]}, documents {documents.shape[1]}. The start compares "
                "them as they are: encode both in the same way."
            )
        owners = np.arange(len(documents)) if owners is None else np.asarray(owners)
        if owners.shape != (len(documents),):
            raise ShapeError(f"owners have shape {owners.shape}, and one for each of {len(documents)} is wanted.")
        wanted = [sorted({int(number) for number in numbers}) for numbers in relevant]
        pairs = _pairs(wanted, len(queries), owners, self.loss == "mass")
        penalty = self.penalty / sum(map(len, wanted))
        asked = np.unique(pairs.query)
        pairs = pairs._replace(query=np.searchsorted(asked, pairs.query))
        self._documents = documents
        self.query_weight_, self.key_weight_, self.losses_ = self._learn(
            queries[asked], documents, pairs, penalty, progress
        )
        return self

    def rank(self, queries: Any, top: int = 10, documents: Any = None) -> Ranking:
        """What queries attend to.

        Args:
            queries: `(queries, width)`.
            top: how many, of each.
            documents: other documents than those of `fit`, `(documents, width)`.
        """
        import qkv
        from qkv.readouts import TopWeights

        check_is_fitted(self, "query_weight_")
        queries = _rows(queries, "queries")
        documents = self._documents if documents is None else _rows(documents, "documents")
        seen = qkv.observe(
            queries @ self.metric_ / np.float32(self.temperature),
            documents,
            np.zeros((len(documents), 1), documents.dtype),
            score=qkv.scores.Dot(),
            readouts=[TopWeights(min(top, len(documents)))],
            memory=self.memory,
        )
        return Ranking(seen.readouts[0].keys, seen.readouts[0].weights)

    @property
    def metric_(self) -> np.ndarray:
        """W_Qᵀ W_K: queries times this are compared with documents as they are."""
        check_is_fitted(self, "query_weight_")
        return np.asarray(self.query_weight_.T @ self.key_weight_)

    def _check(self) -> None:
        for name, number, right, wanted in (
            ("temperature", self.temperature, self.temperature > 0, "more than 0"),
            ("penalty", self.penalty, self.penalty >= 0, "0 or more"),
            ("steps", self.steps, self.steps >= 0, "0 or more"),
        ):
            if not right:
                raise OptionError(f"{name} is {number!r}, and {wanted} is wanted.")
        if self.loss not in _LOSSES:
            raise OptionError(f"the loss is {self.loss!r}, and one of {', '.join(_LOSSES)} is wanted.")

    def _learn(
        self,
        queries: np.ndarray,
        documents: np.ndarray,
        pairs: _Pairs,
        penalty: float,
        progress: Progress | None,
    ) -> tuple[np.ndarray, np.ndarray, list[float]]:
        try:
            import torch
        except ImportError:
            raise MissingPackageError(
                'learning needs PyTorch, which is not installed. Run: pip install "qkv[torch]"'
            ) from None
        losses: list[float] = []
        # Keys that are mapped from a file cannot be written to, which PyTorch warns of.
        query, key = (torch.from_numpy(np.require(rows, requirements="W")) for rows in (queries, documents))
        at = _Pairs(*(torch.from_numpy(part) for part in pairs))
        one = torch.eye(query.shape[1], dtype=query.dtype)
        maps = [one.clone().requires_grad_(), one.clone().requires_grad_()]
        if not self.steps:
            return one.numpy(), one.numpy(), losses
        descent = torch.optim.LBFGS(maps, max_iter=self.steps, line_search_fn="strong_wolfe")

        def closure() -> Any:
            descent.zero_grad()
            loss = self._attention_loss(query, key, maps, at)
            loss = loss + penalty * sum((weight - one).square().sum() for weight in maps)
            loss.backward()
            losses.append(float(loss.detach()))
            if progress is not None:
                progress("learning", min(len(losses), most), most)
            return loss

        most = self.steps * 5 // 4  # how often L-BFGS may look, by its default
        descent.step(closure)  # type: ignore[no-untyped-call]
        if not np.isfinite(losses[-1]):
            raise DataError("the loss is not finite. Scale queries and documents, or raise the temperature.")
        learned = [weight.detach().numpy() for weight in maps]
        return learned[0], learned[1], losses

    def _attention_loss(self, query: Any, key: Any, maps: list[Any], at: _Pairs) -> Any:
        """The mean over queries of −log attention, averaged over what is relevant to each."""
        import torch

        import qkv
        from qkv.readouts import LogSumExp
        from qkv.scores import Dot, Projected

        left, right = maps[0] / self.temperature, maps[1]
        seen = qkv.observe(
            query,
            key,
            key[:, :1],
            score=Projected(Dot(), query_weight=left, key_weight=right),
            readouts=[LogSumExp()],
            memory=self.memory,
        )
        logits = ((query @ left.T)[at.query] * (key @ right.T)[at.key]).sum(dim=1)
        groups = len(at.group_query)
        # log Σ exp over the rows of each document; the largest is taken out so that nothing overflows.
        largest = torch.full((groups,), -torch.inf, dtype=logits.dtype)
        largest = largest.scatter_reduce(0, at.group, logits.detach(), "amax")
        sums = torch.zeros(groups, dtype=logits.dtype).index_add(0, at.group, torch.exp(logits - largest[at.group]))
        costs = seen.readouts[0][at.group_query] - largest - torch.log(sums)
        return (costs * at.group_share).sum()


class _Pairs(NamedTuple):
    """Which rows are relevant to which query, in groups: the rows of a document, or of all of them.

    query, key, group: of each pair. group_query, group_share: of each group; shares of a query's groups are
    equal, and those of all queries add up to 1.
    """

    query: Any
    key: Any
    group: Any
    group_query: Any
    group_share: Any


def _pairs(relevant: Sequence[Sequence[int]], queries: int, owners: np.ndarray, together: bool) -> _Pairs:
    if len(relevant) != queries:
        raise ShapeError(f"relevant has {len(relevant)} lists, and there are {queries} queries. Give one for each.")
    order = np.argsort(owners, kind="stable")
    held = owners[order]
    query, key, group, group_query = [], [], [], []
    for at, numbers in enumerate(relevant):
        wanted = np.asarray(numbers, dtype=np.int64)
        starts, ends = np.searchsorted(held, wanted), np.searchsorted(held, wanted, side="right")
        if (starts == ends).any():
            raise DataError(
                f"query {at} has the relevant document {wanted[starts == ends][0]}, and there is none of "
                "that number. Number documents from 0."
            )
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if not (together and number):
                group_query.append(at)
            query += [at] * (end - start)
            key += order[start:end].tolist()
            group += [len(group_query) - 1] * (end - start)
    if not group_query:
        raise DataError("no query has a relevant document, so there is nothing to learn from.")
    counts = np.bincount(group_query)
    shares = 1.0 / counts[group_query] / np.count_nonzero(counts)
    asked = np.unique(group_query)
    return _Pairs(
        np.array(query),
        np.array(key),
        np.array(group),
        np.searchsorted(asked, group_query),
        shares.astype(np.float32),
    )


def _rows(given: Any, what: str) -> np.ndarray:
    rows = np.ascontiguousarray(given, np.float32)
    if rows.ndim != 2:
        raise ShapeError(f"{what} have {rows.ndim} axes, and (rows, width) is wanted.")
    return rows
