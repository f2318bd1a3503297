"""The functions of the package entmax as calls of `qkv.attend`."""

import math
import os
from typing import Any

import torch

import qkv
from qkv.normalizers import Entmax
from qkv.scores import Biased, Constant

__all__ = ["entmax_bisect", "weights"]

KERNEL = os.environ.get("QKV_KERNEL") or None


def weights(x: Any, dim: int, normalizer: Any) -> Any:
    """Return the weights that a call of qkv gives to logits along the axis `dim`; each row is a batch element."""
    moved = x.movedim(dim, -1)
    rows = moved.reshape(-1, 1, moved.shape[-1])
    n, _, k = rows.shape
    query, key = rows.new_zeros(n, 1, 1), rows.new_zeros(n, k, 1)
    identity = torch.eye(k, dtype=x.dtype).expand(n, k, k)
    score = Biased(Constant(), bias=rows)
    found = qkv.attend(query, key, identity, score=score, normalizer=normalizer, kernel=KERNEL)
    return found.reshape(moved.shape).movedim(-1, dim)


def entmax_bisect(X: Any, alpha: Any = 1.5, dim: int = -1, n_iter: int = 50, ensure_sum_one: bool = True) -> Any:
    if not isinstance(alpha, torch.Tensor):
        return weights(X, dim, Entmax(float(alpha)))
    shape = list(X.shape)
    shape[dim] = 1
    return weights(X, dim, Entmax(alpha.expand(shape).movedim(dim, -1).reshape(math.prod(shape))))
