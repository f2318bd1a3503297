"""What is shown of one text in one model: its words, and the maps of every layer and head as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qkv.errors import DataError, ShapeError
from qkv.look.quantize import dequantize, quantize, thumbnails

__all__ = ["LayerMaps", "HeadRole", "TokenAxis", "View"]


@dataclass(frozen=True)
class TokenAxis:
    """The words on one side of a map.

    Fields:
        tokens: as they are shown.
        pieces: what each adds to its word.
        words: the number of the word that each belongs to; −1: none.
        special: which are the model's own, such as [CLS].
        numbered: the words are numbers, 0 and up, which need not be sent.
    """

    tokens: tuple[str, ...]
    pieces: tuple[str, ...]
    words: tuple[int, ...]
    special: tuple[bool, ...]
    numbered: bool = False

    @classmethod
    def numbers(cls, count: int) -> TokenAxis:
        """Words that are nothing but their numbers."""
        names = tuple(map(str, range(count)))
        return cls(names, names, tuple(range(count)), (False,) * count, numbered=True)

    @classmethod
    def of(cls, tokens: Sequence[str]) -> TokenAxis:
        """Words that stand each for itself."""
        names = tuple(str(token) for token in tokens)
        return cls(names, names, tuple(range(len(names))), (False,) * len(names))

    def meta(self) -> dict[str, Any]:
        """As the page reads it."""
        if self.numbered:
            return {"count": len(self.tokens)}
        return {name: list(getattr(self, name)) for name in ("tokens", "pieces", "words", "special")}


@dataclass(frozen=True, eq=False)
class LayerMaps:
    """The heads of a layer: names, codes `(heads, queries, keys)`, and the largest weight of each."""

    name: str
    heads: tuple[str, ...]
    codes: np.ndarray = field(repr=False)
    scales: np.ndarray = field(repr=False)

    @classmethod
    def of(cls, name: str, weights: Any, heads: Sequence[str] | None = None) -> LayerMaps:
        """From weights `(heads, queries, keys)` of any array library."""
        codes, scales = quantize(weights)
        return cls(name, tuple(heads or (f"head {i}" for i in range(len(codes)))), codes, scales)


@dataclass(frozen=True)
class HeadRole:
    """What a head was found to do, over many sentences: a score, and what a rule without a model reaches."""

    role: str
    score: float
    baseline: float


@dataclass(frozen=True, eq=False)
class View:
    """One text in one model.

    Fields:
        name: what it is called, most often the text.
        model: the model's name.
        kind: `"self"` or `"cross"`.
        queries: the words down.
        keys: the words across; None: the same.
        layers: maps, layer by layer.
        roles: of heads, by (layer, head).
        steps: queries are generated one after the other: the page goes through them step by step.
        note: what a reader must know of these maps.
    """

    name: str
    model: str
    kind: str
    queries: TokenAxis
    keys: TokenAxis | None
    layers: tuple[LayerMaps, ...]
    roles: dict[tuple[int, int], tuple[HeadRole, ...]] = field(default_factory=dict)
    steps: bool = False
    note: str = ""

    @classmethod
    def of(
        cls,
        weights: Any,
        queries: Sequence[str] | TokenAxis,
        keys: Sequence[str] | TokenAxis | None = None,
        *,
        name: str = "attention",
        model: str = "",
        layers: Sequence[str] | None = None,
    ) -> View:
        """From weights `(layers, heads, queries, keys)` of any array library.

        Raises:
            ShapeError: the weights do not fit the words.

        Example:
            >>> view = View.of(np.eye(3)[None, None], ["a", "b", "c"])
            >>> view.layers[0].name, view.weights(0, 0).tolist()[0]
            ('layer 0', [1.0, 0.0, 0.0])
        """
        down = queries if isinstance(queries, TokenAxis) else TokenAxis.of(queries)
        across = keys if isinstance(keys, TokenAxis) or keys is None else TokenAxis.of(keys)
        shape = tuple(np.shape(weights))
        wanted = (len(down.tokens), len((across or down).tokens))
        if len(shape) != 4 or shape[-2:] != wanted or 0 in shape:
            raise ShapeError(
                f"weights have the shape {shape}, and (layers, heads, {wanted[0]}, {wanted[1]}) is wanted: "
                f"there are {wanted[0]} queries and {wanted[1]} keys."
            )
        names = layers or [f"layer {i}" for i in range(shape[0])]
        made = tuple(LayerMaps.of(named, one) for named, one in zip(names, weights, strict=True))
        return cls(name, model, "self" if across is None else "cross", down, across, made)

    @classmethod
    def recorded(
        cls,
        record: Any,
        queries: Sequence[str] | TokenAxis,
        keys: Sequence[str] | TokenAxis | None = None,
        *,
        kind: str = "self",
        element: int = 0,
        name: str = "attention",
        model: str = "",
    ) -> View:
        """From what `qkv.interop.record(model, [Dense()])` saw of a model.

        Args:
            record: what was seen; the last call of each layer counts.
            queries, keys: the words; keys None: the same.
            kind: `"self"`, or `"cross"`: layers of this kind.
            element: of the batch.
            name, model: what it is called.

        Raises:
            ShapeError: the weights do not fit the words.
            DataError: no layer of that kind was seen, or its weights were not.
        """
        last = [calls[-1] for calls in record.layers.values() if calls[-1].kind == kind]
        maps = [
            readout[element]
            for seen in last
            for readout in seen.readouts[:1]
            if np.shape(readout)[-2:] == (seen.queries, seen.keys)
        ]
        if not maps or len(maps) < len(last):
            raise DataError(
                f"no weights of all pairs of {kind}-attention were recorded. Record with "
                "record(model, [Dense()]), and run the model within."
            )
        view = cls.of(maps[0][None], queries, keys, name=name, model=model)
        layers = tuple(LayerMaps.of(f"layer {i}", weights) for i, weights in enumerate(maps))
        return replace(view, layers=layers)

    def weights(self, layer: int, head: int) -> np.ndarray:
        """The weights of a head as they are shown, `(queries, keys)`."""
        one = self.layers[layer]
        return dequantize(one.codes[head], one.scales[head])

    def map(self, layer: int, head: int) -> bytes:
        """The codes of a head, row by row."""
        return bytes(self.layers[layer].codes[head].tobytes())

    def thumbs(self, side: int) -> bytes:
        """Small maps of all heads, one after the other."""
        return b"".join(thumbnails(layer.codes, side).tobytes() for layer in self.layers)

    def meta(self) -> dict[str, Any]:
        """What the page needs before it asks for maps."""
        return {
            "name": self.name,
            "model": self.model,
            "kind": self.kind,
            "queries": self.queries.meta(),
            "keys": None if self.keys is None else self.keys.meta(),
            "layers": [{"name": layer.name, "heads": list(layer.heads)} for layer in self.layers],
            "scales": [[float(f"{scale:.6g}") for scale in layer.scales] for layer in self.layers],
            "steps": self.steps,
            "note": self.note,
            "roles": {
                f"{layer},{head}": [
                    {"role": role.role, "score": role.score, "baseline": role.baseline} for role in roles
                ]
                for (layer, head), roles in self.roles.items()
            },
        }
