"""The programs that are generated for scores, compiled for kinds of GPU that this machine need not have."""

import json

import pytest

from tests.kernels.compile_traced import PROGRAMS, SCORES
from tests.processes import run_python

pytest.importorskip("triton")

SPECIAL_FUNCTIONS = {
    "absolute": ((17, 8, 2), (21, 8, 4), (19, 8, 4)),
    "laplace": ((33, 24, 12), (53, 24, 16), (51, 24, 16)),
    "weighted": ((17, 8, 2), (21, 8, 4), (19, 8, 4)),
    "minkowski": ((33, 32, 8), (53, 32, 16), (51, 32, 16)),
    "gated": ((48, 24, 8), (84, 12, 12), (82, 12, 12)),
    "student": ((49, 40, 14), (85, 40, 20), (83, 40, 20)),
    "matern": ((49, 40, 14), (85, 40, 20), (83, 40, 20)),
    "capped": ((48, 24, 12), (84, 24, 12), (82, 24, 12)),
}
"""Special functions of the three programs of each score, on sm_80 to sm_89, sm_90 and sm_100."""


def _counts(*arguments: str) -> dict[str, dict[str, int]]:
    return json.loads(run_python("-m", "tests.kernels.compile_traced", *arguments))


def check(architecture: int, score: str, program: str, counts: dict[str, int]) -> None:
    label = architecture, score, program
    assert counts["spills"] == 0, label
    assert counts["atomics"] == 0, label
    assert counts["shared bytes"] <= 99 * 1024, label
    column = 0 if architecture < 90 else 1 if architecture < 100 else 2
    assert counts["special functions"] <= SPECIAL_FUNCTIONS[score][column][PROGRAMS.index(program)], label


@pytest.mark.long
@pytest.mark.parametrize("architecture", [80, 86, 89, 90, 100])
def test_no_program_of_typical_scores_stores_registers(architecture: int) -> None:
    found = _counts(str(architecture))
    for score in SCORES:
        for program in PROGRAMS:
            check(architecture, score, program, found[f"{architecture} {score} {program}"])
