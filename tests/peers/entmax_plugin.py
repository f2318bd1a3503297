"""A pytest plugin under which the tests of the package entmax test qkv: `-p tests.peers.entmax_plugin`.

Every function of entmax that has a counterpart in qkv is replaced by a call of `qkv.attend` with values of an identity
matrix, whose output is the weights. In `entmax.test_root_finding`, which compares the bisection with the sort, only the
bisection is replaced. The kernel is named by the environment variable QKV_KERNEL.
Their tests draw inputs without a seed, so one is set here.
"""

import warnings
from typing import Any

import torch

from qkv.normalizers import Entmax15, Sparsemax
from tests.peers.entmax_calls import entmax_bisect, weights

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import entmax
    from entmax import activations, losses, root_finding


def sparsemax(X: Any, dim: int = -1, k: int | None = None) -> Any:
    return weights(X, dim, Sparsemax())


def entmax15(X: Any, dim: int = -1, k: int | None = None) -> Any:
    return weights(X, dim, Entmax15())


def sparsemax_bisect(X: Any, dim: int = -1, n_iter: int = 50, ensure_sum_one: bool = True) -> Any:
    return weights(X, dim, Sparsemax())


class _Module(torch.nn.Module):
    def __init__(self, dim: int = -1, k: int | None = None) -> None:
        super().__init__()
        self.dim, self.k = dim, k


class SparsemaxModule(_Module):
    def forward(self, X: Any) -> Any:
        return sparsemax(X, self.dim)


class Entmax15Module(_Module):
    def forward(self, X: Any) -> Any:
        return entmax15(X, self.dim)


torch.manual_seed(0)
for module in (entmax, root_finding, losses):
    module.sparsemax_bisect, module.entmax_bisect = sparsemax_bisect, entmax_bisect
import entmax.test_root_finding  # noqa: E402  with entmax's own sparsemax and entmax15

for module in (entmax, activations, losses):
    module.sparsemax, module.entmax15 = sparsemax, entmax15
for module in (entmax, activations):
    module.Sparsemax, module.Entmax15 = SparsemaxModule, Entmax15Module
