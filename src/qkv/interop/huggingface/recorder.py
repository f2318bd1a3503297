"""Record what the layers of a model attend to, while it runs."""

from __future__ import annotations

import fnmatch
import warnings
import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import torch

from qkv.core.arrays import is_array
from qkv.errors import KindError, OptionError
from qkv.interop.huggingface.attention_call import AttentionCall, is_causal, padding_mask
from qkv.interop.huggingface.attention_record import AttentionRecord, SavedCall
from qkv.interop.huggingface.coverage import (
    BypassWarning,
    CallCounter,
    remove_listener,
    restore_implementations,
    save_implementations,
    switch_implementation,
)
from qkv.interop.huggingface.model_layers import attention_kind, is_attention, module_names, nested, uses_interface
from qkv.interop.huggingface.observe import observe_call
from qkv.interop.huggingface.output_attentions import find_weights, read_weights, request_weights
from qkv.interop.huggingface.registration import LISTENERS, REGISTERED
from qkv.readouts import LogSumExp, Readout

__all__ = ["Recorder", "record"]


def record(
    model: Any,
    readouts: Sequence[Readout],
    *,
    layers: Iterable[str | int] | str | int | None = None,
    heads: Iterable[int] | None = None,
    save_inputs: bool = False,
    name: str = "qkv",
) -> Recorder:
    """Collect readouts of every layer and head while a model runs, for a `with` block.

    The model may be called as often as wanted, in any way, `generate` included. Its output is that of its
    own attention to rounding. The model is as before afterwards, also after an exception. Memory is what the
    readouts keep: an array of all pairs is made for `Dense` alone. Weights are those before dropout, and no
    gradient goes through them.

    Layers that compute attention themselves are asked for their weights, which are arrays of all pairs; a
    warning names them.

    Args:
        model: of transformers.
        readouts: from `qkv.readouts`; their results have the batch axes (batch, heads).
        layers: names of layers (`"encoder.layer.0.*"`: as in file names), or their numbers in the order of
            the model; None: all.
        heads: numbers of heads; None: all.
        save_inputs: keep query, key and log-sum-exp too, from which `AttentionRecord.tile` gives any weights exactly.
        name: under which the engine was registered, for a model that does not run on it already.

    Returns:
        A `Recorder`; what was seen is in `layers`, by the name of the layer.

    Warns:
        BypassWarning: when the block ends, of layers that were read from the model's own weights, or not
            at all.

    Raises:
        KindError: a readout is none.
        OptionError: no layer has that name; nothing is registered under `name`.

    Example:
        >>> import torch, transformers
        >>> from qkv.readouts import TopWeights
        >>> config = transformers.BertConfig(
        ...     vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2
        ... )
        >>> model = transformers.BertModel(config).eval()
        >>> with record(model, [TopWeights(3)]) as seen:
        ...     _ = model(torch.tensor([[1, 2, 3, 4]]))
        >>> list(seen.layers)
        ['encoder.layer.0.attention.self', 'encoder.layer.1.attention.self']
        >>> seen.layers["encoder.layer.0.attention.self"][0].readouts[0].weights.shape
        torch.Size([1, 2, 4, 3])
    """
    return Recorder(model, readouts, layers, heads, save_inputs, name)


