"""PyTorch module for multi-head attention with projections and any score, normalizer and mask."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.nn import Linear

from qkv.cache.kernel import ChunkedTensor, concat_chunks
from qkv.core.arrays import namespace
from qkv.core.checks import check_choice, check_probability
from qkv.core.head_widths import HeadWidths
from qkv.core.map_batch import Groups, align_array, align_batch
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.core.typing import Array, Bool, DType, Float, Shaped
from qkv.engine import attend
from qkv.errors import KindError
from qkv.masks.base import Mask, and_masks, require_mask
from qkv.nn import head_layout, torch_interop
from qkv.nn.attention import add_cache_mask, run_attention
from qkv.nn.checks import check_width, require_cache, require_rotation
from qkv.nn.decoding_step import append_and_attend, attend_step, decode
from qkv.nn.feed_forward import init_linear
from qkv.nn.head_layout import Head, head_rows
from qkv.nn.multihead_options import (
    Bias,
    Extension,
    FactoryKwargs,
    Map,
    NormOption,
    add_softmax_parameters,
    build_norm,
    check_maps,
    check_names,
    check_softmax,
)
from qkv.nn.part_module import PartModule, aligned_part
from qkv.nn.protocols import AttentionOutput, Cache, KeyValue, Rotation
from qkv.nn.scores.base import ScoreLike, build_score
from qkv.nn.sequence_parallel import attend_to_shards
from qkv.nn.talking_heads import MixedLogits, MixedWeights, check_kernel
from qkv.nn.torch_interop import explain_torch_arguments
from qkv.normalizers import NORMALIZERS, Normalizer
from qkv.normalizers.base import require_normalizer
from qkv.plan.checks import as_readouts
from qkv.readouts import Readout
from qkv.scores import Biased, Score


@dataclass(frozen=True, eq=False)
class ExtraKeysMask(Mask):
    """Mask that applies an inner mask to all keys but the last `extra` ones, which it always allows.

    The inner mask is evaluated without the extra keys: its arrays have one element for each other key, and causal
    alignment is relative to the other keys.

    Example:
        >>> import numpy as np
        >>> from qkv.core.tile import Tile
        >>> from qkv.masks import Causal
        >>> ExtraKeysMask(Causal(), 1).allowed(Tile.whole(2, 3), np.zeros(()))
        array([[ True, False,  True],
               [ True,  True,  True]])
    """

    mask: Mask
    extra: int

    def check(self, q: int, k: int) -> None:
        self.mask.check(q, k - self.extra)

    def bind(
        self,
        reference: Shaped[Array, "*_"],
        batch: tuple[int, ...],
        dtype: DType = None,
        lengths: dict[str, int] | None = None,
    ) -> Self:
        """Return the mask with its inner mask bound to the arrays of a call, without the extra keys."""
        lengths = dict(lengths or {})
        if "k" in lengths:
            lengths["k"] -= self.extra
        return dataclasses.replace(self, mask=self.mask.bind(reference, batch, dtype, lengths))

    def allowed(self, tile: Tile, reference: Shaped[Array, "*_"]) -> Bool[Array, "*batch q k"]:
        k = tile.k_total - self.extra
        # torch.export cannot decide min(n, n + 1) for an unknown n.
        stop = k if tile.cols[1] == tile.k_total else min(tile.cols[1], k)
        inner = dataclasses.replace(tile, cols=(min(tile.cols[0], k), stop), k_total=k)
        extra = tile.cols[1] - tile.cols[0] - (inner.cols[1] - inner.cols[0])
        xp = namespace(reference)
        allowed = self.mask.allowed(inner, reference)
        shape = (*allowed.shape[:-2], tile.rows[1] - tile.rows[0])
        allowed = xp.broadcast_to(allowed, (*shape, inner.cols[1] - inner.cols[0]))
        always = xp.ones_like(allowed[..., :1]) if allowed.shape[-1] else xp.ones((*shape, 1), dtype=xp.bool)
        joined: Array = xp.concat([allowed, xp.broadcast_to(always, (*shape, extra))], axis=-1)
        return joined

    def __str__(self) -> str:
        return f"({self.mask} and {self.extra} extra keys)"


def append_extra_keys(
    key: Float[Tensor, "*#batch key_heads k head_width"] | ChunkedTensor,
    value: Float[Tensor, "*#batch key_heads k head_value_width"] | ChunkedTensor,
    mask: Mask | None,
    learned: Sequence[tuple[Float[Tensor, "key_heads 1 head_width"], Float[Tensor, "key_heads 1 head_value_width"]]],
    zero: bool,
) -> tuple[
    Float[Tensor, "*#batch key_heads all_keys head_width"] | ChunkedTensor,
    Float[Tensor, "*#batch key_heads all_keys head_value_width"] | ChunkedTensor,
    Mask | None,
]:
    """Return keys, values and mask, extended by learned keys and values and, if `zero`, by a zero key and value."""
    if not learned and not zero:
        return key, value, mask
    all_keys, all_values = concat_chunks(key), concat_chunks(value)
    extra = [(k.to(all_keys.dtype), v.to(all_values.dtype)) for k, v in learned]
    if zero:
        zeros = all_keys.new_zeros(1, 1, all_keys.shape[-1]), all_values.new_zeros(1, 1, all_values.shape[-1])
        extra.append(zeros)
    keys = [all_keys, *[k.expand(*all_keys.shape[:-2], 1, all_keys.shape[-1]) for k, _ in extra]]
    values = [all_values, *[v.expand(*all_values.shape[:-2], 1, all_values.shape[-1]) for _, v in extra]]
    mask = None if mask is None else ExtraKeysMask(mask, len(extra))
    return torch.cat(keys, -2), torch.cat(values, -2), mask


@explain_torch_arguments
class MultiHeadAttention(torch.nn.Module):
    """Multi-head attention with projections and any score, normalizer and mask.

        head_h = attend(query W_Q_h, key W_K_h, value W_V_h)          output = Σ_h head_h W_O_h

    Projections are initialized uniformly as in Glorot and Bengio (2010), biases with 0.

    Args:
        width: width of the query and of the output.
        heads: number of heads.
        key_width: width of the key input; None means `width`.
        value_width: width of the value input; None means `key_width`.
        head_width: width of a head's projected query and key; None means `width / heads`.
        head_value_width: width of a head's projected value; None means `head_width`.
        key_heads: number of key and value heads; each serves `heads / key_heads` consecutive query heads
            (grouped-query attention, Ainslie et al. (2023), https://arxiv.org/abs/2305.13245). 1 is
            multi-query attention.
        bias: whether the projections have a bias: all or none of them, the output projection alone ("output"), or all
            but it ("inputs").
        dropout: probability of dropping a weight during training.
        score: a score (`scores.Cosine()`), a learned score (`nn.Additive(16, heads=8)`), or a callable that
            builds one from `(head_width, head_width, heads=heads)`, such as the class `nn.Additive`.
        normalizer: as in `qkv.attend`.
        mask: as in `qkv.attend`.
        positions: rotation of queries and keys by their positions, such as `nn.positions.Rotary`; any
            `nn.Rotation`.
        query_key_norm: normalization of each head's query and key before the score and `positions`: "rms", "layer"
            (Dehghani et al. (2023), https://arxiv.org/abs/2302.05442, section 2), "l2" for vectors of length 1
            (Henry et al. (2020), https://arxiv.org/abs/2010.04245), or a function that builds a module from the head
            width, such as `lambda width: torch.nn.RMSNorm(width, eps=1e-6)`.
        extensions: names of extensions of the method:
            "temperature": each head learns a temperature of the softmax, initially 1.
            "sink": each head learns a sink: the logit, initially 0, of an additional key that has no value
            (Xiao et al. (2024), https://arxiv.org/abs/2309.17453).
            "talking_heads": learned matrices, initially the identity, mix the logits and the weights across
            heads. This requires the dense kernel.
            "output_gate": the heads' outputs are multiplied elementwise by σ(W_G query) (Qiu et al. (2025),
            https://arxiv.org/abs/2505.06708).
            "learned_key": a learned key and value, which every query may attend to, are appended. They are
            initialized from a normal distribution with Glorot's variance.
            "zero_key": a key and value of zeros are appended.
        maps: the projections that exist, of "query", "key", "value" and "output"; "shared" in place of "query" and
            "key" means that W_Q also projects the key. An input without projection is split into heads directly.
        kernel, memory: as in `qkv.attend`.
        device, dtype: those of the parameters.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, key_width)`, value `(*batch, k, value_width)` ->
        `(*batch, q, width)`. Masks, biases and readouts have shape `(*batch, heads, q, k)`.

    Raises:
        OptionError: if heads do not divide the widths, or an option is not allowed.

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
        bias: Bias = True,
        dropout: float = 0.0,
        score: ScoreLike = None,
        normalizer: Normalizer | None = None,
        mask: Mask | None = None,
        positions: Rotation | None = None,
        query_key_norm: NormOption = None,
        extensions: Collection[Extension] = (),
        maps: Collection[Map] = ("query", "key", "value", "output"),
        kernel: str | None = None,
        memory: int | str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("bias", bias, (True, False, "inputs", "output"))
        extensions, self.maps = check_names("extensions", extensions, Extension), check_names("maps", maps, Map)
        widths = HeadWidths.of(width, heads, key_width, value_width, head_width, head_value_width, key_heads)
        check_maps(widths, self.maps)
        self.width, self.heads, self.key_heads = width, heads, widths.key_heads
        self.key_width, self.value_width = widths.key_width, widths.value_width
        self.head_width, self.head_value_width = widths.head_width, widths.head_value_width
        factory_kwargs: FactoryKwargs = {"device": device, "dtype": dtype}

        def linear(inputs: int, outputs: int, present: bool, side: str = "inputs") -> Linear | None:
            return Linear(inputs, outputs, bias=bias in (True, side), **factory_kwargs) if present else None

        mixed = heads * self.head_value_width
        self.query_map = linear(width, heads * self.head_width, bool({"query", "shared"} & set(self.maps)))
        self.key_map = linear(self.key_width, self.key_heads * self.head_width, "key" in self.maps)
        self.value_map = linear(self.value_width, self.key_heads * self.head_value_width, "value" in self.maps)
        self.output_map = linear(mixed, width, "output" in self.maps, "output")
        self.gate_map = linear(width, mixed, "output_gate" in extensions)
        self.query_norm = build_norm(query_key_norm, self.head_width, factory_kwargs)
        self.key_norm = build_norm(query_key_norm, self.head_width, factory_kwargs)
        self.score = build_score(score, self.head_width, self.head_width, heads, **factory_kwargs)
        self.normalizer = PartModule(None if normalizer is None else require_normalizer(normalizer))
        self.mask = PartModule(None if mask is None else require_mask(mask))
        self.positions = None if positions is None else require_rotation(positions)
        self.zero_key = "zero_key" in extensions

        def parameter(extension: Extension, *shape: int) -> torch.nn.Parameter | None:
            return torch.nn.Parameter(torch.empty(*shape, **factory_kwargs)) if extension in extensions else None

        self.log_temperature = parameter("temperature", heads)
        self.sink = parameter("sink", heads)
        self.logit_mix = parameter("talking_heads", heads, heads)
        self.weight_mix = parameter("talking_heads", heads, heads)
        self.extra_key = parameter("learned_key", self.key_heads, 1, self.head_width)
        self.extra_value = parameter("learned_key", self.key_heads, 1, self.head_value_width)
        check_softmax(normalizer, "temperature" in extensions or "sink" in extensions)
        self.dropout = check_probability(dropout)
        self.kernel = check_kernel(kernel, "talking_heads" in extensions)
        self.memory = memory
        self.process_group: object = None
        self.order = "contiguous"
        self.reset_parameters()

    def shard_sequence(self, group: object, order: str = "contiguous") -> Self:
        """Return the module, which from now on takes the part of the sequence that each process of a group holds.

        Sum the gradients of parameters over the group.

        Args:
            group: the group, as in `qkv.distributed.attend`.
            order: which part a process holds, as in `qkv.distributed.attend`.
        """
        self.process_group, self.order = group, order
        return self

    def reset_parameters(self) -> None:
        """Initialize all parameters again, as in a new module."""
        init_linear(self.query_map, self.key_map, self.value_map, self.output_map, self.gate_map)
        for module in (self.query_norm, self.key_norm):
            for part in () if module is None else module.modules():
                if callable(reset := getattr(part, "reset_parameters", None)):
                    reset()
        self.score.reset_parameters()
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
        query: Float[Tensor, "*#batch q width"],
        key: Float[Tensor, "*#batch k key_width"] | KeyValue | None = None,
        value: Float[Tensor, "*#batch k value_width"] | None = None,
        *,
        mask: Mask | None = None,
        bias: Float[Tensor, "*_ #q all_keys"] | None = None,
        cache: Cache | None = None,
        readouts: Sequence[Readout] = (),
        positions: Positions | None = None,
    ) -> Float[Tensor, "*batch q width"] | AttentionOutput:
        """Return the attention output, or an `AttentionOutput` if readouts are requested.

        Args:
            query: query input.
            key: key input, or the result of `key_value`, which is not projected again; None means the query.
            value: value input; None means the key.
            mask: further mask, combined with the module's own. Its batch axes are `(*batch)`, the same for
                all heads, or `(*batch, heads)`.
            bias: added to the logits, `(*batch, q, k)` or `(*batch, heads, q, k)`; −inf excludes a key.
            cache: keys and values of earlier calls; those of this call are appended.
            readouts: quantities to read from the weights. The output does not change.
            positions: positions of the queries among the keys, as in `qkv.attend`.
        """
        if self.process_group is not None:
            others: dict[str, object] = {"cache": cache, "readouts": readouts or None, "positions": positions}
            heads, groups = attend_to_shards(self, query, key, value, mask, bias, others)
            return self._project_output(heads, query, groups)
        simple = not readouts and mask is None and bias is None and positions is None
        if cache is not None:
            require_cache(cache)
            if simple and key is None and value is None and self._is_plain:
                parts = self.score, self.normalizer, self.mask
                output = None if self.positions or self.query_norm else decode(cache, query, self, parts)
                if output is not None:
                    return self._project_output(output, query, None)
        readouts = as_readouts(readouts)
        queries = self.queries(query)
        projected = key if isinstance(key, KeyValue) else self.key_value(query if key is None else key, value)
        key, value = projected
        if self.positions is not None:
            queries, key = head_layout.apply_rotation(self.positions, queries, key, cache, positions)
        if simple and cache is not None and self._is_plain:
            output = append_and_attend(cache, queries, key, value, (self.score, self.normalizer, self.mask))
            if output is not None:
                return self._project_output(output, query, None)
        keys, values = (key, value) if cache is None else cache.append(key, value)
        if simple and cache is not None and self._is_plain:
            output = attend_step(cache, queries, keys, values, self.score, self.normalizer, self.mask, self.memory)
            if output is not None:
                return self._project_output(output, query, None)
        axes = max(queries.ndim, keys.ndim) - 3
        if simple and cache is None and self.heads == self.key_heads and self._is_plain:
            score, normalizer = self._parts(axes, None)
            own = aligned_part(self.mask, axes, None, False)
            found = attend(queries, keys, values, score=score, normalizer=normalizer, mask=own, memory=self.memory)
            return self._project_output(cast("Tensor", found), query, None)
        mask, positions = add_cache_mask(cache, mask, positions)
        expand = self.logit_mix is not None or head_layout.selects_heads(readouts)
        groups = head_layout.head_groups(self.heads, self.key_heads, expand)
        mask = align_batch(and_masks(self.mask(), mask), axes, groups, False)
        extra_key, extra_value = self.extra_key, self.extra_value
        learned = [] if extra_key is None or extra_value is None else [(extra_key, extra_value)]
        k = keys.shape[-2]
        keys, values, mask = append_extra_keys(keys, values, mask, learned, self.zero_key)
        score, normalizer = self._parts(axes, groups)
        if bias is not None:
            bias = torch.nn.functional.pad(bias, (0, keys.shape[-2] - k))
            score = Biased(score, align_array(bias, bias.ndim - 2, axes, groups, False))
        result = run_attention(
            *head_layout.group_heads(queries, keys, values, groups, self.heads if expand else None),
            tuple([align_batch(readout, axes, groups, False) for readout in readouts]),
            {
                "score": score,
                "normalizer": normalizer,
                "mask": mask,
                "positions": align_batch(positions, axes, groups, False),
                "dropout": self.dropout if self.training else 0.0,
                "kernel": self.kernel,
                "memory": self.memory,
            },
            cache,
        )
        if not isinstance(result, AttentionOutput):
            return self._project_output(result, query, groups)
        output = self._project_output(result.output, query, groups)
        return AttentionOutput(output, head_layout.merge_group_axes(result.readouts, axes, groups), result.plan)

    def queries(self, query: Float[Tensor, "*batch q width"]) -> Float[Tensor, "*batch heads q head_width"]:
        """Return the projected queries, split into heads and normalized if `query_key_norm` is set, but not rotated."""
        query = check_width("query", query, self.width)
        query_map = self.query_map
        projected = query if query_map is None else query_map(query)
        return head_layout.apply_norm(self.query_norm, head_layout.split_heads(projected, self.heads, self.head_width))

    def key_value(
        self, key: Float[Tensor, "*batch k key_width"], value: Float[Tensor, "*batch k value_width"] | None = None
    ) -> KeyValue:
        """Return projected keys and values, which can be passed as `key` to many calls of the module.

        A decoder projects the output of its encoder once this way, instead of at every step.
        """
        value = check_width("value", key if value is None else value, self.value_width)
        key = check_width("key", key, self.key_width)
        key_map = self.query_map if "shared" in self.maps else self.key_map
        key = key if key_map is None else key_map(key)
        value_map = self.value_map
        value = value if value_map is None else value_map(value)
        keys = head_layout.split_heads(key, self.key_heads, self.head_width)
        return KeyValue(
            head_layout.apply_norm(self.key_norm, keys),
            head_layout.split_heads(value, self.key_heads, self.head_value_width),
        )

    def head(self, index: int) -> Head:
        """Return the projections of one head, W_Q, W_K, W_V and W_O with their biases, as views of the parameters.

        Raises:
            OptionError: if `index` is out of range.
        """
        index = head_layout.check_head_index(index, self.heads)
        key_index = index * self.key_heads // self.heads
        query, query_bias = head_rows(self.query_map, index, self.heads)
        shared = "shared" in self.maps
        key, key_bias = head_rows(self.query_map if shared else self.key_map, key_index, self.key_heads)
        value, value_bias = head_rows(self.value_map, key_index, self.key_heads)
        columns = slice(index * self.head_value_width, (index + 1) * self.head_value_width)
        output = None if self.output_map is None else self.output_map.weight[:, columns]
        return Head(query, key, value, output, query_bias, key_bias, value_bias)

    @classmethod
    def from_torch(cls, module: torch.nn.MultiheadAttention) -> Self:
        """Return a module with copies of the parameters of a `torch.nn.MultiheadAttention`.

        The layout is `(batch, length, width)` whatever `batch_first` is, and masks are `qkv.masks`, where True
        means may attend: `nn.torch_masks` translates PyTorch's masks, where True means may not. A query whose
        keys are all masked gives the output bias here and NaN in PyTorch.

        Raises:
            KindError: if `module` is of another class.
        """
        return torch_interop.from_torch(module, cls)

    def to_torch(self) -> torch.nn.MultiheadAttention:
        """Return a `torch.nn.MultiheadAttention` with copies of the parameters and with `batch_first=True`.

        Raises:
            OptionError: if PyTorch's module does not support an option of this module; the message lists the options.
        """
        return torch_interop.to_torch(self)

    def extra_repr(self) -> str:
        """Return the width, the numbers of heads and the projections, if any is missing, as text for `print`."""
        text = f"width={self.width}, heads={self.heads}"
        if self.key_heads != self.heads:
            text += f", key_heads={self.key_heads}"
        complete = None not in (self.query_map, self.key_map, self.value_map, self.output_map)
        return text if complete else f"{text}, maps={self.maps}"

    @property
    def _is_plain(self) -> bool:
        """Whether the attention of a call is that of the score, normalizer and mask alone, by any kernel."""
        if self.extra_key is not None or self.log_temperature is not None or self.sink is not None:
            return False
        plain = self.logit_mix is None and self.kernel is None
        return plain and not self.zero_key and not (self.dropout and self.training)

    def _parts(self, axes: int, groups: Groups) -> tuple[Score, Normalizer | None]:
        if self.log_temperature is None and self.sink is None and self.logit_mix is None:
            return aligned_part(self.score, axes, groups, True), aligned_part(self.normalizer, axes, groups, True)
        score, normalizer = self.score(), self.normalizer()
        if self.log_temperature is not None or self.sink is not None:
            normalizer = add_softmax_parameters(normalizer, self.log_temperature, self.sink)
        if self.logit_mix is not None:
            normalizer = normalizer or NORMALIZERS[score.default_normalizer]()
            score = MixedLogits(score, self.logit_mix)
            normalizer = MixedWeights(normalizer, self.weight_mix)
        return align_batch(score, axes, groups, True), align_batch(normalizer, axes, groups, True)

    def _project_output(
        self,
        heads: Float[Tensor, "*batch_heads q head_value_width"],
        query: Float[Tensor, "*#batch q width"],
        groups: Groups,
    ) -> Float[Tensor, "*batch q width"]:
        output = head_layout.merge_heads(heads if groups is None else heads.flatten(-4, -3))
        if self.gate_map is not None:
            output = output * self.gate_map(query).sigmoid()
        output_map = self.output_map
        return output if output_map is None else output_map(output)


@explain_torch_arguments
class SelfAttention(MultiHeadAttention):
    """Multi-head self-attention, called as `module(x)`.

    Args:
        width: width of a token.
        heads: number of heads.
        options: further options of `MultiHeadAttention`.

    Raises:
        KindError: in a call that passes a key or value.

    Example:
        >>> import torch
        >>> SelfAttention(8)(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def forward(
        self,
        query: Float[Tensor, "*batch q width"],
        key: Float[Tensor, "*#batch k key_width"] | KeyValue | None = None,
        value: Float[Tensor, "*#batch k value_width"] | None = None,
        **options: Any,
    ) -> Float[Tensor, "*batch q width"] | AttentionOutput:
        """Return the attention output for the sequence `query`, with the options of `MultiHeadAttention.forward`."""
        if key is not None or value is not None:
            raise KindError(
                "key and value must be None for SelfAttention, got a key or value. Use CrossAttention "
                "for two sequences."
            )
        return super().forward(query, **options)


@explain_torch_arguments
class CrossAttention(MultiHeadAttention):
    """Multi-head attention from one sequence to another, called as `module(query, source)`.

    Args:
        width: width of the query and the output.
        key_width: width of the other sequence; None means `width`.
        heads: number of heads.
        options: further options of `MultiHeadAttention`.

    Raises:
        KindError: in a call without a key.

    Example:
        >>> import torch
        >>> CrossAttention(8, 6)(torch.randn(2, 3, 8), torch.randn(2, 5, 6)).shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, width: int, key_width: int | None = None, heads: int = 1, **options: Any) -> None:
        super().__init__(width, heads, key_width=key_width, **options)

    def forward(
        self,
        query: Float[Tensor, "*#batch q width"],
        key: Float[Tensor, "*#batch k key_width"] | KeyValue | None = None,
        value: Float[Tensor, "*#batch k value_width"] | None = None,
        **options: Any,
    ) -> Float[Tensor, "*batch q width"] | AttentionOutput:
        """Return the output of attention from `query` to `key`, with the options of `MultiHeadAttention.forward`."""
        if key is None:
            raise KindError("key must be given for CrossAttention, got None. Use SelfAttention for a single sequence.")
        return super().forward(query, key, value, **options)
