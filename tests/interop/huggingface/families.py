"""One family of models at a time: the engine against the model's own eager attention."""

import dataclasses
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from qkv.errors import RefusedError
from qkv.interop import huggingface
from qkv.interop.huggingface.mask_interface import LazyMask
from qkv.readouts import Dense
from tests.interop.huggingface.tiny import VARIANTS, UnbuiltError, inputs_of, model_of, real

PADS = ("none", "right", "left")
OTHER_WEIGHTS = {
    "granite_swa": "eager gives its weights before it scales by the sink, ours hold the sink",
    "granitemoe_swa": "eager gives its weights before it scales by the sink, ours hold the sink",
}
"""Families whose own weights are not those that multiply the values."""
ROUNDING = (
    "embedding_gemma2", "embedding_gemma2_text", "gemma4", "gemma4_text", "gemma4_unified",
    "gemma4_unified_text", "muse_glimmer", "muse_glimmer_text", "muse_spark_text",
)  # fmt: skip
"""Families that normalize queries and keys: their own eager weights change by more than 1e-6 (8e-6 in gemma4_text,
2e-6 in muse_spark_text) if the embeddings are multiplied by 1 + 1.2e-7. Here weights agree to 1e-5."""


@dataclass
class Found:
    """What was found of a family.

    Attributes:
        kind, cls: model type and class.
        inputs: what it was given.
        what: "reached", "partly" (some layers), "bypassed", "without attention", "refused", "unbuilt".
        reached, missed: how many layers call the engine, and do not.
        logits, weights, gradients: largest distance to eager. That of logits is relative to the largest logit where
            that exceeds 1; that of gradients to the largest gradient. None: not compared.
        compared: how many arrays of weights.
        generates: "same tokens", or why it was not compared.
        arrays: whether some layer made an array of the mask.
        why: it was not built, or what differs.
    """

    kind: str
    cls: str = ""
    inputs: str = ""
    what: str = "unbuilt"
    reached: int = 0
    missed: int = 0
    logits: float | None = None
    weights: float | None = None
    compared: int = 0
    gradients: float | None = None
    generates: str = ""
    arrays: bool = False
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def compare(kind: str, *, gradients: bool = True, generate: bool = True) -> Found:
    """Build a tiny model of the family and compare."""
    found = Found(kind)
    huggingface.register()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = model_of(kind)
            found.cls = type(model).__name__
        except UnbuiltError as error:
            found.why = str(error)
            return found
        failed = []
        for variant in VARIANTS:
            try:
                first = inputs_of(model, variant, "none")
                _shown(_run(model, first))
                found.inputs = variant
                break
            except UnbuiltError:
                continue
            except Exception as error:
                failed.append(_said(error))
        else:
            found.why = (
                f"eager attention raises {failed[0]}" if failed else "needs inputs that the test does not provide"
            )
            return found
        try:
            counted = huggingface.layer_coverage(model, **first)
        except RefusedError as error:
            found.what, found.why = "refused", str(error)
            return found
        found.reached, found.missed = len(counted.covered), len(counted.missed)
        if not counted.covered:
            found.what = "bypassed" if counted.missed else "without attention"
            return found
        found.what = "partly" if counted.missed else "reached"
        try:
            _outputs(model, found)
            if gradients:
                found.gradients = _gradients(model, first)
            if generate and model.can_generate() and "pixel_values" not in first:
                found.generates = _generates(model, first)
        except Exception as error:
            found.why = f"differs: {_said(error)}"
    return found


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:90] if lines else ''}"


def _run(model: Any, given: dict[str, Any]) -> Any:
    with torch.no_grad():
        torch.manual_seed(2)
        return model(**given)


def _shown(output: Any) -> torch.Tensor:
    """Logits, or the last hidden state."""
    for name in ("logits", "last_hidden_state", "logits_per_image"):
        if isinstance(x := getattr(output, name, None), torch.Tensor):
            return x
    return next(x for x in output.to_tuple() if isinstance(x, torch.Tensor) and x.is_floating_point())


