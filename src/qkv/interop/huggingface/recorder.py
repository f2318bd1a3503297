"""Collection of readouts of the attention layers of a PyTorch or Hugging Face model while the model runs."""

from __future__ import annotations

import contextlib
import fnmatch
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType

import torch
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from qkv.core.arrays import is_array
from qkv.core.tile import Tile
from qkv.core.typing import Bool, Float, ReadoutResult, Shaped, Tensor
from qkv.errors import KindError, OptionError
from qkv.interop.huggingface.attention_call import AttentionCall, is_causal, key_padding
from qkv.interop.huggingface.attention_record import AttentionRecord, ObservedCall, SavedCall, observe_call
from qkv.interop.huggingface.coverage import BypassWarning, engine_attention
from qkv.interop.huggingface.model_layers import (
    AttentionKind,
    attention_kind,
    attention_layers,
    is_attention,
    module_names,
    nested,
    pretrained_models,
    uses_interface,
)
from qkv.interop.huggingface.module_record import hook_module, is_module, record_module
from qkv.interop.huggingface.registration import add_listener
from qkv.masks import AllowedKeys, AllowedPairs, Causal
from qkv.masks.base import Mask, and_masks
from qkv.nn.observe_model import ModuleCall
from qkv.nn.protocols import COLLECT, CallInputs
from qkv.normalizers import Softmax
from qkv.readouts import LogSumExp, Readout
from qkv.scores import Biased, ScaledDot, Score


