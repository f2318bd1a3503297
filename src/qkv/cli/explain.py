"""`qkv explain`: how a call would run, from shapes alone."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from qkv.errors import OptionError

__all__ = ["explain"]

_HELP = """Print the plan of a call: the kernel that would run it and why, what was refused, work and memory.

Shapes are (…, length, width) with commas: the batch axes (heads are one), then the length, then the width.
Text has no width. Nothing is computed, and no array is made.

\b
Examples:
  qkv explain --query 8,1024,64 --key 8,4096,64
  qkv explain --query 8,1024,64 --key 8,4096,64 --value 8,4096,32 --score additive
  qkv explain --query 12,2048,64 --key 12,2048,64 --causal --library torch --gradient
  qkv explain --query 1,64 --key 10000000,64 --normalizer topk:10 --memory 64MiB
  qkv explain --query 5 --key 20000 --value 20000,1 --score jaro-winkler
  qkv explain --query 1024,64 --key 1024,64 --kernel dense --dtype float64

Scores are those of qkv ask, and the learned ones: additive, bilinear, gated, separable-gate; additive:256
has 256 hidden units.
"""


def explain(
    query: Annotated[str, typer.Option(metavar="SHAPE", help="Shape of the queries.", show_default=False)] = "",
    key: Annotated[str, typer.Option(metavar="SHAPE", help="Shape of the keys.", show_default=False)] = "",
    value: Annotated[
        str | None, typer.Option(metavar="SHAPE", help="Shape of the values; as the keys if left out.")
    ] = None,
    score: Annotated[str, typer.Option(metavar="NAME[:NUMBER]", help="How keys are compared.")] = "scaled-dot",
    normalizer: Annotated[
        str | None,
        typer.Option(metavar="NAME[:NUMBER]", help="How scores become weights; else the score's own."),
    ] = None,
    causal: Annotated[bool, typer.Option("--causal", help="A query sees keys up to its own position.")] = False,
    align: Annotated[
        str,
        typer.Option(metavar="start|end", help="Where queries stand, if there are fewer or more than keys."),
    ] = "end",
    window: Annotated[
        str | None,
        typer.Option(metavar="BEFORE,AFTER", help="A query sees this many keys around its position."),
    ] = None,
    readout: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:K]", help="Read from the weights: entropy, top-weights:10, dense, …"),
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="NAME", help="float16, bfloat16, float32 or float64.")] = "float32",
    library: Annotated[str, typer.Option(metavar="NAME", help="numpy, torch or jax.")] = "numpy",
    gradient: Annotated[bool, typer.Option("--gradient", help="A gradient will be wanted.")] = False,
    dropout: Annotated[float, typer.Option(metavar="P", help="Share of the weights dropped.")] = 0.0,
    kernel: Annotated[str | None, typer.Option(metavar="NAME", help="This kernel must run it.")] = None,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="What may be allocated besides.")] = "512 MiB",
) -> None:
    if not query or not key:
        missing = "key" if query else "query"
        raise OptionError(f"there is no --{missing}. Give its shape, as in --query 8,1024,64 --key 8,4096,64.")
    for name, given, known in (
        ("dtype", dtype, _DTYPES),
        ("library", library, _LIBRARIES),
        ("align", align, _ALIGNS),
    ):
        if given not in known:
            raise OptionError(f"--{name} is {given!r}, and it is one of {', '.join(known)}.")
    shapes = [_shape("query", query), _shape("key", key)]
    shapes.append(_shape("value", value) if value is not None else shapes[1])

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
    )
    print(plan)


explain.__doc__ = _HELP

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
        raise OptionError(f"--{name} is {text!r}, and a shape is whole numbers with commas, such as 8,1024,64.")
    return shape


def _score(text: str, query_width: int, key_width: int) -> Any:
    """A score by name; a learned one holds arrays of the right shapes, which a plan does not read."""
    import numpy as np

    from qkv import scores
    from qkv.database.keys.part_registry import parse_score

    name, _, number = text.lower().replace("_", "-").partition(":")
    zeros = np.zeros
    hidden = int(number) if number.isdigit() and int(number) else _HIDDEN
    learned: dict[str, Callable[[], Any]] = {
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


def _mask(causal: bool, window: str | None) -> Any:
    from qkv.masks import Causal, Window

    masks: list[Any] = [Causal()] if causal else []
    if window is not None:
        before, comma, after = window.partition(",")
        if not comma or not before.strip().isdigit() or not after.strip().isdigit():
            raise OptionError(f"--window is {window!r}, and it is two whole numbers, such as 128,0.")
        masks.append(Window(int(before), int(after)))
    return None if not masks else masks[0] if len(masks) == 1 else masks[0] & masks[1]


def _readout(text: str) -> Any:
    from qkv import readouts

    name, _, number = text.partition(":")
    plain = {kind.lower(): getattr(readouts, kind) for kind in ("Entropy", "LogSumExp", "Dense", "TopWeights")}
    kind = plain.get(name.lower().replace("-", ""))
    if kind is None or (number and not number.isdigit()):
        raise OptionError(f"there is no readout {text!r}; there are entropy, log-sum-exp, dense, top-weights:K.")
    return kind(int(number or 10)) if kind is readouts.TopWeights else kind()
