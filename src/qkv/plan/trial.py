"""Trial of the parts that users write: does each element depend on its own query and key alone?

Kernels evaluate a part on tiles and on some batch elements. The trial evaluates it once on at most 32 × 32 drawn pairs,
and again on some of their queries, keys and batch elements, where the result must be the same. It runs once for each
function and kind of arguments, in the library of the call, and sees no data of the call.
"""

from __future__ import annotations

import math
import random
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from itertools import islice, product
from typing import Any

import numpy as np

from qkv.core.arrays import asarray_like, dtype_name, is_floating, is_tensor, library, namespace, to_numpy
from qkv.core.batch import BatchIndex, take_batch
from qkv.core.equation import BoundCall
from qkv.core.function_part import FunctionPart, Verdict, function_parts, key_of_code
from qkv.core.parts import Part
from qkv.core.positions import Positions
from qkv.core.tile import Tile, take_range
from qkv.core.typing import Array, Shaped
from qkv.errors import RefusedError, ShapeError
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.plan.problem import Problem
from qkv.scores import Score
from qkv.scores.base import broadcasts_to

_PAIRS = 32
_MAX_ELEMENTS = 2**22
"""Largest number of pairs × features of a trial."""
_MAX_TRIALS = 256
_TOLERANCE = 1e-4
"""Largest difference relative to the largest element: far above the rounding of a sum in another order in float32."""
_TRIALS: OrderedDict[Hashable, Verdict] = OrderedDict()
_WORDS = np.array(["Li", "Zhang", "Smith", "Jon Smith", "Ann", "Mary Ann", "Kowalski", "O'Brien"], dtype=object)
_AT_ONCE = 'pass kernel="dense", which computes all pairs at once'
_REMEDIES = {
    "the other queries": "For a softmax over the queries, let lse = qkv.observe(key, query, query[..., :1], "
    "readouts=[readouts.LogSumExp()]).readouts[0] and pass scores.Biased(score, per_key=-lse); for anything else "
    f"{_AT_ONCE}",
    "the other keys": f"Compute what all keys share before the call and pass it in parameters, or {_AT_ONCE}",
    "the number of queries": f"Pass the number in parameters, or {_AT_ONCE}",
    "the number of keys": f"Pass the number in parameters, or {_AT_ONCE}",
    "the other batch elements": f"Compute what they share before the call and pass it in parameters, or {_AT_ONCE}",
    "the excluded keys of its row": "Count or average the finite logits of a row alone, such as "
    f"isfinite(logits).sum(-1), or {_AT_ONCE}",
}
"""What an element depends on besides its own pair or row, with what to do."""


def check_functions(problem: Problem) -> tuple[Verdict | None, ...]:
    """Return the verdicts on score, normalizer and mask; None for a part that contains no part of the user's own.

    Raises:
        RefusedError: an element depends on more than its own pair or row; the message names on what.
        ShapeError: logits of a function have another shape where queries and keys differ in number.
    """
    if problem.traced == "export":  # lengths may be symbols, and the dense kernel runs
        return ()
    verdicts = tuple([_verdict(part, problem) if _is_users(part) else None for part in _parts(problem)])
    for part, verdict, kind in zip(_parts(problem), verdicts, ("score", "normalizer", "mask"), strict=True):
        if verdict is not None and verdict.finding:
            own, element = ("row of logits", "weight") if kind == "normalizer" else ("query and key", "logit")
            raise RefusedError(
                f"each {'element' if kind == 'mask' else element} of the {kind} {part} must depend on its own {own} "
                "alone, because kernels compute a few queries and keys at a time, got one that depends on "
                f"{verdict.finding}, in a trial on drawn arrays. {_REMEDIES[verdict.finding]}."
            )
    return verdicts


