"""Multi-head attention: linear maps, heads, and any score, normalizer and mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import torch
from torch.nn import Linear

from qkv.core.positions import Positions
from qkv.masks import Mask
from qkv.masks.base import require_mask
from qkv.nn import calls
from qkv.nn.attention import both, probability, run
from qkv.nn.fitting import fitted, spread
from qkv.nn.heads import Head, rows_of_head
from qkv.nn.held import Held
from qkv.nn.options import Maps, check_widths, norm, softmax_of
from qkv.nn.protocols import Attended, Cache, KeyValue, Rotary
from qkv.nn.scores.base import ScoreLike, made
from qkv.nn.talking import MixedLogits, MixedWeights
from qkv.normalizers import NORMALIZERS, Normalizer
from qkv.readouts import Readout
from qkv.scores import Biased, Score

__all__ = ["MultiHeadAttention"]

Tensor = torch.Tensor


class MultiHeadAttention(torch.nn.Module):
    """Several attentions side by side, each of its own linear maps of query, key and value.

        head_h = attend(query W_Q_h, key W_K_h, value W_V_h)          output = Σ_h head_h W_O_h

    Maps start uniform as Glorot and Bengio (2010) have it, biases at 0.

    Args:
        width: of the query and of the output.
        heads: how many.
        key_width, value_width: of what comes as key and as value; `width`, and that of the key, where None.
        head_width: of a head's mapped query and key; `width / heads` where None.
        head_value_width: of a head's mapped value; `head_width` where None.
        key_heads: heads of key and value; each serves `heads / key_heads` heads of the query, in order
            (grouped-query attention, Ainslie et al. (2023), https://arxiv.org/abs/2305.13245). 1 is
            multi-query.
        bias: of the maps; `output_bias`: of the output's, where it differs.
        dropout: probability of dropping a weight while training.
        score: what compares: a score (`scores.Cosine()`), a learned score (`nn.Additive(16, heads=8)`), or
            what makes one of `(head_width, head_width, heads=heads)`, such as the class `nn.Additive`.
        normalizer, mask: as in `qkv.attend`.
        positions: turns query and key by where they stand, such as `nn.positions.Rotary`; see `nn.Rotary`.
        query_key_norm: "rms" or "layer" brings each head's query and key to one length before they are
            compared (Dehghani et al. (2023), https://arxiv.org/abs/2302.05442, section 2).
        output_gate: what the heads give is multiplied by σ(W_G query), element by element (Qiu et al. (2025),
            https://arxiv.org/abs/2505.06708).
        temperature: a temperature of the softmax is learned for each head, from 1.
        sink: a logit that takes weight and gives no value is learned for each head, from 0 (Xiao et al.
            (2024), https://arxiv.org/abs/2309.17453).
        talking_heads: heads mix their logits and weights, from the identity; runs dense alone.
        learned_key, zero_key: one more key and value that every query may attend to, learned (from Glorot's
            normal), or 0.
        maps: which of W_Q and W_K there are: "both", one "shared" by query and key, only that of the "query"
            or of the "key", or "none". What is not mapped is cut into heads as it is.
        value_map, output_map: whether there are W_V and W_O.
        kernel, memory: as in `qkv.attend`.
        device, dtype: of the parameters.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, key_width)`, value `(*batch, k, value_width)` ->
        `(*batch, q, width)`. Masks, biases and readouts see `(*batch, heads, q, k)`.

    Raises:
        OptionError: widths that heads do not divide, an option outside what is allowed.

    Example:
        >>> from qkv import masks, nn
        >>> attention = nn.MultiHeadAttention(16, 4, score=nn.Additive, mask=masks.Causal())
        >>> attention(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        head_width: int | None = None,
        head_value_width: int | None = None,
        key_heads: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        dropout: float = 0.0,
        score: ScoreLike = None,
        normalizer: Normalizer | None = None,
        mask: Mask | None = None,
        positions: Rotary | None = None,
        query_key_norm: Literal["rms", "layer"] | None = None,
        output_gate: bool = False,
        temperature: bool = False,
        sink: bool = False,
        talking_heads: bool = False,
        learned_key: bool = False,
        zero_key: bool = False,
        maps: Maps = "both",
        value_map: bool = True,
        output_map: bool = True,
        kernel: str | None = None,
        memory: int | str = "512 MiB",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        widths = check_widths(
            width, heads, key_width, value_width, head_width, head_value_width, key_heads, maps, value_map,
            output_map,
        )  # fmt: skip
        self.width, self.heads, self.key_heads = width, heads, widths.key_heads
        self.key_width, self.value_width = widths.key_width, widths.value_width
        self.head_width, self.head_value_width = widths.head_width, widths.head_value_width
        self.maps = maps
        made_as = {"device": device, "dtype": dtype}

        def linear(of: int, to: int, there: bool = True, bias: bool = bias) -> Linear | None:
            return Linear(of, to, bias=bias, **made_as) if there else None

        compared, mixed = heads * self.head_width, heads * self.head_value_width
        self.query_map = linear(width, compared, maps in ("both", "shared", "query"))
        self.key_map = linear(self.key_width, self.key_heads * self.head_width, maps in ("both", "key"))
        self.value_map = linear(self.value_width, self.key_heads * self.head_value_width, value_map)
        output_bias = bias if output_bias is None else output_bias
        self.output_map = linear(mixed, width, output_map, output_bias)
        self.gate_map = linear(width, mixed, output_gate)
        self.query_norm = norm(query_key_norm, self.head_width, made_as)
        self.key_norm = norm(query_key_norm, self.head_width, made_as)
        self.score = made(score, self.head_width, self.head_width, heads, **made_as)
        self.normalizer = Held(normalizer)
        self.mask = Held(None if mask is None else require_mask(mask))
        self.positions = positions
        self.zero_key = zero_key

        def parameter(there: bool, *shape: int) -> torch.nn.Parameter | None:
            return torch.nn.Parameter(torch.empty(*shape, **made_as)) if there else None

        self.log_temperature = parameter(temperature, heads)
        self.sink = parameter(sink, heads)
        self.logit_mix = parameter(talking_heads, heads, heads)
        self.weight_mix = parameter(talking_heads, heads, heads)
        self.extra_key = parameter(learned_key, self.key_heads, 1, self.head_width)
        self.extra_value = parameter(learned_key, self.key_heads, 1, self.head_value_width)
        softmax_of(normalizer, temperature, sink)
        self.dropout = probability(dropout)
        self.kernel = calls.kernel_of(kernel, talking_heads)
        self.memory = memory
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill all parameters with their initial values."""
        for linear in (self.query_map, self.key_map, self.value_map, self.output_map, self.gate_map):
            if linear is not None:
                torch.nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    torch.nn.init.zeros_(linear.bias)
        for module in (self.query_norm, self.key_norm, self.score):
            if module is not None:
                reset: Any = module
                reset.reset_parameters()
        for zero in (self.log_temperature, self.sink):
            if zero is not None:
                torch.nn.init.zeros_(zero)
        for mix in (self.logit_mix, self.weight_mix):
            if mix is not None:
                torch.nn.init.eye_(mix)
        for extra in (self.extra_key, self.extra_value):
            if extra is not None:
                torch.nn.init.normal_(extra, std=(self.heads * extra.shape[-1]) ** -0.5)

    def forward(
        self,
        query: Tensor,
        key: Tensor | KeyValue | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        cache: Cache | None = None,
        readouts: Sequence[Readout] = (),
        positions: Positions | None = None,
    ) -> Tensor | Attended:
        """The output, or with readouts `Attended`.

        Args:
            query: `(*batch, q, width)`
            key: `(*batch, k, key_width)`; the query where None; or what `key_value` gave, mapped already.
            value: `(*batch, k, value_width)`; the key where None.
            mask: besides that of the module. Its batch axes are `(*batch)`, the same for all heads, or
                `(*batch, heads)`.
            bias: added to the logits, `(*batch, q, k)` or `(*batch, heads, q, k)`; −inf excludes a key.
            cache: earlier keys and values; those of this call are appended.
            readouts: what to read from the weights; the output stays the same.
            positions: how query positions relate to key positions, where that matters.
        """
        queries = self.queries(query)
        mapped = key if isinstance(key, KeyValue) else self.key_value(query if key is None else key, value)
        keys, values = mapped
        if self.positions is not None:
            queries, keys = calls.rotated(self.positions, queries, keys, cache, positions)
        if cache is not None:
            keys, values = cache.append(keys, values)
            mask = both(mask, cache.mask)
            positions = cache.positions if positions is None else positions
        axes = max(queries.ndim, keys.ndim) - 3
        expand = self.logit_mix is not None or calls.names_heads(readouts)
        groups = calls.groups_of(self.heads, self.key_heads, expand)
        mask = fitted(both(self.mask(), mask), axes, groups, False)
        extra = [(self.extra_key, self.extra_value)] if self.extra_key is not None else []
        given = keys.shape[-2]
        keys, values, mask = calls.with_extra(keys, values, mask, extra, self.zero_key)
        score, normalizer = self._parts(axes, groups)
        if bias is not None:
            bias = torch.nn.functional.pad(bias, (0, keys.shape[-2] - given))
            score = Biased(score, spread(bias, bias.ndim - 2, axes, groups, False))
        seen = run(
            *calls.grouped(queries, keys, values, groups, self.heads if expand else None),
            tuple([fitted(readout, axes, groups, False) for readout in readouts]),
            {
                "score": score,
                "normalizer": normalizer,
                "mask": mask,
                "positions": fitted(positions, axes, groups, False),
                "dropout": self.dropout if self.training else 0.0,
                "kernel": self.kernel,
                "memory": self.memory,
            },
        )
        if not isinstance(seen, Attended):
            return self._output(seen, query, groups)
        read = calls.heads_in_one(seen.readouts, axes, groups)
        return Attended(self._output(seen.output, query, groups), read, seen.plan)

    def queries(self, query: Tensor) -> Tensor:
        """Mapped queries `(*batch, heads, q, head_width)`, normed but not turned."""
        query = calls.wide("query", query, self.width)
        mapped = query if self.query_map is None else self.query_map(query)
        return calls.normed(self.query_norm, calls.cut(mapped, self.heads, self.head_width))

    def key_value(self, key: Tensor, value: Tensor | None = None) -> KeyValue:
        """Mapped keys and values, to be given as the key of many calls: those of an encoder, for each step of
        a decoder.
        """
        value = calls.wide("value", key if value is None else value, self.value_width)
        key = calls.wide("key", key, self.key_width)
        key_map = self.query_map if self.maps == "shared" else self.key_map
        key = key if key_map is None else key_map(key)
        value = value if self.value_map is None else self.value_map(value)
        keys = calls.normed(self.key_norm, calls.cut(key, self.key_heads, self.head_width))
        return KeyValue(keys, calls.cut(value, self.key_heads, self.head_value_width))

    def head(self, index: int) -> Head:
        """W_Q, W_K, W_V and W_O of one head, as views.

        Raises:
            OptionError: there is no such head.
        """
        index = calls.index_of_head(index, self.heads)
        of_key = index * self.key_heads // self.heads
        query, query_bias = rows_of_head(self.query_map, index, self.heads)
        shared = self.maps == "shared"
        key, key_bias = rows_of_head(self.query_map if shared else self.key_map, of_key, self.key_heads)
        value, value_bias = rows_of_head(self.value_map, of_key, self.key_heads)
        columns = slice(index * self.head_value_width, (index + 1) * self.head_value_width)
        output = None if self.output_map is None else self.output_map.weight[:, columns]
        return Head(query, key, value, output, query_bias, key_bias, value_bias)

    @classmethod
    def from_torch(cls, module: torch.nn.MultiheadAttention) -> Self:
        """The same attention, of PyTorch's module: its numbers, copied.

        The layout is `(batch, length, width)` whatever `batch_first` says, and masks are `qkv.masks`, where
        True means may attend: `nn.torch_masks` translates PyTorch's, where True means may not. A row whose
        keys are all masked gives the output's bias alone here, and NaN there.
        """
        from qkv.nn.torch_border import from_torch

        return from_torch(module, cls)

    def to_torch(self) -> torch.nn.MultiheadAttention:
        """PyTorch's module of the same numbers, copied, with `batch_first=True`.

        Raises:
            OptionError: it has no such attention; says why.
        """
        from qkv.nn.torch_border import to_torch

        return to_torch(self)

    def extra_repr(self) -> str:
        """Widths and heads."""
        said = f"width={self.width}, heads={self.heads}"
        if self.key_heads != self.heads:
            said += f", key_heads={self.key_heads}"
        return said + (f", maps={self.maps!r}" if self.maps != "both" else "")

    def _parts(self, axes: int, groups: tuple[int, int] | None) -> tuple[Score, Normalizer | None]:
        score: Score = self.score()
        normalizer: Normalizer | None = self.normalizer()
        if self.log_temperature is not None or self.sink is not None:
            normalizer = softmax_of(normalizer, self.log_temperature, self.sink)
        if self.logit_mix is not None:
            normalizer = normalizer or NORMALIZERS[score.default_normalizer]()
            score = MixedLogits(score, self.logit_mix)
            normalizer = MixedWeights(normalizer, self.weight_mix)
        return fitted(score, axes, groups, True), fitted(normalizer, axes, groups, True)

    def _output(self, heads: Tensor, query: Tensor, groups: tuple[int, int] | None) -> Tensor:
        output = (heads if groups is None else heads.flatten(-4, -3)).transpose(-3, -2).flatten(-2)
        if self.gate_map is not None:
            output = output * self.gate_map(query).sigmoid()
        return output if self.output_map is None else self.output_map(output)
