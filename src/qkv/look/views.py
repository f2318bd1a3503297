"""The class `View`, which holds the tokens of one text and the quantized attention maps of one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from qkv.core.typing import ArrayLike, Bool, Float, Num
from qkv.errors import DataError, OptionError, ShapeError
from qkv.look.allowed_pairs import allowed_of_record, infer_causal
from qkv.look.axis import Axis
from qkv.look.color_range import share_one
from qkv.look.head_call import HeadCall, PairProduct
from qkv.look.quantize import MASKED, dequantize, exponent_of, quantize, thumbnails, to_numpy
from qkv.look.token_groups import Group, group_tokens, merge, merge_allowed

if TYPE_CHECKING:
    from qkv.interop.huggingface.recorder import Recorder
    from qkv.look.live_model import Effect, LiveModel
    from qkv.look.predictions import Predictions
    from qkv.look.tiled_map import TiledLayer


ALL_HEADS = "all heads"
"""Name of the layer of a view that holds maps over all heads, such as their mean, which are no heads."""


@dataclass(frozen=True)
class MapRange:
    """The range of the weights of one attention map.

    Attributes:
        exponent: the decimal exponent of the codes, from `qkv.look.quantize.exponent_of`.
        normalized: whether no weight is negative and no row sums to more than 1, so that 1 / (number of keys) is the
            weight of uniform attention.
    """

    exponent: int
    normalized: bool


@dataclass(frozen=True, eq=False)
class LayerMaps:
    """The quantized attention maps of the heads of one layer.

    Attributes:
        name: name of the layer.
        heads: name of each head.
        codes: `(heads, q, k)` uint16, from `qkv.look.quantize`.
        ranges: range of the weights of each head.
        value_norms: `(heads, k)`, Euclidean norm of the value of each key; None: unknown.
        calls: the attention call of each head, with its queries and keys; None: unknown.
    """

    name: str
    heads: tuple[str, ...]
    codes: Num[np.ndarray, "heads q k"] = field(repr=False)
    ranges: tuple[MapRange, ...] = field(repr=False)
    value_norms: Float[np.ndarray, "heads k"] | None = field(default=None, repr=False)
    calls: tuple[HeadCall, ...] | None = field(default=None, repr=False)

    @classmethod
    def from_weights(
        cls,
        name: str,
        weights: ArrayLike,
        heads: Sequence[str] | None = None,
        allowed: Bool[np.ndarray, "*#heads q k"] | None = None,
        value_norms: Float[np.ndarray, "heads k"] | None = None,
        calls: tuple[HeadCall, ...] | None = None,
    ) -> LayerMaps:
        """Create the maps of a layer by quantizing weights `(heads, q, k)` of any supported array library."""
        array = to_numpy(weights)
        ranges = tuple(MapRange(exponent_of(one), share_one(one, np.isfinite(one))) for one in array)
        codes, _ = quantize(array, allowed, [one.exponent for one in ranges])
        return cls(name, tuple(heads or (f"head {i}" for i in range(len(codes)))), codes, ranges, value_norms, calls)

    def preview(self, head: int) -> Num[np.ndarray, "rows columns"]:
        """Return the codes of a head, from which its thumbnail is drawn."""
        codes: Num[np.ndarray, "rows columns"] = self.codes[head]
        return codes


@dataclass(frozen=True)
class HeadRole:
    """A role of an attention head, with its score and the score of a baseline."""

    role: str
    score: float
    baseline: float
    sentences: int = 0


@dataclass(frozen=True)
class Opening:
    """The head, query and key on which a view opens."""

    layer: int = 0
    head: int = 0
    query: int = 0
    key: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class BaseView:
    """Base class of views, whose maps are dense in `View` and computed on demand in `TiledView`.

    Attributes:
        name: title of the view, usually the text.
        model: name of the model.
        kind: `"self"`, `"cross"` or `"decoder"`.
        queries: tokens of the rows.
        keys: tokens of the columns; None: the same as `queries`.
        layers: the maps of each layer.
        roles: roles of heads by (layer, head), shown as badges.
        note: a remark shown beside the maps.
        opening: what the page shows first; None: the first head and the first token.
    """

    name: str
    model: str
    kind: str
    queries: Axis
    keys: Axis | None
    layers: tuple[LayerMaps | TiledLayer, ...]
    roles: dict[tuple[int, int], tuple[HeadRole, ...]] = field(default_factory=dict)
    note: str = ""
    opening: Opening | None = None
    _repr_html_: ClassVar[Callable[[BaseView], str]]

    @property
    def columns(self) -> Axis:
        """The tokens of the columns: the keys, or the queries if these are the same."""
        return self.keys or self.queries

    def __repr__(self) -> str:
        maps, q = sum(len(layer.heads) for layer in self.layers), len(self.queries.tokens)
        k = len(self.columns.tokens)
        return f"{type(self).__name__}({self.name!r}, {len(self.layers)} layers, {maps} maps of {q} queries × {k} keys)"

    def check_head(self, layer: int, head: int) -> None:
        """Raise an `OptionError` if there is no such head."""
        counts = [len(one.heads) for one in self.layers]
        heads = [*counts, 0][min(layer, len(counts))]
        for name, index, count in (("layer", layer, len(counts)), ("head", head, heads)):
            if not 0 <= index < count:
                raise OptionError(f"{name} must be between 0 and {count - 1}, got {index}. This view has {count}.")

    def call(self, layer: int, head: int) -> HeadCall:
        """Return the attention call of a head, with its queries and keys.

        Raises:
            DataError: the queries and keys are unknown.
            OptionError: the layer or head does not exist.
        """
        self.check_head(layer, head)
        calls = self.layers[layer].calls
        if calls is None:
            raise DataError(
                f"view must have been made with a model whose queries and keys can be read, got "
                f"{self.layers[layer].name!r} of {self.name!r} without them. Choose a layer that uses the attention "
                "interface of transformers, torch.nn.MultiheadAttention or a module of qkv.nn with one batch axis."
            )
        return calls[head]

    def pair(self, layer: int, head: int, query: int, key: int) -> PairProduct:
        """Return query, key and their product dimension by dimension for one pair of tokens.

            weight = softmax over keys of (Σ_d scale · query_d · key_d + bias)

        Raises:
            DataError: the queries and keys are unknown, or the score is not a scaled dot product.
            OptionError: the layer, head, query or key does not exist.
        """
        return self.call(layer, head).pair(query, key)

    def weight(self, layer: int, head: int, query: int, key: int) -> np.float32:
        """Return one weight as the model computes it in float32; its last two or three digits depend on rounding.

        Raises:
            DataError: the queries and keys are unknown.
            OptionError: the layer, head, query or key does not exist.
        """
        return np.float32(self.call(layer, head).weight(query, key))

    def thumbnails(self) -> Num[np.ndarray, "heads 32 32"]:
        """Return the codes of the thumbnails of all heads."""
        codes = (layer.preview(head) for layer in self.layers for head in range(len(layer.heads)))
        return np.concatenate([thumbnails(one[None]) for one in codes])

    def meta(self) -> dict[str, object]:
        """Return the metadata of the view as a JSON-serializable dictionary."""
        return {
            "name": self.name,
            "model": self.model,
            "kind": self.kind,
            "queries": self.queries.meta(),
            "keys": None if self.keys is None else self.keys.meta(),
            "layers": [{"name": layer.name, "heads": list(layer.heads)} for layer in self.layers],
            "ranges": [[asdict(one) for one in layer.ranges] for layer in self.layers],
            "note": self.note,
            "pairs": any(layer.calls is not None for layer in self.layers),
            "opening": None if self.opening is None else asdict(self.opening),
            "roles": {f"{i},{head}": [asdict(role) for role in own] for (i, head), own in self.roles.items()},
        }


@dataclass(frozen=True, eq=False, repr=False)
class View(BaseView):
    """The quantized attention maps of one text in one model.

    Attributes:
        layer_means: `(layers, q, k)`, the mean over the heads of each layer, from which the attention flow of single
            pairs is computed; None: the page does not offer it.
        predictions: the predicted tokens of a language model at each query.
        live: the model with its inputs, which is run again to ablate heads and to read query and key vectors.
    """

    layers: tuple[LayerMaps, ...]
    layer_means: Float[np.ndarray, "layers q k"] | None = None
    predictions: Predictions | None = None
    live: LiveModel | None = None

    @classmethod
    def from_weights(
        cls,
        weights: ArrayLike | Sequence[ArrayLike],
        queries: Sequence[str] | Axis,
        keys: Sequence[str] | Axis | None = None,
        *,
        name: str = "attention",
        model: str = "",
        layers: Sequence[str] | None = None,
        mask: ArrayLike | None = None,
    ) -> View:
        """Create a view from weights `(layers, heads, q, k)` of any supported array library.

        Args:
            weights: weights of one input, which may be negative; an array `(q, k)` is one head, and `(heads, q, k)` one
                layer. In a sequence, the layers may have different numbers of heads.
            queries: tokens of the rows.
            keys: tokens of the columns; None: the same as `queries`.
            mask: booleans that broadcast to `(layers, heads, q, k)`, True for keys that the query may attend to; None:
                all keys, or the keys up to the query if only those have weights other than 0 (`infer_causal`).
            name: title of the view.
            model: name of the model.
            layers: name of each layer; None: `layer 0`, `layer 1` …

        Raises:
            ShapeError: the shape of the weights or of the mask does not match the tokens.

        Example:
            >>> view = View.from_weights(np.eye(3)[None, None], ["a", "b", "c"])
            >>> view.layers[0].name, view.weights(0, 0).tolist()[0]
            ('layer 0', [1.0, 0.0, 0.0])
        """
        rows, columns = Axis.from_words(queries), None if keys is None else Axis.from_words(keys)
        arrays = _check_shapes(weights, rows, columns)
        names = layers or [f"layer {i}" for i in range(len(arrays))]
        masks = _layer_masks(arrays, mask)
        every = zip(names, arrays, masks, strict=True)
        maps = tuple(LayerMaps.from_weights(layer, array, None, allowed) for layer, array, allowed in every)
        return cls(name, model, "self" if columns is None else "cross", rows, columns, maps)

    @classmethod
    def from_record(
        cls,
        record: Recorder,
        queries: Sequence[str] | Axis,
        keys: Sequence[str] | Axis | None = None,
        *,
        kind: str = "self",
        element: int = 0,
        name: str = "attention",
        model: str = "",
    ) -> View:
        """Create a view from attention weights that `qkv.interop.record(model, [Dense()])` recorded.

        Args:
            record: the record, of which the last call of each layer is shown.
            queries: tokens of the rows.
            keys: tokens of the columns; None: the same as `queries`.
            kind: kind of the layers to show, `"self"` or `"cross"`.
            element: index into the batch.
            name: title of the view.
            model: name of the model.

        Raises:
            ShapeError: the shape of the weights does not match the tokens.
            DataError: the record contains no dense weights of layers of this kind.
        """
        last = [calls[-1] for calls in record.layers.values() if calls[-1].kind == kind]
        first = [(call.readouts[0], (call.queries, call.keys)) for call in last if call.readouts]
        maps = [readout[element] for readout, shape in first if np.shape(readout)[-2:] == shape]
        if not maps or len(maps) < len(last):
            raise DataError(
                f"record must contain dense weights of all {kind}-attention layers, got weights of {len(maps)} out of "
                f"{len(last)} layers. Run the model within record(model, [Dense()])."
            )
        rows, columns = Axis.from_words(queries), None if keys is None else Axis.from_words(keys)
        arrays = _check_shapes(maps, rows, columns)
        layers = []
        for i, (weights, call) in enumerate(zip(arrays, last, strict=True)):
            allowed, calls = allowed_of_record(call, weights, element), HeadCall.of_record(call, element)
            layers.append(LayerMaps.from_weights(f"layer {i}", weights, None, allowed, None, calls))
        return cls(name, model, "self" if columns is None else "cross", rows, columns, tuple(layers))

    @property
    def image(self) -> Num[np.ndarray, "height width 3"] | None:
        """Red, green and blue of the image whose patches are tokens, `(height, width, 3)`; None: no image."""
        patches = [axis.patches.pixels for axis in (self.queries, self.keys) if axis and axis.patches]
        return next((pixels for pixels in patches if pixels is not None), None)

    def weights(self, layer: int, head: int) -> Float[np.ndarray, "q k"]:
        """Return the weights of one head, `(q, k)`, rounded to three significant digits; 0 for masked pairs."""
        maps = self.layers[layer]
        return dequantize(maps.codes[head], maps.ranges[head].exponent)

    def allowed(self, layer: int, head: int) -> Bool[np.ndarray, "q k"]:
        """Return whether each query of one head may attend to each key, `(q, k)`."""
        allowed: Bool[np.ndarray, "q k"] = self.layers[layer].codes[head] != MASKED
        return allowed

    def pair(self, layer: int, head: int, query: int, key: int) -> PairProduct:
        """Return the pair as in `BaseView.pair`, with the norm of the value if it is known."""
        found, norms = super().pair(layer, head, query, key), self.layers[layer].value_norms
        return found if norms is None else found._replace(value_norm=float(norms[head, key]))

    def effect(self, factors: Mapping[tuple[int, int], float]) -> Effect:
        """Return how the outputs of the model change if heads are ablated or scaled, before the output projection.

            output_h = factor_h · Σ_j weight_hj · value_hj

        Args:
            factors: factor of each head, by index of layer and head; 0 ablates a head.

        Raises:
            DataError: the view has no model, or a layer does not use the attention interface of transformers.
            OptionError: a layer or head does not exist.
        """
        if self.live is None:
            raise DataError(
                f"view must have been made with a model, got {self.name!r} without one. Make it with "
                "qkv.look.text_views.text_views(load_text_model(folder), [text])."
            )
        return self.live.effect(factors)

    def grouped(self, queries: str | Sequence[Group] = "words", keys: str | Sequence[Group] | None = None) -> View:
        """Return a view of the weights between groups of tokens: mean over the queries, sum over the keys.

        Args:
            queries: `"tokens"`, a unit of the axis such as `"words"` or `"sentences"`, or the indices of the tokens of
                each group, such as those that `qkv.look.token_groups.find_phrase` finds.
            keys: the groups of the keys; None: the same as `queries`.

        Raises:
            OptionError: a group is empty or has a token that does not exist.

        Example:
            >>> weights = np.array([[[[1, 0, 0], [0.2, 0.8, 0], [0.7, 0.2, 0.1]]]])
            >>> view = View.from_weights(weights, ["the", "cat", "sat"]).grouped([(0, 1), (2,)])
            >>> view.queries.tokens, view.weights(0, 0).tolist()
            (('the cat', 'sat'), [[1.0, 0.0], [0.9, 0.1]])
        """
        same = self.keys is None and keys is None
        q, k = _groups(self.queries, queries), _groups(self.columns, queries if keys is None else keys)
        layers = []
        for i, (maps, heads) in enumerate((layer, range(len(layer.heads))) for layer in self.layers):
            weights = np.stack([merge(self.weights(i, j).astype(np.float64), q, k) for j in heads])
            allowed = merge_allowed(maps.codes != MASKED, q, k)
            layers.append(LayerMaps.from_weights(maps.name, weights, maps.heads, allowed))
        units = [unit if isinstance(unit, str) else "" for unit in (queries, queries if keys is None else keys)]
        axes = self.queries.grouped(q, units[0]), None if same else self.columns.grouped(k, units[1])
        return View(self.name, self.model, self.kind, *axes, tuple(layers), self.roles, note=self.note)

    def meta(self) -> dict[str, object]:
        """Return the metadata as in `BaseView.meta`, with what a page of dense maps can show."""
        return super().meta() | {
            "flow": self.layer_means is not None,
            "predictions": self.predictions is not None,
            "live": self.live is not None,
            "values": [layer.value_norms is not None for layer in self.layers],
        }


def _groups(axis: Axis, groups: str | Sequence[Group]) -> Sequence[Group]:
    """Return the groups of a unit, or given groups after checking their tokens."""
    if isinstance(groups, str):
        return group_tokens(axis, groups)
    count = len(axis.tokens)
    for group in groups:
        if not group or not all(0 <= i < count for i in group):
            raise OptionError(
                f"a group must have indices of tokens from 0 to {count - 1}, got {group!r}. Name at least one token of "
                "each group."
            )
    return groups


def _check_shapes(
    weights: ArrayLike | Sequence[ArrayLike], queries: Axis, keys: Axis | None
) -> list[Num[np.ndarray, "_ q k"]]:
    """Return the weights of each layer as NumPy arrays, after comparing their shapes with the tokens."""
    q, k = len(queries.tokens), len((keys or queries).tokens)
    if getattr(weights, "ndim", 4) in (2, 3):
        weights = to_numpy(weights)[(None,) * (4 - np.ndim(weights))]
    shapes = [tuple(np.shape(layer)) for layer in weights]
    if not shapes or any(len(shape) != 3 or shape[1:] != (q, k) or 0 in shape for shape in shapes):
        raise ShapeError(
            f"weights must have shape (layers, heads, {q}, {k}) for {q} queries and {k} keys, got "
            f"{len(shapes)} layers with the shapes {sorted(set(shapes))}. Select one element of the batch."
        )
    return [to_numpy(layer) for layer in weights]


def _layer_masks(
    weights: Sequence[Num[np.ndarray, "_ q k"]], mask: ArrayLike | None
) -> list[Bool[np.ndarray, "*_ q k"] | None]:
    """Return for each layer which pairs the mask allows, or None if it allows all pairs."""
    if mask is None:
        return [infer_causal(weights)] * len(weights)
    allowed = to_numpy(mask)
    try:
        # One mask for each layer, of which the numbers of heads may differ.
        every = np.broadcast_to(allowed, (len(weights), *(1, *allowed.shape)[-3:]))
        return [np.broadcast_to(own, layer.shape).astype(bool) for own, layer in zip(every, weights, strict=True)]
    except ValueError:
        raise ShapeError(
            f"mask must broadcast to (layers, heads, queries, keys), got shape {allowed.shape} for {len(weights)} "
            f"layers of shape {weights[0].shape}. Pass one boolean for each query and key."
        ) from None