def bind_functions(call: BoundCall, problem: Problem) -> BoundCall:
    """Return a call whose parts know which axes of the parameters of users' functions are batch axes."""
    axes, changed = problem.axes, {}
    for name, part, verdict in zip(("score", "normalizer", "mask"), _parts(problem), problem.trials, strict=False):
        if verdict is None or not verdict.divides:
            continue
        functions = function_parts(part)
        if list(map(len, verdict.batch_axes)) != [len(each.parameters) for each in functions]:
            verdict = _verdict(part, problem)  # a rewrite changed the part
        changed[name] = bound = getattr(call, name).map_arrays(lambda x: x)
        ranks = (len(axes.query), len(axes.key)) if name == "score" else (len(axes.batch) + 2,)
        for each, own in zip(function_parts(bound), verdict.batch_axes, strict=True):
            each.with_batch_axes(own, ranks if verdict.same_rank else ())
    return replace(call, **changed) if changed else call


def _parts(problem: Problem) -> tuple[Part | None, ...]:
    return problem.spec.score, problem.spec.normalizer, problem.spec.mask


def _is_users(part: Part | None) -> bool:
    """Return whether a part is, or contains, a part with a function or of a class of the user."""
    inner = [] if part is None else part.parts()
    return any(isinstance(each, FunctionPart) or not type(each).__module__.startswith("qkv.") for each in inner)


def _verdict(part: object, problem: Problem) -> Verdict:
    """Return the result of the trial of a score, normalizer or mask: the cached one, or that of a new trial."""
    axes, functions = problem.axes, function_parts(part)
    options = [own for each in functions for own in each.batch_axes_for(axes.batch)]
    one = tuple(tuple(type(n) is int and n == 1 for n in x) for x in (axes.query[:-1], axes.key[:-1], axes.batch))
    masked = isinstance(part, Normalizer) and problem.spec.mask is not None
    context = (tuple(options), one, axes.query_width, axes.key_width, axes.text, problem.library, problem.dtype, masked)
    key = (key_of_code(part), context)
    found = _TRIALS.get(key)
    if found is None:
        if not _is_possible(problem.library) or any(type(n) is not int for n in (axes.query_width, axes.key_width)):
            return Verdict(_declared(functions, options, None), doubt="arrays have no values here")
        found = _TRIALS[key] = _try(part, problem, options, masked)
        if len(_TRIALS) > _MAX_TRIALS:
            _TRIALS.popitem(last=False)
    return found


def _is_possible(kind: str) -> bool:
    if kind != "torch":
        return True
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    # Fake tensors have no values, and a counter of operations must not count the trial.
    return not (torch.compiler.is_compiling() or _get_current_dispatch_mode_stack())


def _declared(
    functions: list[FunctionPart], options: list[tuple[int, ...]], chosen: tuple[int, ...] | None
) -> tuple[tuple[int | None, ...], ...]:
    """Return the batch axes of the parameters of each function: those `chosen`, or the only option of a parameter."""
    flat = iter(chosen or [own[0] if len(own) == 1 else None for own in options])
    return tuple(tuple(next(flat) for _ in each.parameters) for each in functions)


def _try(part: object, problem: Problem, options: list[tuple[int, ...]], masked: bool) -> Verdict:
    functions, axes = function_parts(part), problem.axes
    # Lengths that differ from each other, and then those of the call, for functions that contain them.
    drawn = tuple(1 if type(n) is int and n == 1 else 2 + at % 2 for at, n in enumerate(reversed(axes.batch)))[::-1]
    lengths = max(1, min(n for n in (_PAIRS, axes.q, axes.k) if type(n) is int))
    found = Verdict(_declared(functions, options, None), doubt="the function raised an error on drawn arrays")
    known = axes.batch if all(type(n) is int for n in axes.batch) else drawn
    for batch, n in dict.fromkeys([(drawn, _PAIRS), (known, _PAIRS), (known, lengths)]):
        width = 1 if isinstance(part, (Normalizer, Mask)) else max(axes.query_width, axes.key_width, 1)
        while math.prod(batch) * n * n * width > _MAX_ELEMENTS and n > 8:
            n //= 2
        if 0 in batch or math.prod(batch) * n * n * width > _MAX_ELEMENTS:
            continue
        for chosen in islice(product(*options), 64):
            with _isolated(problem.library):
                try:  # the function may fail on drawn arrays; the call itself reports what is wrong
                    found = _Case(part, problem, chosen, batch, n).judge(_declared(functions, options, chosen), masked)
                except Exception:
                    continue
            if found.finding != "the other batch elements":
                return found
        if found.finding:
            return found
    if found.doubt and isinstance(part, Score) and isinstance(part, FunctionPart):
        _check_shape(part, problem, tuple(own[0] for own in options), drawn)
    return found


