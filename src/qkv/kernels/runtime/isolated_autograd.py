"""Differentiation of the projections of a call in a separate autograd node, with autocast disabled.

Without a separate node, a projection would be differentiated under the autocast setting of the code that calls
`backward()`, possibly in half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from qkv.core.arrays import requires_gradient
from qkv.core.autograd_function import autograd_function
from qkv.core.equation import BoundCall
from qkv.core.typing import Num, Shaped, Tensor
from qkv.kernels.runtime.context import no_autocast
from qkv.kernels.runtime.gradients import gradients_of
from qkv.scores import Score
from qkv.scores.wrapper import PointwiseScore

if TYPE_CHECKING:
    from qkv.core.autograd_function import Context

    class _Context(Context):
        function: Callable[..., Sequence[Tensor]]
        graph: tuple[Sequence[Tensor], Sequence[Tensor]] | None


def projects_nothing(score: Score) -> bool:
    """Return whether the projections of a score are query and key themselves."""
    while (
        isinstance(score, PointwiseScore) and score.lift_kind is None and type(score).project is PointwiseScore.project
    ):
        score = score.score
    return score.form.lift is None and type(score).project is Score.project


def project_call(call: BoundCall) -> BoundCall:
    """Return a call whose query and key are replaced by their projections, computed in a separate autograd node."""
    if projects_nothing(call.score):
        return call.with_projections(call.query, call.key)

    def projections(
        query: Num[Tensor, "*#batch q query_width"],
        key: Num[Tensor, "*#batch k key_width"],
        *arrays: Shaped[Tensor, "*_"],
    ) -> tuple[Num[Tensor, "*_ q projected_query_width"], Num[Tensor, "*_ k projected_key_width"]]:
        projected = call.score.replace_arrays(arrays).project(query, key, call.tile)
        return cast("tuple[Tensor, Tensor]", projected)

    tensors = cast("list[Tensor]", [call.query, call.key, *call.score.arrays()])
    if not _recorded(tensors):
        return call.with_projections(*call.score.project(call.query, call.key, call.tile))
    return call.with_projections(*isolated_autograd(projections, *tensors))


def isolated_autograd(
    function: Callable[..., Sequence[Shaped[Tensor, "*_"]]], *tensors: Shaped[Tensor, "*_"]
) -> list[Shaped[Tensor, "*_"]]:
    """Return the tensors `function(*tensors)`, computed by one autograd node with autocast disabled in backward.

    The node supports higher derivatives of the function.

    Args:
        function: function that returns tensors; arguments may be among them.
        tensors: arguments of the function, including every tensor that may require a gradient.
    """
    if not _recorded(tensors):
        return list(function(*tensors))
    # A leaf for each argument, because one tensor may be given twice.
    leaves = [x.detach().requires_grad_(x.requires_grad) for x in tensors]
    outputs = list(function(*leaves))
    for n, x in enumerate(outputs):
        for given, leaf in zip(tensors, leaves, strict=True):
            if x is leaf:
                outputs[n] = given
    computed = [n for n, x in enumerate(outputs) if not any(x is given for given in tensors)]
    if computed:

        def computed_only(*tensors: Shaped[Tensor, "*_"]) -> list[Shaped[Tensor, "*_"]]:
            results = function(*tensors)
            return [results[n] for n in computed]

        nodes = autograd_function(_forward, _backward)(
            computed_only, ([outputs[n] for n in computed], leaves), *tensors
        )
        for n, x in zip(computed, nodes, strict=True):
            outputs[n] = x
    return outputs


def _recorded(tensors: Sequence[Shaped[Tensor, "*_"]]) -> bool:
    """Return whether autograd records a computation on the tensors."""
    import torch

    return torch.is_grad_enabled() and any(requires_gradient(x) for x in tensors)


def _forward(
    ctx: _Context,
    function: Callable[..., list[Shaped[Tensor, "*_"]]],
    graph: tuple[list[Shaped[Tensor, "*_"]], list[Shaped[Tensor, "*_"]]],
    *tensors: Shaped[Tensor, "*_"],
) -> tuple[Shaped[Tensor, "*_"], ...]:
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)
    ctx.function, ctx.graph = function, graph
    return tuple(x.detach() for x in graph[0])


def _backward(ctx: _Context, *gradients: Num[Tensor, "*_"] | None) -> tuple[Num[Tensor, "*_"] | None, ...]:
    import torch

    twice = torch.is_grad_enabled()
    needed = ctx.needs_input_grad[2:]
    with torch.enable_grad(), no_autocast(ctx.saved_tensors[0]):
        if twice:
            leaves: Sequence[Tensor] = [x.view_as(x) for x in ctx.saved_tensors]
            outputs = ctx.function(*leaves)
        elif ctx.graph is None:  # an earlier backward pass used it
            leaves = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
            outputs = ctx.function(*leaves)
        else:
            outputs, leaves = ctx.graph
            ctx.graph = None
        inputs = [x for x, n in zip(leaves, needed, strict=True) if n]
        results = iter(gradients_of(outputs, gradients, inputs, create_graph=twice))
    return (None, None, *(next(results) if n else None for n in needed))