@contextlib.contextmanager
def torch_fast_path_disabled() -> Iterator[None]:
    """Make the modules of `torch.nn` call their attention modules, instead of kernels that fuse a whole layer."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def torch_call(
    module: torch.nn.MultiheadAttention, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[AttentionCall, AttentionKind]:
    """Return the call of `qkv.attend` that computes the attention of a call of a PyTorch module, and its kind.

    All options of the module are supported: separate widths of key and value, learned and zero keys, which follow the
    other keys, boolean and floating-point masks, both layouts, and inputs without batch axis, which get one. The
    weights of a query whose keys are all masked are 0, where PyTorch's are NaN. The kind is "self" if query and key
    are the same tensor.
    """
    return _translate(module, *args, **kwargs)  # type: ignore[arg-type]


@torch.no_grad()
def _translate(
    module: torch.nn.MultiheadAttention,
    query: Float[Tensor, "*query_axes width"],
    key: Float[Tensor, "*key_axes key_width"],
    value: Float[Tensor, "*key_axes value_width"],
    key_padding_mask: Shaped[Tensor, "*batch k"] | None = None,
    need_weights: bool = True,
    attn_mask: Shaped[Tensor, "*batch_heads q k"] | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[AttentionCall, AttentionKind]:
    kind: AttentionKind = "self" if query is key else "cross"
    if query.ndim == 2:
        query, key, value = query[None], key[None], value[None]
        key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
    elif not module.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    weights: tuple[Tensor, ...] = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    query, key, value = map(functional.linear, (query, key, value), weights, biases)
    batch, keys = query.shape[0], key.shape[1]
    if module.bias_k is not None and module.bias_v is not None:
        key, value = (
            torch.cat([x, extra.expand(batch, 1, -1)], 1) for x, extra in ((key, module.bias_k), (value, module.bias_v))
        )
    if module.add_zero_attn:
        key, value = (functional.pad(x, (0, 0, 0, 1)) for x in (key, value))
    query, key, value = (x.reshape(*x.shape[:2], module.num_heads, -1).transpose(1, 2) for x in (query, key, value))
    mask: Mask | None = None
    score: Score = ScaledDot()
    added = key.shape[2] - keys
    if attn_mask is not None:
        if attn_mask.ndim == 3:
            attn_mask = attn_mask.reshape(batch, module.num_heads, *attn_mask.shape[1:])
        allowed, bias = _split_mask(attn_mask[(None,) * (4 - attn_mask.ndim)], added)
        mask = _pairs_mask(allowed)
        score = score if bias is None else Biased(score, bias=bias.to(query.dtype))
    if key_padding_mask is not None:
        allowed, bias = _split_mask(key_padding_mask, added)
        mask = and_masks(mask, AllowedKeys(allowed[:, None]))
        score = score if bias is None else Biased(score, bias=bias[:, None, None].to(query.dtype))
    return AttentionCall.of(query, key, value, module.num_heads, score=score, mask=mask), kind


def _split_mask(
    mask: Shaped[Tensor, "*_ keys"], added: int
) -> tuple[Bool[Tensor, "*_ all_keys"], Float[Tensor, "*_ all_keys"] | None]:
    """Return which elements of a mask of PyTorch allow a key, and the finite elements to add to the logits, if any.

    All queries may attend to the `added` further keys.
    """
    mask = functional.pad(mask, (0, added))  # with False or 0
    if mask.dtype == torch.bool:
        return ~mask, None
    allowed = mask != -torch.inf
    bias = torch.where(allowed, mask, 0)
    return allowed, bias if bool(bias.any()) else None


def _pairs_mask(allowed: Bool[Tensor, "#batch #heads q k"]) -> Mask | None:
    """Return the mask that allows the given pairs; a `Causal` mask instead of an equal array."""
    if bool(allowed.all()):
        return None
    q, k = allowed.shape[-2:]
    if q == k and bool((allowed == allowed.new_ones(q, k).tril()).all()):
        return Causal()
    return AllowedPairs(allowed)


def request_weights(model: torch.nn.Module) -> list[RemovableHandle]:
    """Add hooks that pass `output_attentions=True` to each submodel that accepts it, and return the hooks."""
    if not pretrained_models(model):
        return []  # without an import of transformers, which need not be installed
    from transformers import PreTrainedModel

    def request(
        module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        return args, {**kwargs, "output_attentions": True}

    hooks = []
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            parameters = inspect.signature(module.forward).parameters
            if "output_attentions" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                hooks.append(module.register_forward_pre_hook(request, with_kwargs=True))
    return hooks


def find_weights(output: object, found: list[weakref.ref[torch.Tensor]]) -> Float[Tensor, "batch heads q k"] | None:
    """Return the attention weights in the output of a layer, or None if the output contains no weights.

    Weights are recognized as a tensor of four axes that is non-negative and whose rows sum to at most 1.
    """
    if not isinstance(output, (tuple, list)) or not isinstance(output[0], torch.Tensor):
        return None
    length = output[0].shape[1] if output[0].ndim > 2 else None
    for x in output[1:]:
        if not isinstance(x, torch.Tensor) or x.ndim != 4 or not x.is_floating_point():
            continue
        if x.shape[-2] != length or any(weights() is x for weights in found):
            continue
        total = x.detach().sum(-1)
        if bool((x >= 0).all()) and bool((total <= 1 + 1e-3).all()) and bool((total > 1e-3).any()):
            found.append(weakref.ref(x))
            return x
    return None


def read_weights(readout: Readout, weights: Float[Tensor, "batch heads q k"]) -> ReadoutResult:
    """Return the result of a readout computed from `weights`, or None for `LogSumExp`, which needs logits."""
    if isinstance(getattr(readout, "readout", readout), LogSumExp):
        return None
    batch, heads, q, k = weights.shape
    tile = Tile.whole(q, k, (batch, heads))
    readout.check(tile)
    result = readout.read(torch.log(weights), weights, Softmax(), tile)
    return readout.finalize(result, tile)


def record(
    model: torch.nn.Module,
    readouts: Sequence[Readout],
    *,
    layers: Iterable[str | int] | str | int | None = None,
    heads: Iterable[int] | None = None,
    save_inputs: bool = False,
    consume: Callable[[str, AttentionRecord], None] | None = None,
    name: str = "qkv",
) -> Recorder:
    """Return a context manager that collects readouts of the attention layers of a model while it runs.

    The model may run any number of times and in any way, including `generate`. Up to rounding, the output of
    the model does not change, and the model is restored afterwards, even after an exception. The only additional
    memory is for the readouts: only `Dense` allocates an array of q · k elements. Readouts see the weights before
    dropout, and no gradient flows through them.

    Of other models than those of transformers, and of modules that contain such a model, the calls of
    `torch.nn.MultiheadAttention` are recorded, also those of `nn.TransformerEncoder`, `nn.TransformerDecoder` and
    `nn.Transformer`, and those of the attention modules of `qkv.nn`. PyTorch's fast
    path is off meanwhile, so that an encoder computes outputs at padded positions, which the fast path sets to 0. The
    weights of a row without any allowed key are 0, where PyTorch's are NaN.

    For layers that bypass the attention interface, readouts are computed from the weights returned with
    `output_attentions=True`, which are arrays of q · k elements; a warning names these layers.

    Args:
        model: a model of transformers, or another PyTorch module.
        readouts: readouts from `qkv.readouts`; their results have batch axes (batch, heads).
        layers: names of layers, with wildcards as in file names (`"encoder.layer.0.*"`), or their indices in
            the order of the model; None for all.
        heads: indices of heads; None for all.
        save_inputs: whether to save query, key and log-sum-exp, so that `AttentionRecord.tile` can recompute weights.
        consume: function that is called with the name of the layer and the record of each call while the model runs.
            The `Recorder` then keeps no records, so that the weights of one layer at a time are in memory.
        name: a registered name, used if the model does not use qkv yet.

    Returns:
        A `Recorder`, whose `layers` maps names of layers to the records of their calls.

    Warns:
        BypassWarning: when the block ends, if layers bypass the attention interface.

    Raises:
        KindError: a readout is not a `Readout`.
        OptionError: no layer matches a name, or `name` is not registered.

    Example:
        >>> import torch, transformers
        >>> from qkv.readouts import TopWeights
        >>> config = transformers.BertConfig(
        ...     vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2
        ... )
        >>> model = transformers.BertModel(config).eval()
        >>> with record(model, [TopWeights(3)]) as recorder:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
        >>> list(recorder.layers)
        ['encoder.layer.0.attention.self', 'encoder.layer.1.attention.self']
        >>> recorder.layers["encoder.layer.0.attention.self"][0].readouts[0].weights.shape
        torch.Size([1, 2, 4, 3])
    """
    return Recorder(model, readouts, layers, heads, save_inputs, name, consume)


class Recorder:
    """Context manager that records the attention calls of a model, as returned by `record`.

    Attributes:
        layers: for each layer name, one record for each call of the layer, in order.
        missed: names of attention layers that ran and could not be recorded.
        materialized: names of layers whose readouts were computed from weights that the model returned.
        calls: number of forward passes of the model so far.

    Example:
        >>> import torch, transformers
        >>> from qkv import readouts
        >>> from qkv.interop import huggingface
        >>> sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
        >>> model = transformers.BertModel(transformers.BertConfig(num_hidden_layers=2, **sizes)).eval()
        >>> with huggingface.record(model, [readouts.Entropy()], layers=[1]) as recorder:
        ...     _ = model(torch.tensor([[1, 2, 3]]))
        >>> recorder.calls, list(recorder.layers), recorder.missed
        (1, ['encoder.layer.1.attention.self'], ())
    """

    def __init__(
        self,
        model: torch.nn.Module,
        readouts: Sequence[Readout],
        layers: Iterable[str | int] | str | int | None = None,
        heads: Iterable[int] | None = None,
        save_inputs: bool = False,
        name: str = "qkv",
        consume: Callable[[str, AttentionRecord], None] | None = None,
    ) -> None:
        for readout in readouts:
            if not isinstance(readout, Readout):
                raise KindError(
                    f"readouts must be instances of qkv.readouts.Readout, got {readout!r}. Pass a list such as "
                    "[TopWeights(5)]."
                )
        self.readouts, self.save_inputs = tuple(readouts), save_inputs
        self.layers: dict[str, list[AttentionRecord]] = {}
        self.missed: tuple[str, ...] = ()
        self.materialized: tuple[str, ...] = ()
        self._model, self._name, self._consume = model, name, consume or self._keep
        self._heads = None if heads is None else tuple(heads)
        self._names = module_names(model)
        self._selected = _select_layers(self._names, layers)
        self.calls = 0
        self._found_weights: list[weakref.ref[torch.Tensor]] = []

    def __enter__(self) -> Recorder:
        model = self._model
        with contextlib.ExitStack() as stack:
            stack.callback(self._found_weights.clear)
            self._counter = stack.enter_context(engine_attention(model, self._name))
            stack.enter_context(torch_fast_path_disabled())
            attention = [x for x in self._names if is_attention(x)]
            innermost = [x for x in attention if not any(y is not x and is_attention(y) for y in x.modules())]
            hooked = [x for x in attention if isinstance(x, torch.nn.MultiheadAttention)]
            covered = all(
                x in hooked or is_module(x) or uses_interface(x) or _neighbor_uses_interface(x, self._names)
                for x in innermost
            )
            hooks = [add_listener(module, self._on_call) for module in self._names]
            hooks += [x.register_forward_hook(self._on_torch, with_kwargs=True) for x in hooked]
            for x in filter(is_module, self._names):
                hooks += hook_module(x, self.readouts, self._on_module, self.save_inputs)
            hooks.append(model.register_forward_pre_hook(self._on_run))
            if not covered:
                hooks += request_weights(model)
                hooks += [x.register_forward_hook(self._on_output) for x in attention]
            if self.save_inputs:
                # A module that raises an error leaves its listener, which would hold the inputs.
                stack.callback(COLLECT.set, None)
            for hook in hooks:
                stack.enter_context(hook)
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        coverage = self._counter.result()
        self._open.close()
        missed = [name for name in coverage.missed if self._is_selected(name)]
        self.missed = tuple(name for name in missed if not nested(name, self.materialized))
        if kind is None and (self.materialized or self.missed):
            problems = []
            if self.materialized:
                names = _abbreviate(self.materialized)
                problems.append(f"read from weights that the model computed, of q · k elements each: {names}")
            if self.missed:
                problems.append(f"not recorded: {_abbreviate(self.missed)}")
            warnings.warn(
                f"{type(self._model).__name__} has layers that bypass the attention interface; {'; '.join(problems)}.",
                BypassWarning,
                stacklevel=2,
            )

    def _keep(self, name: str, record: AttentionRecord) -> None:
        self.layers.setdefault(name, []).append(record)

    def _is_selected(self, name: str) -> bool:
        return self._selected is None or name in self._selected

    def _on_run(self, module: torch.nn.Module, args: tuple[object, ...]) -> None:
        """Count a forward pass of the model and forget the weights that its layers returned before."""
        self.calls += 1
        self._found_weights.clear()

    def _on_call(
        self, module: torch.nn.Module, call: AttentionCall, dropout: float
    ) -> Float[Tensor, "*batch q value_width"] | None:
        """Record a call of qkv by an attention layer and return its output, or None if it was not computed."""
        name = self._names[module]
        if not self._is_selected(name):
            return None
        return self._record(name, call, dropout, attention_kind(name, module))

    def _record(
        self, name: str, call: AttentionCall, dropout: float, kind: AttentionKind
    ) -> Float[Tensor, "*batch q value_width"] | None:
        readouts = (*self.readouts, LogSumExp()) if self.save_inputs else self.readouts
        observed = observe_call(call, readouts, self._heads, dropout)
        self._append(name, call, observed, kind)
        return observed.output

    def _on_torch(
        self, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object
    ) -> None:
        """Record a call of an attention module of PyTorch, whose output remains the one that it computed."""
        name = self._names[module]
        self._counter.calls[name] += 1
        if self._is_selected(name):
            assert isinstance(module, torch.nn.MultiheadAttention)
            call, kind = torch_call(module, args, kwargs)
            self._record(name, call, 0.0, kind)

    def _on_module(self, call: ModuleCall, inputs: CallInputs | None) -> None:
        """Record a call of an attention module of `qkv.nn`."""
        name = self._names[call.module]
        self._counter.calls[name] += 1
        if self._is_selected(name):
            step = max(0, self.calls - 1)
            self._consume(name, record_module(call, inputs, len(self.readouts), self._heads, step))

    def _append(self, name: str, call: AttentionCall, observed: ObservedCall, kind: AttentionKind) -> None:
        mask, positions = call.options["mask"], call.options["positions"]
        q, k = call.query.shape[-2], call.key.shape[-2]
        start = positions.offset(q, k) if positions is not None else 0
        results, saved = observed.readouts, None
        if self.save_inputs:
            *first, log_sum_exp = results
            results = tuple(first)
            saved = SavedCall.of(call, None if self._heads is not None else log_sum_exp)
        self._consume(
            name,
            AttentionRecord(
                step=max(0, self.calls - 1),
                kind=kind,
                causal=is_causal(mask),
                output_shape=(call.query.shape[0], q, call.heads, call.value.shape[-1]),
                readouts=results,
                heads=tuple(range(call.heads)) if self._heads is None else self._heads,
                queries=q,
                keys=k,
                query_start=0 if is_array(start) else int(start),
                key_mask=key_padding(mask),
                plan=observed.plan,
                saved=saved,
            ),
        )

    def _on_output(self, module: torch.nn.Module, args: tuple[object, ...], output: object) -> None:
        """Record the weights that an attention layer returned, unless the layer called qkv."""
        name = self._names[module]
        if nested(name, self._counter.calls) or not self._is_selected(name):
            return
        if type(module).__name__ == "XLNetRelativeAttention":  # (q, batch, width) and (q, k, batch, heads)
            assert isinstance(output, tuple)
            tensors = [x for x in output if x is not None]
            output = tuple(x.permute(2, 3, 0, 1) if x.ndim == 4 else x.transpose(0, 1) for x in tensors)
        weights = find_weights(output, self._found_weights)
        if weights is None:
            return
        assert isinstance(output, (tuple, list))
        weights = weights.detach()
        heads = tuple(range(weights.shape[1])) if self._heads is None else self._heads
        selected = weights if self._heads is None else weights[:, list(heads)]
        _, _, q, k = weights.shape
        causal = q > 1 and q <= k and not bool((weights.triu(1 + k - q) > 0).any())
        self._consume(
            name,
            AttentionRecord(
                step=max(0, self.calls - 1),
                kind=attention_kind(name, module),
                causal=causal,
                output_shape=tuple(output[0].shape),
                readouts=tuple(read_weights(readout, selected) for readout in self.readouts),
                heads=heads,
                queries=q,
                keys=k,
                query_start=k - q if causal else 0,
                unsaved="a layer that computes its weights itself" if self.save_inputs else "",
            ),
        )
        if name not in self.materialized:
            self.materialized = (*self.materialized, name)


def _abbreviate(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _neighbor_uses_interface(module: torch.nn.Module, names: dict[torch.nn.Module, str]) -> bool:
    """Return whether an attention module that contains `module`, or is in it, uses the attention interface."""
    name = names[module]
    return any(
        is_attention(other) and uses_interface(other)
        for other, other_name in names.items()
        if other is not module and nested(name, [other_name])
    )


def _select_layers(
    names: dict[torch.nn.Module, str], layers: Iterable[str | int] | str | int | None
) -> frozenset[str] | None:
    """Return the names of the layers that `layers` selects, or None if `layers` is None."""
    if layers is None:
        return None
    selectors = [layers] if isinstance(layers, (str, int)) else list(layers)
    innermost = attention_layers(names)
    selected: set[str] = set()
    for selector in selectors:
        if isinstance(selector, int):
            if not innermost:
                raise OptionError(
                    f"layers must be names of layers, got {selector}: the model has no attention layers. "
                    "Choose a model with attention."
                )
            if not -len(innermost) <= selector < len(innermost):
                raise OptionError(
                    f"each index in layers must be between {-len(innermost)} and {len(innermost) - 1}, got {selector}. "
                    f"The model has {len(innermost)} attention layers."
                )
            selected.add(innermost[selector])
            continue
        matches = fnmatch.filter(names.values(), selector)
        if not matches:
            raise OptionError(
                f'each name in layers must match a layer of the model, got "{selector}". Use names such as '
                f'{_abbreviate(innermost)}, or a pattern such as "*attention*".'
            )
        selected.update(matches)
    return frozenset(selected)
