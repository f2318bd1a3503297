"""A call tile by tile as one autograd function: forward keeps a few numbers of each query, backward computes
the tiles again.

Where the gradient itself is to be differentiated, the call is run again in strips (`row_blocks/autograd.py`).
"""

from __future__ import annotations

from typing import Any

from qkv.core.equation import BoundCall
from qkv.core.typing import Tensor
from qkv.kernels.compiled.saved import current_saved
from qkv.kernels.row_blocks.autograd import RowBlocks, double_backward
from qkv.kernels.runtime.tile_sizes import TileSizes
from qkv.kernels.tiled.schedule import backward, forward

__all__ = ["attend"]


def attend(call: BoundCall, tiling: TileSizes, strip: int, notes: list[str], *tensors: Tensor) -> Tensor:
    """The output.

    Args:
        call: the call.
        tiling: sizes of its tiles.
        strip: queries in a strip, for derivatives of the gradient.
        notes: gets how guards on the data went.
        *tensors: query, key, value and the arrays of score and normalizer, as `call` holds them.
    """
    return _function()(call, tiling, strip, notes, *tensors)


def _function() -> Any:
    """Made when torch is there."""
    global _APPLY
    if _APPLY is None:
        import torch

        class Attend(torch.autograd.Function):
            @staticmethod
            def forward(
                ctx: Any, call: BoundCall, tiling: TileSizes, strip: int, notes: list[str], *tensors: Any
            ) -> Any:
                kept = current_saved()
                known = kept.take() if kept is not None else None
                output, *summary = forward(call, tiling, notes) if known is None else (known[0], *known[1])
                if kept is not None:
                    kept.note(summary)
                ctx.save_for_backward(output, *summary, *tensors)
                ctx.call, ctx.tiling, ctx.strip, ctx.count = call, tiling, strip, len(summary)
                return output

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                output, *rest = ctx.saved_tensors
                summary, tensors = rest[: ctx.count], rest[ctx.count :]
                wanted = ctx.needs_input_grad[4:]
                grads: Any
                with torch.autocast(output.device.type, enabled=False):
                    if torch.is_grad_enabled():  # the gradient itself will be differentiated
                        strips = RowBlocks(ctx.call, (), ctx.strip, with_output=True)
                        grads = double_backward(strips, tensors, [gradient])
                    else:
                        call = ctx.call.with_arrays([x.detach() for x in tensors])
                        logits_wanted = any(wanted[:2]) or any(wanted[3:])
                        grads = backward(call, ctx.tiling, output, summary, gradient, logits_wanted)
                return (
                    None,
                    None,
                    None,
                    None,
                    *(g if w else None for g, w in zip(grads, wanted, strict=True)),
                )

        _APPLY = Attend.apply
    return _APPLY


_APPLY: Any = None
