"""Function that detects PyTorch's tracers and function transforms.

A tensor under a tracer or transform has no values to read, so the planner excludes kernels that inspect values or
define their own backward pass.
"""

from __future__ import annotations

import sys

from qkv.core.typing import Array, Shaped


def tracing_mode(*arrays: Shaped[Array, "*_"]) -> str:
    """Return the name of the active PyTorch tracer or transform, or "" if there is none.

    The names are "compile", "export", "vmap", "jvp" and "twice". "vmap" includes `torch.func.grad`, and "twice" means
    nested calls of `torch.func.grad`. The result is also "" if none of the arrays is a tensor.

    Example:
        >>> import numpy as np
        >>> tracing_mode(np.zeros(2))
        ''
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    tensor = torch.Tensor
    for x in arrays:  # `any` with a generator takes three times as long
        if isinstance(x, tensor):
            break
    else:
        return ""
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        return "export"
    if torch.compiler.is_compiling():
        return "compile"
    if torch.autograd.forward_ad._current_level >= 0 and torch._C._is_fwd_grad_enabled():
        return "jvp"
    # Without a transform this is the only check.
    inner = torch._C._functorch
    if inner.maybe_current_level() is None:
        return ""
    kinds = [level.key() for level in inner.get_interpreter_stack() or ()]
    if inner.TransformType.Jvp in kinds:
        return "jvp"
    return "twice" if kinds.count(inner.TransformType.Grad) > 1 else "vmap"