class Recorder:
    """What was seen, layer by layer; made by `record`.

    Attributes:
        layers: name of the layer, and what was seen of each of its calls, in the order of the calls.
        missed: names of attention layers that ran and could not be read.
        eager: names of those read from weights that the model made itself.
    """

    def __init__(
        self,
        model: Any,
        readouts: Sequence[Readout],
        layers: Iterable[str | int] | str | int | None = None,
        heads: Iterable[int] | None = None,
        save_inputs: bool = False,
        name: str = "qkv",
    ) -> None:
        for readout in readouts:
            if not isinstance(readout, Readout):
                raise KindError(f"{readout!r} is no readout. Give instances from qkv.readouts, such as TopWeights(5).")
        self.readouts, self.save_inputs = tuple(readouts), save_inputs
        self.layers: dict[str, list[AttentionRecord]] = {}
        self.missed: tuple[str, ...] = ()
        self.materialized: tuple[str, ...] = ()
        self._model, self._name = model, name
        self._heads = None if heads is None else tuple(heads)
        self._names = module_names(model)
        self._chosen = _chosen(self._names, layers)
        self._calls = 0
        self._taken: list[weakref.ref[Any]] = []

    @property
    def calls(self) -> int:
        """How often the model ran."""
        return self._calls

    def __enter__(self) -> Recorder:
        model = self._model
        self._before = save_implementations(model)
        self._hooks: list[Any] = []
        self._counter = CallCounter(model)
        try:
            if getattr(model.config, "_attn_implementation", None) not in REGISTERED:
                switch_implementation(model, self._name)
            for module in self._names:
                LISTENERS.setdefault(module, []).append(self._heard)
            self._hooks.append(model.register_forward_pre_hook(self._begun))
            alone = [x for x in self._names if is_attention(x)]
            direct = [x for x in alone if not any(y is not x and is_attention(y) for y in x.modules())]
            if not all(uses_interface(x) or _near_interface(x, self._names) for x in direct):
                self._hooks += request_weights(model)
                self._hooks += [x.register_forward_hook(self._gave) for x in alone]
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        found = self._counter.result()
        self._stop()
        wanted = self._chosen is None
        missed = [name for name in found.missed if wanted or name in (self._chosen or ())]
        self.missed = tuple(name for name in missed if not nested(name, self.materialized))
        if kind is None and (self.materialized or self.missed):
            said = []
            if self.materialized:
                said.append(f"read from weights that the model made, all pairs of them: {_few(self.materialized)}")
            if self.missed:
                said.append(f"not read at all: {_few(self.missed)}")
            warnings.warn(
                f"{type(self._model).__name__} has layers that compute attention themselves; "
                + "; ".join(said) + ".",
                BypassWarning,
                stacklevel=2,
            )  # fmt: skip

    def _stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for module in self._names:
            remove_listener(module, self._heard)
        self._counter.stop()
        self._taken.clear()
        restore_implementations(self._before)

    def _begun(self, module: Any, arguments: Any) -> None:
        self._calls += 1
        self._taken.clear()

    def _heard(self, module: Any, call: AttentionCall, dropout: float) -> torch.Tensor | None:
        """A layer calls the engine: look."""
        name = self._names[module]
        if self._chosen is not None and name not in self._chosen:
            return None
        wanted = (*self.readouts, LogSumExp()) if self.save_inputs else self.readouts
        plan, found, output = observe_call(call, wanted, self._heads, dropout)
        self._note(name, module, call, plan, found)
        return output

    def _note(self, name: str, module: Any, call: AttentionCall, plan: Any, found: tuple[Any, ...]) -> None:
        mask, positions = call.options["mask"], call.options["positions"]
        q, k = call.query.shape[-2], call.key.shape[-2]
        start = positions.offset(q, k) if positions is not None else 0
        saved = None
        if self.save_inputs:
            *found, total = found  # type: ignore[assignment]
            if self._heads is not None:
                total = observe_call(call, [LogSumExp()], None, 0.0)[1][0]
            light = call.detached()
            # A static cache writes later steps into the same key.
            key = light.key.clone()
            saved = SavedCall(AttentionCall(light.query, key, key[..., :1], light.options, call.heads), total)
        self.layers.setdefault(name, []).append(
            AttentionRecord(
                call=max(0, self._calls - 1),
                kind=attention_kind(name, module),
                causal=is_causal(mask, positions),
                output_shape=(call.query.shape[0], q, call.heads, call.value.shape[-1]),
                readouts=tuple(found),
                heads=tuple(range(call.heads)) if self._heads is None else self._heads,
                queries=q,
                keys=k,
                query_start=0 if is_array(start) else int(start),
                key_mask=padding_mask(mask),
                plan=plan,
                saved=saved,
            )
        )

    def _gave(self, module: Any, arguments: Any, output: Any) -> None:
        """A layer that looks like attention has run: if it did not call the engine, take its weights."""
        name = self._names[module]
        if nested(name, self._counter.calls) or (self._chosen is not None and name not in self._chosen):
            return
        weights = find_weights(output, self._taken)
        if weights is None:
            return
        weights = weights.detach()
        heads = tuple(range(weights.shape[1])) if self._heads is None else self._heads
        looked = weights if self._heads is None else weights[:, list(heads)]
        _, _, q, k = weights.shape
        causal = q > 1 and q <= k and not bool((weights.triu(1 + k - q) > 0).any())
        seen = AttentionRecord(
            call=max(0, self._calls - 1),
            kind=attention_kind(name, module),
            causal=causal,
            output_shape=tuple(output[0].shape),
            readouts=tuple(read_weights(readout, looked) for readout in self.readouts),
            heads=heads,
            queries=q,
            keys=k,
            query_start=k - q if causal else 0,
        )
        self.layers.setdefault(name, []).append(seen)
        if name not in self.materialized:
            self.materialized = (*self.materialized, name)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _near_interface(module: Any, names: dict[Any, str]) -> bool:
    """Whether a module that holds this one, or is held by it, names the interface."""
    mine = names[module]
    return any(
        is_attention(other) and uses_interface(other)
        for other, name in names.items()
        if other is not module and nested(mine, [name])
    )


def _chosen(names: dict[Any, str], layers: Iterable[str | int] | str | int | None) -> frozenset[str] | None:
    """Names of the layers that were asked for; None: all."""
    if layers is None:
        return None
    asked = [layers] if isinstance(layers, (str, int)) else list(layers)
    attending = [name for module, name in names.items() if is_attention(module)]
    innermost = [x for x in attending if not any(y.startswith(f"{x}.") for y in attending)]
    found: set[str] = set()
    for one in asked:
        if isinstance(one, int):
            if not -len(innermost) <= one < len(innermost):
                raise OptionError(f"layer {one} was asked for, the model has {len(innermost)} that attend.")
            found.add(innermost[one])
            continue
        matching = fnmatch.filter(names.values(), one)
        if not matching:
            raise OptionError(
                f'no layer is called "{one}". Some that attend: {_few(innermost)}. Patterns as in file names are fine.'
            )
        found.update(matching)
    return frozenset(found)
