"""The command `qkv explain`, which shows the execution plan of an attention call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from qkv.cli.shared_options import NormalizerName, flag, option
from qkv.core.checks import check_choice
from qkv.errors import OptionError

if TYPE_CHECKING:
    from qkv.masks import Mask
    from qkv.readouts import Readout
    from qkv.scores.base import Score


def explain(
    query: Annotated[str, option("SHAPE", "Shape of the queries.", show_default=False)] = "",
    key: Annotated[str, option("SHAPE", "Shape of the keys.", show_default=False)] = "",
    value: Annotated[str | None, option("SHAPE", "Shape of the values; default: that of the keys.")] = None,
    score: Annotated[str, option("NAME[:NUMBER]", "Score that compares query and key.")] = "scaled-dot",
    normalizer: NormalizerName = None,
    causal: Annotated[bool, flag("--causal", "Mask later keys.")] = False,
    align: Annotated[
        str, option("start|end", "Align queries with the first or the last keys, if lengths differ.")
    ] = "end",
    window: Annotated[str | None, option("BEFORE,AFTER", "Mask keys outside this window around the query.")] = None,
    readout: Annotated[
        list[str] | None, option("NAME[:K]", "Readout of the weights: entropy, log-sum-exp, dense, top-weights:K.")
    ] = None,
    dtype: Annotated[str, option("NAME", "float16, bfloat16, float32 or float64.")] = "float32",
    library: Annotated[str, option("NAME", "numpy, torch or jax.")] = "numpy",
    device: Annotated[str, option("NAME", "cpu, cuda, or a kind of GPU such as H100, for torch or jax.")] = "cpu",
    gradient: Annotated[bool, flag("--gradient", "Plan for a call that needs gradients.")] = False,
    dropout: Annotated[float, option("P", "Dropout probability of the weights.")] = 0.0,
    kernel: Annotated[str | None, option("NAME", "Kernel to use; default: chosen by estimated cost.")] = None,
    memory: Annotated[
        str | None, option("SIZE", "Budget for scratch memory; default: an eighth of the machine, at least 512 MiB.")
    ] = None,
    verbose: Annotated[bool, flag("--verbose", "Also name the kernels for other libraries or processors.")] = False,
) -> None:
    """Print the execution plan of an attention call: the chosen kernel, the refused kernels, FLOPs and memory.

    A shape is …,length,width; batch axes, such as heads, come first. For scores of text, queries and keys have no
    width. Nothing is computed, and no arrays are allocated.

    \b
    Examples:
      qkv explain --query 8,1024,64 --key 8,4096,64
      qkv explain --query 8,1024,64 --key 8,4096,64 --value 8,4096,32 --score additive
      qkv explain --query 12,2048,64 --key 12,2048,64 --causal --library torch --gradient
      qkv explain --query 16,8192,64 --key 16,8192,64 --library torch --device H100 --dtype bfloat16
      qkv explain --query 1,64 --key 10000000,64 --normalizer topk:10 --memory 64MiB
      qkv explain --query 5 --key 20000 --value 20000,1 --score jaro-winkler
      qkv explain --query 1024,64 --key 1024,64 --kernel dense --dtype float64

    Scores are those of qkv ask and the learned scores additive, bilinear, gated and separable-gate; additive:256 has
    256 hidden units.
    """
    if not query or not key:
        missing = "key" if query else "query"
        raise OptionError(f"--{missing} must be given. Write a shape, for example --query 8,1024,64 --key 8,4096,64.")
    for name, given, known in (("dtype", dtype, _DTYPES), ("library", library, _LIBRARIES), ("align", align, _ALIGNS)):
        check_choice(f"--{name}", given, known)
    shapes = [_shape("query", query), _shape("key", key), _shape("value", key if value is None else value)]

    from qkv.core.positions import Positions
    from qkv.database.keys.part_registry import parse_normalizer
    from qkv.engine import explain as explain_shapes

    mask = _mask(causal, window)
    positions = Positions(align="start" if align == "start" else "end") if mask is not None else None
    plan = explain_shapes(
        *shapes,
        score=_score(score, shapes[0][-1], shapes[1][-1]),
        normalizer=parse_normalizer(normalizer) if normalizer is not None else None,
        mask=mask,
        positions=positions,
        readouts=[_readout(name) for name in readout or []],
        dropout=dropout,
        kernel=kernel,
        memory=memory,
        library=library,
        dtype=dtype,
        gradient=gradient,
        device=device,
    )
    print(plan.text(verbose))


_DTYPES = ("float16", "bfloat16", "float32", "float64")
_LIBRARIES = ("numpy", "torch", "jax")
_ALIGNS = ("start", "end")
_HIDDEN = 64


def _shape(name: str, text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.replace("x", ",").strip("()[] ,").split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 0:
        raise OptionError(
            f"--{name} must be non-negative integers separated by commas, got {text!r}. "
            f"For example, write --{name} 8,1024,64."
        )
    return shape


def _score(text: str, query_width: int, key_width: int) -> Score:
    """Create the score that `text` names. Learned parameters are zeros, because a plan depends only on their shapes."""
    from numpy import zeros

    from qkv import scores
    from qkv.database.keys.part_registry import parse_score

    name, _, number = text.lower().replace("_", "-").partition(":")
    hidden = int(number) if number.isdecimal() and int(number) else _HIDDEN
    learned: dict[str, Callable[[], Score]] = {
        "additive": lambda: scores.Additive(
            zeros((hidden, query_width)), zeros((hidden, key_width)), zeros(hidden), zeros(hidden)
        ),
        "bilinear": lambda: scores.Bilinear(zeros((query_width, key_width))),
        "gated": lambda: scores.Gated(zeros(query_width), zeros(key_width)),
        "separable-gate": lambda: scores.SeparableGate(zeros(query_width), zeros(key_width)),
    }
    if name in learned:
        return learned[name]()
    return parse_score(text).build()


def _mask(causal: bool, window: str | None) -> Mask | None:
    from qkv.masks import Causal, Window

    masks: list[Mask] = [Causal()] if causal else []
    if window is not None:
        before, comma, after = window.partition(",")
        if not comma or not before.strip().isdecimal() or not after.strip().isdecimal():
            raise OptionError(
                f"--window must be two non-negative integers separated by a comma, got {window!r}. "
                "For example, write --window 128,0."
            )
        masks.append(Window(int(before), int(after)))
    return None if not masks else masks[0] if len(masks) == 1 else masks[0] & masks[1]


def _readout(text: str) -> Readout:
    from qkv import readouts

    name, _, number = text.partition(":")
    plain = {kind.lower(): getattr(readouts, kind) for kind in ("Entropy", "LogSumExp", "Dense", "TopWeights")}
    kind = plain.get(name.lower().replace("-", ""))
    if kind is None or (number and not number.isdecimal()):
        raise OptionError(
            f"--readout must be entropy, log-sum-exp, dense, or top-weights:K with an integer K, got {text!r}. "
            "For example, write --readout top-weights:10."
        )
    return kind(int(number or 10)) if kind is readouts.TopWeights else kind()
