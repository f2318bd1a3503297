"""Compile the programs that are generated for scores, for kinds of GPU that this machine does not have.

python -m tests.kernels.compile_traced 80 90 absolute attend
"""

import json
import os
import sys
from collections.abc import Callable

import torch

from qkv.normalizers import Softmax
from qkv.scores import Custom, Laplace, Score
from tests.kernels.compile_triton import compile_program

PROGRAMS = ("attend", "differentiate_queries", "differentiate_keys")
WIDTH = 64


def differences(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query[..., :, None, :] - key[..., None, :, :]


def _weighted(query: torch.Tensor, key: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return -(differences(query, key).abs() * weight).sum(-1)


def _minkowski(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return -torch.linalg.vector_norm(differences(query, key), ord=3, dim=-1)


def _gated(query: torch.Tensor, key: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return query @ key.mT / 8 * torch.sigmoid(differences(query, key) @ weight)


def _student(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return -2 * torch.log1p(torch.cdist(query, key) ** 2 / 3)


def _matern(query: torch.Tensor, key: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    distance = torch.cdist(query, key) * scale
    return torch.log1p(distance) - distance


def _capped(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return 20 * torch.tanh((query @ key.mT - differences(query, key).abs().sum(-1)) / 20)


SCORES: dict[str, Callable[[], Score]] = {
    "absolute": lambda: Custom(lambda q, k: -differences(q, k).abs().sum(-1)),
    "laplace": lambda: Laplace(2.0),
    "weighted": lambda: Custom(_weighted, (torch.ones(WIDTH),)),
    "minkowski": lambda: Custom(_minkowski),
    "gated": lambda: Custom(_gated, (torch.ones(WIDTH),)),
    "student": lambda: Custom(_student),
    "matern": lambda: Custom(_matern, (torch.ones(()),)),
    "capped": lambda: Custom(_capped),
}


def compile_traced(score: str, program: str, architecture: int) -> dict[str, int]:
    """Return counts of instructions of a causal program of a score, for vectors and values of width 64."""
    from qkv.kernels.triton.program_kernel import Launch
    from qkv.kernels.triton.traced.kernel import traced_blocks
    from qkv.kernels.triton.traced.score_trace import trace_score
    from qkv.kernels.triton.traced.source import load_programs

    trace = trace_score(SCORES[score](), Softmax(), (WIDTH, WIDTH), ())
    blocks = traced_blocks(divmod(architecture, 10), trace.translation.inputs, WIDTH, rounded=False)
    block = blocks[PROGRAMS.index(program)]
    options = Launch(0, blocks).options(block, WIDTH)
    kinds = {"q": "i32", "k": "i32", "offset": "i32", "bad_value": "*i32", "any_bad": "*i32"}
    counts = compile_program(load_programs(trace.source)[program], options, kinds, architecture)
    return counts | {"pairs of a thread": block.queries * block.keys // (32 * block.warps)}


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "0"  # before the first import of Triton
    given = sys.argv[1:]
    names = [name for name in given if name in SCORES] or list(SCORES)
    programs = [name for name in given if name in PROGRAMS] or PROGRAMS
    counts = {
        f"{n} {name} {program}": compile_traced(name, program, int(n))
        for n in given
        if n.isdecimal()
        for name in names
        for program in programs
    }
    print(json.dumps(counts))