def _outputs(model: Any, found: Found) -> None:
    """Outputs and weights of all paddings."""
    made: list[int] = []
    dense = LazyMask.dense

    def noted(mask: LazyMask) -> torch.Tensor:
        made.append(1)
        return dense(mask)

    found.logits, found.weights = 0.0, 0.0
    pads = PADS if "text" in found.inputs else PADS[:1]
    for pad in pads:
        given = inputs_of(model, found.inputs, pad)
        keep = real(pad).bool()
        wanted, own = _eager(model, given)
        model.set_attn_implementation("qkv")
        LazyMask.dense = noted  # type: ignore[method-assign]
        try:
            got = _shown(_run(model, given))
        finally:
            LazyMask.dense = dense  # type: ignore[method-assign]
            model.set_attn_implementation("eager")
        of_tokens = got.shape[:2] == keep.shape and "decoder_input_ids" not in given
        if of_tokens:
            got, wanted = got[keep], wanted[keep]
        # What is pooled over a text may stem from its padding, whose rows mean nothing.
        if pad == "none" or of_tokens or "decoder_input_ids" in given:
            found.logits = max(found.logits, _distance(got, wanted) / _size(wanted))
        with huggingface.record(model, [Dense()]) as seen:
            _run(model, given)
        for name, calls in seen.layers.items():
            theirs = own.get(name, [])
            for mine, other in zip(calls, theirs, strict=False):
                weights = mine.readouts[0]
                other = next((x for x in reversed(other) if x.shape == weights.shape), None)
                if other is None or found.kind in OTHER_WEIGHTS:
                    continue
                rows = torch.ones(weights.shape[0], 1, weights.shape[2], dtype=torch.bool)
                if weights.shape[0] == 2 and weights.shape[2] == keep.shape[1]:
                    rows = keep[:, None]
                difference = (weights - other).abs() * rows[..., None]
                found.weights = max(found.weights, float(difference.max()))
                found.compared += 1
    found.arrays = bool(made)
    if found.compared == 0:
        found.weights = None


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    if not (a.isfinite().all() and b.isfinite().all()):
        return 0.0 if torch.equal(a.isfinite(), b.isfinite()) and torch.allclose(
            torch.nan_to_num(a), torch.nan_to_num(b), rtol=0, atol=1e-5
        ) else float("inf")  # fmt: skip
    return float((a - b).abs().max()) if a.numel() else 0.0


def _size(x: torch.Tensor) -> float:
    """The largest finite element, at least 1: rounding grows with it."""
    return max(1.0, float(x[x.isfinite()].abs().max())) if x.isfinite().any() else 1.0


def _eager(model: Any, given: dict[str, Any]) -> tuple[torch.Tensor, dict[str, list[Any]]]:
    """The model's own output, and what each of its modules gives as weights."""
    own: dict[str, list[Any]] = {}

    def keep(name: str) -> Any:
        def hook(module: Any, arguments: Any, output: Any) -> None:
            arrays = output[1:] if isinstance(output, tuple) else ()
            weights = [x for x in arrays if isinstance(x, torch.Tensor) and x.ndim == 4]
            own.setdefault(name, []).append(weights)

        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in model.named_modules()]
    try:
        return _shown(_run(model, given)), own
    finally:
        for hook in hooks:
            hook.remove()


def _gradients(model: Any, given: dict[str, Any]) -> float:
    """The largest distance of any parameter's gradient, relative to the largest gradient."""
    all_of = []
    model.train()
    for name in ("eager", "qkv"):
        model.set_attn_implementation(name)
        model.zero_grad()
        torch.manual_seed(2)
        shown = _shown(model(**given))
        torch.manual_seed(3)
        (shown * torch.randn(shown.shape)).sum().backward()
        all_of.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None and p.numel()})
    model.eval()
    model.set_attn_implementation("eager")
    model.zero_grad()
    eager, mine = all_of
    assert eager.keys() == mine.keys()
    largest = max(float(x.abs().max()) for x in eager.values())
    return max(_distance(eager[n], mine[n]) for n in eager) / largest


def _generates(model: Any, given: dict[str, Any]) -> str:
    """Whether the same tokens come, with a growing and with a static cache, padded left."""
    texts = dict(given)
    if "attention_mask" in texts:
        texts["attention_mask"] = real("left")
    if model.config.is_encoder_decoder:
        texts.pop("decoder_input_ids", None)
        texts["decoder_start_token_id"] = 2
    said = []
    for cache in (None, "static"):
        tokens = []
        for name in ("eager", "qkv"):
            model.set_attn_implementation(name)
            try:
                tokens.append(
                    model.generate(
                        **texts, max_new_tokens=5, do_sample=False, cache_implementation=cache,
                        disable_compile=True, pad_token_id=0, eos_token_id=None, use_cache=True,
                    )
                )  # fmt: skip
            except Exception as error:
                if name == "qkv":
                    raise
                said.append(f"eager attention raises ({cache or 'dynamic'}): {_said(error)}")
                break
            finally:
                model.set_attn_implementation("eager")
        if len(tokens) == 2:
            same = tokens[0].shape == tokens[1].shape and bool((tokens[0] == tokens[1]).all())
            said.append(f"{cache or 'dynamic'}: {'same' if same else 'OTHER'} tokens")
    return "; ".join(said)