def _check_shape(part: object, problem: Problem, chosen: tuple[int, ...], batch: tuple[int, ...]) -> None:
    """Raise a `ShapeError` if the logits of a function follow the number of queries, but not one for each pair.

    They could be taken for logits where lengths are equal: the sum of x of shape (n, n, width) over the last axis, or a
    transposed product. A function that contains an array of all pairs returns one shape, and is left alone.
    """
    for side in (1, 0):  # the keys, or for functions that need equal numbers the queries
        shapes = []
        with _isolated(problem.library), suppress(Exception):  # the call reports what is wrong
            for n in (_PAIRS, _PAIRS // 2):
                case = _Case(part, problem, chosen, batch, n)
                shapes.append(tuple(case.part.compare(case.sides[0], case.sides[side]).shape))
        pairs = (*batch, _PAIRS, _PAIRS - side)
        if len(shapes) == 2 and shapes[0] != shapes[1] and not broadcasts_to(shapes[0], pairs):
            raise ShapeError(
                f"logits of {part} must have shape (*batch, q, k), here {pairs} in a trial, got {shapes[0]}. Return "
                "one logit for each pair of a query and a key."
            )


class _Case:
    """A part with drawn arrays.

    Args:
        part: a score, normalizer or mask.
        problem: the problem of a call with the part.
        chosen: number of batch axes of each parameter of the functions of users.
        batch: batch axes of the trial.
        n: number of queries, and of keys.
    """

    def __init__(self, part: Any, problem: Problem, chosen: tuple[int, ...], batch: tuple[int, ...], n: int) -> None:
        axes = problem.axes
        # Different numbers, so that a transposed result is not taken for one that depends on other pairs.
        self.lengths, self.batch, self.random = (n, max(1, n - 1)), batch, np.random.default_rng(0)
        self.reference, self.dtype = _reference(problem)
        self.tile, self.text = Tile.whole(*self.lengths, batch, Positions(align="start")), axes.text
        own, self.part = iter(chosen), part.map_arrays(lambda x: x)
        for each in function_parts(self.part):
            each.with_batch_axes(tuple(next(own) for _ in each.parameters), ())
        self.part = self.part._map(self._draw)
        self.sides: list[Array] = []
        if isinstance(part, Normalizer):
            self.sides = [self._numbers((*batch, *self.lengths))]
        elif isinstance(part, Score):
            core = 1 if axes.text else 2
            for shape, length in ((axes.query, self.lengths[0]), (axes.key, self.lengths[1])):
                lead = self._batch_lengths(shape[: len(shape) - core])
                words = _WORDS[self.random.integers(len(_WORDS), size=(*lead, length))] if axes.text else None
                self.sides.append(self._numbers((*lead, length, shape[-1])) if words is None else words)

    def judge(self, axes: tuple[tuple[int | None, ...], ...], masked: bool) -> Verdict:
        """Return the verdict on a part with the given batch axes of the parameters of its functions.

        Raises:
            Exception: the function raised it, other than for some queries or keys, or for fewer batch axes.
        """
        last = tuple(n - 1 for n in self.batch)
        rows, cols = half = [(n // 4, n // 4 + max(1, n // 2)) for n in self.lengths]
        cuts: dict[str, dict[str, Any]] = {"whole": {}, "again": {"seed": 1}, "rows": {"rows": rows}}
        if last:
            cuts["one"] = {"index": tuple(slice(n, n + 1) for n in last)}
        if last and library(self.reference) in ("numpy", "torch"):  # others never take single batch elements
            cuts["last"] = {"index": last}
        if not isinstance(self.part, Normalizer):
            cuts["cols"] = {"cols": cols}
        elif masked:
            few = np.where(np.arange(self.lengths[1]) < cols[1], np.asarray(self.sides[0]), -np.inf)
            self.sides.append(asarray_like(self.reference, few.astype(self.dtype)))
            cuts |= {"few": {"cols": (0, cols[1])}, "excluded": {"side": 1}}
        found = self._evaluate(cuts)
        whole = found["whole"]
        if not _same(whole, found["again"]):
            return Verdict(axes, doubt="the function is random", random=True)
        if last and not _same(whole[last], found["one"]):
            return Verdict(axes, finding="the other batch elements")
        same_rank = "last" in found and not _same(whole[last], found["last"])
        if any(name in found and found[name] is None for name in ("rows", "cols")):
            return Verdict(axes, same_rank, doubt="the function raised an error on some of the drawn queries or keys")
        finding = ""
        if not _same(whole[..., slice(*rows), :], found["rows"]):
            finding = self._what(whole[..., slice(*rows), :], 0, half[0])
        elif "cols" in found and not _same(whole[..., slice(*cols)], found["cols"]):
            finding = self._what(whole[..., slice(*cols)], 1, half[1])
        elif "few" in found and not _same(found["few"], found["excluded"][..., : cols[1]]):
            finding = "the excluded keys of its row"
        return Verdict(axes, same_rank, finding)

    def _evaluate(self, cuts: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Return elements of the trial for the arguments in `cuts`, None where the function raised an error."""

        def evaluate(part: Part, sides: list[Array]) -> dict[str, Array]:
            found: dict[str, Array] = {}
            for name, cut in cuts.items():
                try:
                    found[name] = self._elements(part, sides, **cut)
                except Exception:
                    if name not in ("rows", "cols", "last"):
                        raise
            return found

        if library(self.reference) == "jax":  # compiled at once, in a tenth of the time of operator by operator
            import jax

            evaluate = jax.jit(evaluate, compiler_options={"xla_backend_optimization_level": 0})
        found = {name: to_numpy(x) for name, x in evaluate(self.part, self.sides).items()}
        if found["whole"] is None:
            raise ValueError("the result of the function is traced")
        return {name: found.get(name) for name in cuts}

    def _elements(
        self,
        part: Any,
        sides: list[Array],
        rows: tuple[int, int] | None = None,
        cols: tuple[int, int] | None = None,
        index: BatchIndex = (),
        seed: int = 0,
        side: int = 0,
    ) -> Array:
        """Return the results of the part for some queries, keys and batch elements."""
        for draw in (
            random.seed,
            np.random.seed,
            *([sys.modules["torch"].manual_seed] if is_tensor(self.reference) else []),
        ):
            draw(seed)
        rows, cols = rows or (0, self.lengths[0]), cols or (0, self.lengths[1])
        index = index or tuple(slice(0, n) for n in self.batch)
        tile = self.tile.select_batch(index).restrict(rows, cols)
        part = part.select_batch(index).slice(slice(*rows), slice(*cols))
        sides = [take_batch(x, index, 1 if self.text else 2) for x in sides]
        if isinstance(part, Score):
            out = part.logits(take_range(sides[0], rows), take_range(sides[1], cols), tile)
        elif isinstance(part, Normalizer):
            out = part.weights(sides[side][..., slice(*rows), slice(*cols)], tile)
        else:
            out = part.allowed(tile, self.reference)
        return namespace(out).broadcast_to(out, (*tile.batch, rows[1] - rows[0], cols[1] - cols[0]))

    def _what(self, elements: np.ndarray, side: int, half: tuple[int, int]) -> str:
        """Return whether elements change with the other queries or keys, or with their number alone."""
        name = ("queries", "keys")[side]
        if isinstance(self.part, Mask):
            return f"the number of {name}"
        at, axis = min(side, len(self.sides) - 1), -1 if self.text else -2
        drawn, n = np.asarray(self.sides[at]), self.lengths[side]
        inside = (np.arange(n) >= half[0]) & (np.arange(n) < half[1])
        other = np.where(inside if self.text else inside[:, None], drawn, np.roll(drawn, n // 2, axis))
        self.sides[at] = other if self.text else asarray_like(self.reference, other)
        again = self._evaluate({"whole": {}})["whole"]
        again = again[..., slice(*half), :] if side == 0 else again[..., slice(*half)]
        return f"the number of {name}" if _same(elements, again) else f"the other {name}"

    def _numbers(self, shape: tuple[int, ...]) -> Array:
        return asarray_like(self.reference, self.random.standard_normal(shape).astype(self.dtype))

    def _batch_lengths(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Return batch axes of the trial in place of batch axes of the call."""
        return tuple(n if n == 1 else m for n, m in zip(own, self.batch[len(self.batch) - len(own) :], strict=True))

    def _draw(self, x: Shaped[Array, "*_"], names: tuple[str, ...] | None) -> Shaped[Array, "*_"]:
        shape = tuple(x.shape)
        if names is not None:
            own = len(shape) - len(names)
            core = tuple(
                self.lengths["qk".index(name)] if name in ("q", "k") and length != 1 else length
                for name, length in zip(names, shape[own:], strict=True)
            )
            shape = (*self._batch_lengths(shape[:own]), *core)
        if not is_floating(x):
            # The size of a small number is varied, and the numbers stay small: they may be indices, as of two classes.
            kind, limit = "bool" if "bool" in dtype_name(x) else dtype_name(x), 2 if isinstance(self.part, Score) else 4
            drawn = np.arange(math.prod(shape)) * 5 % 7 % limit
            return asarray_like(self.reference, drawn.reshape(shape).astype(kind))
        return asarray_like(self.reference, self.random.uniform(0.25, 0.75, shape).astype(self.dtype))


def _reference(problem: Problem) -> tuple[Array, str]:
    """Return an array of the library and device of a call, and the name of the dtype of accumulation."""
    dtype = "float64" if problem.dtype == "float64" else "float32"
    module = import_module("jax.numpy" if problem.library == "jax" else problem.library)
    reference = module.zeros((), dtype=getattr(module, dtype))
    on_gpu = problem.library == "torch" and problem.device.is_gpu and module.cuda.is_available()
    return reference.cuda() if on_gpu else reference, dtype


@contextmanager
def _isolated(kind: str) -> Iterator[None]:
    """Evaluate functions without tracing and gradients, and restore the global random generators."""
    module, states = import_module(kind), (random.getstate(), np.random.get_state())
    contexts: dict[str, Callable[[], list[AbstractContextManager[object]]]] = {
        "numpy": list,
        "torch": lambda: [
            module._C._DisableFuncTorch(),
            module.random.fork_rng(),
            module.no_grad(),
            module.autocast("cpu", enabled=False),
        ],
        "jax": lambda: [module.ensure_compile_time_eval()],
        "tensorflow": lambda: [module.init_scope()],
    }
    with ExitStack() as stack, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for each in contexts[kind]():
            stack.enter_context(each)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def _same(expected: np.ndarray, found: np.ndarray | None) -> bool:
    """Return whether arrays are equal but for the rounding of sums in another order."""
    if found is None or expected.size != found.size:
        return False
    found = found.reshape(expected.shape)
    if expected.dtype == bool:
        return bool((expected == found).all())
    largest = float(np.abs(expected, where=np.isfinite(expected), out=np.zeros(expected.shape)).max(initial=0.0))
    return bool(np.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE * largest, equal_nan=True))
