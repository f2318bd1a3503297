"""Whether the arrays of a call show their data: not under the transforms and tracers of PyTorch.

What cannot be looked at must not decide which way a call goes, so kernels that look, or whose backward
pass is written by hand, are left out.
"""

from __future__ import annotations

import sys

from qkv.core.arrays import Array

__all__ = ["tracing_mode"]


def tracing_mode(*arrays: Array) -> str:
    """What hides the data of a call: "compile", "export", "vmap", "jvp" or "twice"; "" where nothing does.

    "vmap" stands for `torch.func.grad` too; "twice" is a gradient of a gradient there.

    Example:
        >>> import numpy as np
        >>> tracing_mode(np.zeros(2))
        ''
    """
    torch = sys.modules.get("torch")
    if torch is None or not any(isinstance(x, torch.Tensor) for x in arrays):
        return ""
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        return "export"
    if torch.compiler.is_compiling():
        return "compile"
    if torch.autograd.forward_ad._current_level >= 0:
        return "jvp"
    # Without the transforms this one attribute is all that is asked.
    inner = torch._C._functorch
    if inner.maybe_current_level() is None:
        return ""
    kinds = [level.key() for level in inner.get_interpreter_stack() or ()]
    if inner.TransformType.Jvp in kinds:
        return "jvp"
    return "twice" if kinds.count(inner.TransformType.Grad) > 1 else "vmap"
