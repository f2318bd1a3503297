"""The class `AttentionRanker`, which ranks documents by attention with projections learned from relevant documents.

    a(q, d) = softmax_d( (W_Q q · W_K d) / T )                      over the whole collection
    loss    = mean_q mean_{d relevant to q} −log a(q, d)  +  λ/n (‖W_Q − 1‖² + ‖W_K − 1‖²)

n is the number of relevant pairs, so the penalty has less effect if there are more pairs. Training starts from the
identity matrices W_Q = W_K = 1, which rank documents by their inner products with the query. The loss is minimized by
L-BFGS over all queries; the softmax over the collection is computed tile by tile, in memory linear in queries and
documents.

Source: Bai et al. (2009), Supervised semantic indexing, section 3: one projection for queries, one for documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from qkv.core.checks import check_choice
from qkv.core.progress import Progress, report
from qkv.core.typing import ArrayLike, Float, Int
from qkv.errors import DataError, OptionError, ShapeError
from qkv.estimators.saved_estimator import SavedEstimator
from qkv.kernels.runtime.context import with_torch_defaults

if TYPE_CHECKING:
    from torch import Tensor


_LOSSES = ("each", "mass")


class Ranking(NamedTuple):
    """The documents with the largest attention weights for each query, in descending order of weight.

    Attributes:
        documents: indices of fitted documents `(queries, top)`; −1 if there are fewer than `top`.
        weights: attention weights of these documents `(queries, top)`.
    """

    documents: Int[np.ndarray, "queries top"]
    weights: Float[np.ndarray, "queries top"]


class AttentionRanker(SavedEstimator):
    """Ranker of documents by attention, with projections learned from queries and their relevant documents.

    Args:
        temperature: temperature T of the softmax.
        penalty: λ, the weight of the squared distance from the initial projections, divided by the number of
            relevant pairs.
        loss: "each": −log of the attention on each relevant document, averaged; or "mass": −log of the sum
            over all relevant documents, which is small if one of them has a large weight.
        steps: maximum number of L-BFGS iterations. 0 keeps the initial projections.
        memory: memory of the softmax over the collection, as in `qkv.attend`.

    Attributes:
        query_weight_: W_Q `(width, width)`, laid out as in `torch.nn.Linear`.
        key_weight_: W_K `(width, width)`, likewise.
        losses_: loss at each evaluation.

    Raises:
        MissingPackageError: when imported, if PyTorch or scikit-learn is not installed.
        OptionError: when fitted, if an option is not allowed.
        ShapeError: when fitted, if shapes do not match.
        DataError: when fitted, if no query has a relevant document, or the loss is not finite.

    Example:
        >>> angles = np.arange(12) * np.pi / 6
        >>> points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> turned = np.roll(points, 3, axis=0)          # relevant: a quarter turn behind
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
        memory: int | str | None = None,
    ) -> None:
        self.temperature = temperature
        self.penalty = penalty
        self.loss = loss
        self.steps = steps
        self.memory = memory

    @with_torch_defaults
    def fit(
        self,
        queries: ArrayLike,
        documents: ArrayLike,
        relevant: Sequence[Iterable[int]],
        *,
        document_ids: ArrayLike | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Learn projections of queries and documents from the relevant documents of each query.

        Args:
            queries: queries `(queries, width)`.
            documents: the whole collection `(documents, width)`.
            relevant: for each query, the rows of its relevant documents. Queries with an empty list are ignored.
            document_ids: document number of each row, if rows are passages of documents. `relevant` then holds
                these numbers, and the attention on a document is the sum over its passages.
            progress: called after each evaluation of the loss.

        Returns:
            The fitted ranker.

        Raises:
            OptionError: if an option is not allowed.
            ShapeError: if the shapes do not match.
            DataError: if no query has a relevant document, a document is unknown, or the loss is not finite.
        """
        self._check()
        queries, documents = _rows(queries, "queries"), _rows(documents, "documents")
        if queries.shape[1] != documents.shape[1]:
            raise ShapeError(
                f"queries must have the same width as documents, {documents.shape[1]}, got {queries.shape[1]}. Use the "
                "same encoder for both."
            )
        ids = np.arange(len(documents)) if document_ids is None else np.asarray(document_ids)
        if ids.shape != (len(documents),):
            raise ShapeError(
                f"document_ids must have shape ({len(documents)},), got {ids.shape}. Pass one id per document."
            )
        numbers = [sorted({int(number) for number in each}) for each in relevant]
        pairs = _relevant_pairs(numbers, len(queries), ids, self.loss == "mass")
        penalty = self.penalty / sum(map(len, numbers))
        used = np.unique(pairs.query)
        pairs = pairs._replace(query=np.searchsorted(used, pairs.query))
        self._documents = documents
        self.query_weight_, self.key_weight_, self.losses_ = self._learn(
            queries[used], documents, pairs, penalty, progress
        )
        return self

    @with_torch_defaults
    def rank(self, queries: ArrayLike, top: int = 10, documents: ArrayLike | None = None) -> Ranking:
        """Return the documents with the largest attention weights for each query.

        Args:
            queries: queries `(queries, width)`.
            top: number of documents per query.
            documents: documents to rank instead of those of `fit`, `(documents, width)`.
        """
        import qkv
        from qkv.readouts import TopWeights

        check_is_fitted(self, "query_weight_")
        queries = _rows(queries, "queries")
        documents = self._documents if documents is None else _rows(documents, "documents")
        observation = qkv.observe(
            queries @ self.metric_ / np.float32(self.temperature),
            documents,
            np.zeros((len(documents), 1), documents.dtype),
            score=qkv.scores.Dot(),
            readouts=[TopWeights(min(top, len(documents)))],
            memory=self.memory,
        )
        found = observation.readouts[0]
        return Ranking(found.keys, found.weights)

    @property
    def metric_(self) -> Float[np.ndarray, "width width"]:
        """The matrix W_Qᵀ W_K. Queries multiplied by it can be compared with documents that are not projected."""
        check_is_fitted(self, "query_weight_")
        return np.asarray(self.query_weight_.T @ self.key_weight_)

    def _check(self) -> None:
        for name, number, allowed, condition in (
            ("temperature", self.temperature, self.temperature > 0, "positive"),
            ("penalty", self.penalty, self.penalty >= 0, "at least 0"),
            ("steps", self.steps, self.steps >= 0, "at least 0"),
        ):
            if not allowed:
                raise OptionError(f"{name} must be {condition}, got {number!r}. Omit it to use the default.")
        check_choice("loss", self.loss, _LOSSES)

    def _check_state(self) -> None:
        self._check()
        width = self._documents.shape[1]
        if self.query_weight_.shape != (width, width) or self.key_weight_.shape != (width, width):
            shapes = self.query_weight_.shape, self.key_weight_.shape
            raise ValueError(f"query_weight_ and key_weight_ must have shape {(width, width)}, got {shapes}")
        self.rank(self._documents[:1], top=1)

    def _learn(
        self,
        queries: Float[np.ndarray, "queries width"],
        documents: Float[np.ndarray, "documents width"],
        pairs: _RelevantPairs[np.ndarray],
        penalty: float,
        progress: Progress | None,
    ) -> tuple[Float[np.ndarray, "width width"], Float[np.ndarray, "width width"], list[float]]:
        losses: list[float] = []
        # Memory-mapped keys are read-only, and PyTorch warns about read-only arrays.
        query, key = (torch.from_numpy(np.require(rows, requirements="W")) for rows in (queries, documents))
        tensors = _RelevantPairs(*(torch.from_numpy(part) for part in pairs))
        identity = torch.eye(query.shape[1], dtype=query.dtype)
        weights = [identity.clone().requires_grad_(), identity.clone().requires_grad_()]
        if not self.steps:
            return identity.numpy(), identity.numpy(), losses
        optimizer = torch.optim.LBFGS(weights, max_iter=self.steps, line_search_fn="strong_wolfe")

        def closure() -> Float[Tensor, ""]:
            optimizer.zero_grad()
            loss = self._attention_loss(query, key, weights, tensors)
            loss = loss + penalty * sum((weight - identity).square().sum() for weight in weights)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(float(loss.detach()))
            report(progress, "learning", min(len(losses), evaluations), evaluations)
            return loss

        evaluations = self.steps * 5 // 4  # L-BFGS's default limit of function evaluations
        optimizer.step(closure)  # type: ignore[no-untyped-call]
        if not np.isfinite(losses[-1]):
            raise DataError(
                f"the training loss must be finite, got {losses[-1]}. Scale queries and documents down, or raise the "
                "temperature."
            )
        return weights[0].detach().numpy(), weights[1].detach().numpy(), losses

    def _attention_loss(
        self,
        query: Float[Tensor, "queries width"],
        key: Float[Tensor, "documents width"],
        weights: list[Float[Tensor, "width width"]],
        pairs: _RelevantPairs[Tensor],
    ) -> Float[Tensor, ""]:
        """Return the mean over queries of −log of the attention on their relevant documents."""
        import qkv
        from qkv.readouts import LogSumExp
        from qkv.scores import Dot, Projected

        left, right = weights[0] / self.temperature, weights[1]
        observation = qkv.observe(
            query,
            key,
            key[:, :1],
            score=Projected(Dot(), query_weight=left, key_weight=right),
            readouts=[LogSumExp()],
            memory=self.memory,
        )
        logits = ((query @ left.T)[pairs.query] * (key @ right.T)[pairs.key]).sum(dim=1)
        groups = len(pairs.group_query)
        # Log-sum-exp over the rows of each document, with its maximum subtracted so that nothing overflows.
        maximum = torch.full((groups,), -torch.inf, dtype=logits.dtype)
        maximum = maximum.scatter_reduce(0, pairs.group, logits.detach(), "amax")
        sums = torch.zeros(groups, dtype=logits.dtype)
        sums = sums.index_add(0, pairs.group, torch.exp(logits - maximum[pairs.group]))
        log_sum_exp: Tensor = observation.readouts[0]
        costs = log_sum_exp[pairs.group_query] - maximum - torch.log(sums)
        return (costs * pairs.group_weight).sum()


A = TypeVar("A")


class _RelevantPairs(NamedTuple, Generic[A]):
    """Pairs of a query and a relevant row, grouped by document or by query.

    A group holds the rows of one relevant document, or of all relevant documents of the query. `query`, `key`
    and `group` have one element per pair, `group_query` and `group_weight` one per group. The weights of a query's
    groups are equal, and all weights sum to 1.
    """

    query: A
    key: A
    group: A
    group_query: A
    group_weight: A


def _relevant_pairs(
    relevant: Sequence[Sequence[int]], queries: int, document_ids: Int[np.ndarray, " documents"], one_group: bool
) -> _RelevantPairs[np.ndarray]:
    if len(relevant) != queries:
        raise ShapeError(
            f"relevant must have one list for each of {queries} queries, got {len(relevant)} lists. "
            "Pass an empty list for a query without relevant rows."
        )
    order = np.argsort(document_ids, kind="stable")
    numbers = np.array([number for each in relevant for number in each], np.int64)
    owner = np.repeat(np.arange(queries), [len(each) for each in relevant])  # the query of each number
    if not len(numbers):
        raise DataError(
            "relevant must name at least one document, got only empty lists. List the ids of the relevant documents of "
            "at least one query."
        )
    starts, ends = (np.searchsorted(document_ids[order], numbers, side=side) for side in ("left", "right"))
    if (starts == ends).any():
        unknown = np.argmax(starts == ends)
        raise DataError(
            f"relevant[{owner[unknown]}] must hold only ids of documents, got {numbers[unknown]}. Without "
            "document_ids, ids are row numbers from 0."
        )
    rows = [order[start:end] for start, end in zip(starts, ends, strict=True)]
    pair = np.repeat(np.arange(len(numbers)), ends - starts)  # the number of each pair
    used, position = np.unique(owner, return_inverse=True)
    group = position if one_group else np.arange(len(numbers))
    group_query = np.arange(len(used)) if one_group else position
    weights = 1.0 / np.bincount(group_query)[group_query] / len(used)
    return _RelevantPairs(owner[pair], np.concatenate(rows), group[pair], group_query, weights.astype(np.float32))


def _rows(array: ArrayLike, name: str) -> Float[np.ndarray, "rows width"]:
    rows = np.ascontiguousarray(array, np.float32)
    if rows.ndim != 2:
        raise ShapeError(f"{name} must have shape (rows, width), got {rows.shape}. Pass one vector per row.")
    return rows
