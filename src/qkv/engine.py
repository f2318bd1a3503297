"""Public functions that plan and run a call: attend, observe, explain and prepare.

attend    run a call and return the output
observe   run a call and return the output, readouts of the weights, and the plan
explain   return the plan of a call without running it
prepare   return a function that runs a fixed plan
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Never

from qkv.core.arrays import as_array, library, requires_gradient
from qkv.core.axes import Axes
from qkv.core.positions import Positions
from qkv.core.printable import html_table
from qkv.core.threefry import Seed
from qkv.core.tracing import tracing_mode
from qkv.core.typing import Array, ArrayLike, Num, ReadoutResult, Shaped
from qkv.errors import KindError, QkvError, ShapeError
from qkv.kernels import LAZY_KERNELS
from qkv.masks import Mask
from qkv.normalizers import Normalizer
from qkv.plan import Kernel, Plan, Spec, plan_problem
from qkv.plan.bind import bind_problem, bind_unconverted
from qkv.plan.budget import budget_bytes, warn_of_slowdown
from qkv.plan.cache import PLANS, CachedPlan, SpecFields, cached_plan, call_signature, store_plan
from qkv.plan.checks import as_readouts, check_arrays, check_problem, read_problem
from qkv.plan.devices import device_named
from qkv.plan.explain_errors import explain_failure, refuse_unknown
from qkv.plan.grouped_heads import run_grouped, split_heads
from qkv.plan.kernel_protocol import Result
from qkv.plan.precise_call import run_precisely, selects_near_keys
from qkv.plan.problem import Problem
from qkv.plan.shared_keys import join_queries, part_queries
from qkv.plan.step_cache import step_plan, with_keys, without_position
from qkv.readouts import Readout
from qkv.scores import Gaussian, Score
from qkv.torch_bridge.export import export_plan


@dataclass(frozen=True)
class Observation:
    """Output and readouts of a call, and the plan that ran, as returned by `observe` and by prepared calls.

    Attributes:
        output: output `(*batch, q, value_width)`.
        readouts: one result for each readout, in the given order.
        plan: the plan that ran, with the outcome of its run-time checks.
    """

    output: Num[Array, "*batch q value_width"]
    readouts: tuple[ReadoutResult, ...]
    plan: Plan

    def _repr_html_(self) -> str:
        """Return the shapes of the results and the kernel as a table, which notebooks show."""
        names = ["output", *map(str, self.plan.requested.readouts)]
        shapes = [_shape_text(one) for one in (self.output, *self.readouts)]
        kernel = next(text for name, text in self.plan.rows() if name == "kernel")
        return html_table("observation", [*zip(names, shapes, strict=True), ("kernel", kernel)])


def _shape_text(result: object) -> str:
    """Return the shape and dtype of an array, or those of the arrays of a tuple."""
    if isinstance(result, tuple):
        return ", ".join(map(_shape_text, result))
    shape = "×".join(map(str, getattr(result, "shape", ())))
    return f"{shape or 'one'} {getattr(result, 'dtype', type(result).__name__)}"


def plan_call(
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    value: Num[Array, "*#batch k value_width"],
    fields: SpecFields,
    readouts: tuple[Readout, ...],
    kernel: str | Kernel | None,
    memory: int | str | None,
    traced: str,
    recomputes: bool = False,
) -> Plan:
    """Check and plan a call, and warn if the memory budget makes it much slower.

    Args:
        query: queries.
        key: keys.
        value: values.
        fields: score, normalizer, mask, positions and dropout.
        readouts: the readouts.
        kernel: as in `qkv.attend`.
        memory: as in `qkv.attend`.
        traced: kind of tracing that hides the data, as in `Problem.traced`, or "export".
        recomputes: as in `Problem.recomputes`.

    Raises:
        QkvError: the call is invalid; see `qkv.attend`.
    """
    check_arrays(query, key, value, () if traced else (*fields, *readouts))
    problem = read_problem(query, key, value, Spec(*fields), readouts, memory, traced)
    problem = replace(problem, recomputes=recomputes)
    check_problem(problem)
    plan = (export_plan if traced == "export" else plan_problem)(problem, LAZY_KERNELS, kernel)
    warn_of_slowdown(plan)
    return plan


Shape = tuple[int, ...]


def attend(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    score: Score | None = None,
    normalizer: Normalizer | None = None,
    mask: Mask | None = None,
    positions: Positions | None = None,
    dropout: float = 0.0,
    seed: Seed | None = None,
    kernel: str | Kernel | None = None,
    memory: int | str | None = None,
    enable_gqa: bool = False,
    **unknown: Never,
) -> Num[Array, "*batch q value_width"]:
    """Compute attention: for each query, the sum of the values weighted by how well their keys match the query.

        weights = normalize(score(query, key), mask)          output = weights @ value

    Args:
        query: queries `(*batch, q, width)`, or text `(*batch, q)`.
        key: keys `(*batch, k, width)`, or text `(*batch, k)`.
        value: values `(*batch, k, value_width)`. Batch axes broadcast, without copies.
        score: function that gives each pair of query and key a logit. The default is `ScaledDot()`.
        normalizer: function that maps logits to weights. The default depends on the score; it is `Softmax()` for most.
        mask: mask of the pairs that may attend; None allows all pairs.
        positions: how query positions relate to key positions. Required if q ≠ k and the score or mask uses positions.
        dropout: probability of dropping a weight, greater than 0 only in training.
        seed: seed of random numbers. With None, PyTorch's generator provides it; for NumPy, JAX and TensorFlow a seed
            is required for dropout and sampling. In JAX and TensorFlow it may be an integer array, so that a compiled
            function can use a different seed at each step.
        kernel: name of the kernel that must run the call, or a `Kernel` object; None to let the planner choose.
        memory: budget for scratch memory, in bytes or as text like "512 MiB". Inputs, output and gradients do not
            count. None: the larger of 512 MiB and an eighth of the total memory of the machine or container.
        enable_gqa: whether key and value may have fewer heads (axis −3) than query, as in PyTorch: each key head
            serves consecutive query heads, without copies (grouped-query attention).
        **unknown: refused; arguments of PyTorch with what to pass instead.

    Returns:
        Output `(*batch, q, value_width)`, in the library of the inputs. If query, key and value differ in dtype, the
        result has the dtype to which the library promotes theirs, such as float64 if one is float64; PyTorch's
        `scaled_dot_product_attention` refuses such inputs. Rows without any allowed key are 0.

    Raises:
        ShapeError: lengths, widths or batch axes do not match.
        KindError: an argument has the wrong type, such as an array as the mask; the score does not support text, or
            requires it; or the arrays belong to different libraries.
        PositionError: positions are required but not given.
        RefusedError: no kernel, or not the named kernel, can run the call within the budget.

    Example:
        >>> import numpy as np, qkv
        >>> salary = np.array([[30.0], [40.0], [60.0]])
        >>> gpa = np.array([[3.0], [3.5], [3.9]])
        >>> qkv.attend(np.array([[3.5]]), gpa, salary, score=qkv.scores.Gaussian(0.1))
        array([[40.0066...]])
    """
    if unknown:
        refuse_unknown("attend", unknown)
    fields = score, normalizer, mask, positions, dropout
    try:
        return _run(query, key, value, fields, (), seed, kernel, memory, enable_gqa)[0].output
    except QkvError:
        raise
    except (TypeError, AttributeError, RuntimeError):
        explain_failure(query, key, value, fields, kernel, memory)
        raise


def _attend_in_operator(
    query: Shaped[Array, "*_"],
    key: Shaped[Array, "*_"],
    value: Num[Array, "*#batch k value_width"],
    fields: SpecFields,
    seed: Seed | None,
    kernel: str | Kernel | None,
    memory: int | str | None,
) -> Num[Array, "*batch q value_width"]:
    """Run a call inside the custom operator for `torch.compile`, and return its output."""
    return _run(query, key, value, fields, (), seed, kernel, memory, recomputes=True)[0].output


def observe(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    readouts: Sequence[Readout] = (),
    score: Score | None = None,
    normalizer: Normalizer | None = None,
    mask: Mask | None = None,
    positions: Positions | None = None,
    dropout: float = 0.0,
    seed: Seed | None = None,
    kernel: str | Kernel | None = None,
    memory: int | str | None = None,
    enable_gqa: bool = False,
    **unknown: Never,
) -> Observation:
    """Compute attention, and return the output, readouts of the weights, and the plan.

    The output is the same as that of `attend`.

    Args:
        query: as in `attend`.
        key: as in `attend`.
        value: as in `attend`.
        readouts: readouts from `qkv.readouts`, which are computed from the weights.
        score: as in `attend`.
        normalizer: as in `attend`.
        mask: as in `attend`.
        positions: as in `attend`.
        dropout: as in `attend`.
        seed: as in `attend`.
        kernel: as in `attend`.
        memory: as in `attend`.
        enable_gqa: as in `attend`.
        **unknown: as in `attend`.

    Raises:
        RefusedError: a readout is not defined for the normalizer. Other errors are as in `attend`.

    Example:
        >>> import numpy as np, qkv
        >>> keys = np.array([[0.0], [1.0]])
        >>> result = qkv.observe(np.array([[9.0]]), keys, keys, readouts=[qkv.readouts.TopWeights(1)])
        >>> result.readouts[0].keys
        array([[1]])
    """
    if unknown:
        refuse_unknown("observe", unknown)
    fields = score, normalizer, mask, positions, dropout
    arguments = query, key, value, fields, readouts, seed, kernel, memory, enable_gqa
    if tracing_mode(query, key, value) == "compile":
        from qkv.torch_bridge.operator import break_graph, run_uncompiled

        break_graph()
        return run_uncompiled(_observe, *arguments)
    return _observe(*arguments)


def _observe(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    fields: SpecFields,
    readouts: Sequence[Readout],
    seed: Seed | None,
    kernel: str | Kernel | None,
    memory: int | str | None,
    enable_gqa: bool,
) -> Observation:
    try:
        result, plan = _run(query, key, value, fields, as_readouts(readouts), seed, kernel, memory, enable_gqa, True)
    except QkvError:
        raise
    except (TypeError, AttributeError, RuntimeError):
        explain_failure(query, key, value, fields, kernel, memory)
        raise
    assert plan is not None
    return Observation(result.output, result.readouts, plan.with_guards_taken(result.guards))


def explain(
    query: ArrayLike | Shape,
    key: ArrayLike | Shape,
    value: ArrayLike | Shape,
    *,
    readouts: Sequence[Readout] = (),
    score: Score | None = None,
    normalizer: Normalizer | None = None,
    mask: Mask | None = None,
    positions: Positions | None = None,
    dropout: float = 0.0,
    kernel: str | Kernel | None = None,
    memory: int | str | None = None,
    enable_gqa: bool = False,
    library: str = "numpy",
    dtype: str = "float32",
    gradient: bool = False,
    device: str = "cpu",
) -> Plan:
    """Return the plan of a call without running it. Shapes may be given in place of arrays.

    Args:
        query: queries, or their shape as a tuple.
        key: keys, or their shape.
        value: values, or their shape.
        readouts: as in `observe`.
        score: as in `observe`.
        normalizer: as in `observe`.
        mask: as in `observe`.
        positions: as in `observe`.
        dropout: as in `observe`.
        kernel: as in `observe`.
        memory: as in `observe`.
        enable_gqa: as in `observe`.
        library: array library, used if shapes are given.
        dtype: name of the dtype of the arrays, used if shapes are given.
        gradient: whether an array requires a gradient, used if shapes are given.
        device: the processor: "cpu", "cuda", "cuda:1", or a kind of GPU such as "H100", which this machine need not
            have; used if shapes are given. GPUs are planned for "torch" and "jax".

    Raises:
        OptionError: the device is unknown, or is a GPU for another library than PyTorch and JAX.
        QkvError: the call is invalid; see `attend`.

    Example:
        >>> import qkv
        >>> print(qkv.explain((1, 64), (10_000_000, 64), (10_000_000, 64)).kernel.name)
        numpy_blocks
    """
    spec, readouts = Spec(score, normalizer, mask, positions, dropout), as_readouts(readouts)
    if enable_gqa:
        (query, key, value), spec, readouts, _ = split_heads(query, key, value, spec, readouts)
    if not _are_shapes(query, key, value):
        query, key, value = (as_array(x) for x in (query, key, value))
    if not (readouts or kernel) and (joined := join_queries(query, key, value, spec)) is not None:
        (query, key, value), spec, _ = joined
    return _explain((query, key, value), spec, readouts, kernel, memory, library, dtype, gradient, device)


def _are_shapes(*sides: object) -> bool:
    return all(isinstance(x, tuple) and all(isinstance(n, int) for n in x) for x in sides)


def _explain(
    sides: tuple[ArrayLike, ArrayLike, ArrayLike],
    spec: Spec,
    readouts: tuple[Readout, ...],
    kernel: str | Kernel | None,
    memory: int | str | None,
    library: str,
    dtype: str,
    gradient: bool,
    device: str,
) -> Plan:
    """Return the plan of a call of arrays or shapes."""
    if _are_shapes(*sides):
        axes = Axes.of(*sides, text=spec.score is not None and spec.score.accepts == "text")
        processor = device_named(device, library)
        budget = budget_bytes(memory, processor)
        problem = Problem(spec, axes, library, dtype, gradient, readouts, budget, device=processor)
    else:
        problem = read_problem(*sides, spec, readouts, memory)
    check_problem(problem)
    return plan_problem(problem, LAZY_KERNELS, kernel)


def prepare(
    spec: Spec,
    shapes: tuple[Shape, Shape, Shape],
    *,
    readouts: Sequence[Readout] = (),
    kernel: str | Kernel | None = None,
    memory: int | str | None = None,
    library: str = "numpy",
    dtype: str = "float32",
    gradient: bool = False,
    device: str = "cpu",
) -> Prepared:
    """Plan a call once and return a function that runs the plan, for many calls with the same shapes.

    Args:
        spec: score, normalizer, mask, positions and dropout.
        shapes: shapes of query, key and value.
        readouts: as in `explain`.
        kernel: as in `explain`.
        memory: as in `explain`.
        library: as in `explain`.
        dtype: as in `explain`.
        gradient: as in `explain`.
        device: as in `explain`.

    Raises:
        QkvError: the call is invalid; see `attend`.

    Example:
        >>> import numpy as np, qkv
        >>> run = qkv.prepare(qkv.Spec(qkv.scores.Dot()), ((1, 2), (3, 2), (3, 1)), dtype="float64")
        >>> run(np.zeros((1, 2)), np.ones((3, 2)), np.array([[1.0], [2.0], [6.0]])).output
        array([[3.]])
    """
    plan = _explain(shapes, spec, as_readouts(readouts), kernel, memory, library, dtype, gradient, device)
    warn_of_slowdown(plan)
    return Prepared(plan)


@dataclass(frozen=True)
class Prepared:
    """Callable object that runs a fixed plan on query, key and value of the planned shapes.

    Attributes:
        plan: the plan.
    """

    plan: Plan
    _cached: dict[Hashable, CachedPlan] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, query: ArrayLike, key: ArrayLike, value: ArrayLike, *, seed: Seed | None = None) -> Observation:
        """Run the plan and return the output and the readouts.

        Args:
            query: as in `attend`.
            key: as in `attend`.
            value: as in `attend`.
            seed: as in `attend`.

        Raises:
            ShapeError: the shapes of the arrays differ from those of the plan.
            KindError: the library of the arrays differs from that of the plan.
        """
        query, key, value = (as_array(x) for x in (query, key, value))
        if (traced := tracing_mode(query, key, value)) == "compile":
            from qkv.torch_bridge.operator import break_graph, run_uncompiled

            break_graph()
            return run_uncompiled(self, query, key, value, seed=seed)
        plan, axes = self.plan, self.plan.requested.axes
        shapes = tuple(tuple(x.shape) for x in (query, key, value))
        if shapes != (axes.query, axes.key, axes.value):
            raise ShapeError(
                f"query, key and value must have the planned shapes {axes.query}, {axes.key}, {axes.value}, got "
                f"{shapes[0]}, {shapes[1]}, {shapes[2]}. Prepare another plan, or call qkv.attend."
            )
        if (given := library(query, key, value)) != plan.requested.library:
            raise KindError(
                f"query, key and value must be {plan.requested.library} arrays, as planned, got {given} arrays. "
                "Prepare another plan, or call qkv.attend."
            )
        spec, result = plan.requested.spec, None
        fields = spec.score, spec.normalizer, spec.mask, spec.positions, spec.dropout
        precisely = partial(
            run_precisely, partial(_run, observed=True), query, key, value, fields, plan.requested.readouts,
            (seed, plan.kernel, plan.requested.memory), "",
        )  # fmt: skip
        cancels = plan.problem.score.cancels  # the data decides how it is computed
        kernel_checks = cancels and type(spec.score) is Gaussian and plan.kernel.checks_distances
        kernel_checks &= not selects_near_keys(spec.normalizer, plan.requested.readouts, query.shape[-1])
        cached = None if traced or seed is not None else self._plan_for(query, key, value)
        precise = precisely() if cancels and not kernel_checks else None
        if precise is None and cached is not None:
            result = cached.run(query, key, value, fields)
        if result is None and kernel_checks:
            precise = precisely()
        if precise is not None and precise[1] is not None:
            result, plan = precise[0], precise[1]
        if result is None:
            bound = cached is not None and cached.bound
            bind = bind_unconverted if bound else partial(bind_problem, seed=seed, kernel=plan.kernel)
            result = plan.kernel.run(bind(query, key, value, plan.problem), plan.problem)
        return Observation(result.output, result.readouts, plan.with_guards_taken(result.guards))

    def _plan_for(
        self, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"], value: Num[Array, "*#batch k value_width"]
    ) -> CachedPlan | None:
        """Return the plan with the function of its kernel, or None for a gradient that was not planned."""
        if not self.plan.problem.gradient and any(requires_gradient(x) for x in (query, key, value)):
            return None
        kind = query.dtype, key.dtype, value.dtype
        if kind not in self._cached:
            self._cached[kind] = cached_plan(self.plan, False, query, key, value)
        return self._cached[kind]


def _run(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    fields: SpecFields,
    readouts: tuple[Readout, ...],
    seed: Seed | None,
    kernel: str | Kernel | None,
    memory: int | str | None,
    enable_gqa: bool = False,
    observed: bool = False,
    recomputes: bool = False,
    checked: bool = False,
) -> tuple[Result, Plan | None]:
    """Plan and run a call, and return the result and the plan. The plan is None under `torch.compile`.

    If `observed` is False, the plan may have no parts. `recomputes` is as in `Problem.recomputes`. With
    `checked`, a score whose logits cancel is used as it is.
    """
    if enable_gqa:
        return run_grouped(_run, query, key, value, fields, readouts, seed, kernel, memory, False, observed)
    query, key, value = as_array(query), as_array(key), as_array(value)
    traced = tracing_mode(query, key, value)
    if traced == "compile":
        from qkv.torch_bridge.operator import compiled_attend

        return Result(compiled_attend(query, key, value, fields, seed, _attend_in_operator, kernel, memory)), None
    if traced in ("vmap", "jvp", "twice"):
        from qkv.torch_bridge.call import run_transformed

        transformed = run_transformed(_run, query, key, value, fields, readouts, seed, kernel, memory)
        if transformed is not None:
            return transformed
    if len(query.shape) > 2 and not (traced or readouts or kernel or recomputes):
        joined = join_queries(query, key, value, fields)
        if joined is not None:
            one, plan = _run(*joined[0], joined[1], (), seed, kernel, memory, False, observed, checked=checked)
            return replace(one, output=part_queries(one.output, joined[2])), plan
    if fields[2] is not None and not (traced or observed or readouts or kernel):
        key, value, fields = without_position(query, key, value, fields)
    options = kernel, memory, traced, recomputes
    # Plans are not cached under torch.export: a graph is exported only once, and its lengths may be symbolic.
    found = None
    if traced != "export":
        found = call_signature(query, key, value, fields, readouts, *options, type(memory).__name__)
    cached, planned = None if found is None else PLANS.get(found[0]), None
    if cached is None and found is not None and not (observed or readouts):
        cached = step_plan(
            *found, query, key, value, fields, lambda q, k, v: plan_call(q, k, v, fields, readouts, *options)
        )
    if cached is None:
        planned = plan_call(query, key, value, fields, readouts, *options)
        if found is not None:
            store_plan(*found, planned, query, key, value)
    score, precisely = fields[0], None
    if score is not None and score.cancels and not checked:
        run = partial(_run, observed=observed, recomputes=recomputes)
        precisely = partial(run_precisely, run, query, key, value, fields, readouts, (seed, kernel, memory), traced)
    kernel_checks = cached is not None and type(score) is Gaussian and cached.plan.kernel.checks_distances
    kernel_checks = kernel_checks and not selects_near_keys(fields[1], readouts, query.shape[-1])
    if precisely is not None and not kernel_checks and (precise := precisely()) is not None:
        return precise
    if cached is not None:
        result = cached.run(query, key, value, fields) if seed is None else None
        if result is not None:
            holds = observed and cached.holds_arrays
            return result, cached.with_parts(Spec(*fields), readouts) if holds else cached.plan
        if precisely is not None and kernel_checks and (precise := precisely()) is not None:
            return precise
        cached = with_keys(cached, query, key, value) if cached.longest else cached
        plan = cached.with_parts(Spec(*fields), readouts) if cached.holds_arrays else cached.plan
        if cached.bound and seed is None:
            return plan.kernel.run(bind_unconverted(query, key, value, plan.problem), plan.problem), plan
    else:
        assert planned is not None
        plan = planned
    return plan.kernel.run(bind_problem(query, key, value, plan.problem, seed, plan.kernel), plan.problem), plan


for _verb in (attend, observe, explain, prepare, Prepared.__call__):
    # Mark the function for `tf.function`: otherwise AutoGraph rewrites the whole engine, and warns if it fails to.
    setattr(_verb, "autograph_info__", {})  # noqa: B010
