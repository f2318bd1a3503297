"""Kernel regression over a table is the Nadaraya-Watson estimate, and key and value change places."""

import numpy as np
import pytest

from qkv.database import Database

MAJORS = {
    "name": ["John Doe", "Jane Roe", "Omar Haddad", "Grace Kim"],
    "major": ["psychology", "physics", "physics", "economics"],
}


def gpa_table():
    gpa = np.round(np.linspace(2.4, 4.0, 161), 2)
    return {"gpa": gpa, "salary": 30_000 + 40_000 / (1 + np.exp(-(gpa - 3.3) / 0.15))}


@pytest.mark.parametrize(
    ("score", "kernel"),
    [
        ("gaussian:0.2", lambda u: np.exp(-u * u / 2)),
        ("laplace:0.2", lambda u: np.exp(-u)),
        ("boxcar:0.2", lambda u: (u <= 1).astype(float)),
        ("epanechnikov:0.2", lambda u: np.maximum(0, 1 - u * u)),
        ("triangular:0.2", lambda u: np.maximum(0, 1 - u)),
        ("constant", lambda u: np.ones_like(u)),
    ],
)
def test_the_answer_is_the_nadaraya_watson_estimate(score, kernel):
    table = gpa_table()
    weights = kernel(np.abs(table["gpa"] - 3.456) / 0.2)
    weights /= weights.sum()
    expected = weights @ table["salary"]
    answer = Database.open(table, key="gpa", value="salary").ask(3.456, score=score)
    assert answer.value == pytest.approx(expected, rel=1e-12)
    assert answer.spread == pytest.approx(np.sqrt(weights @ (table["salary"] - expected) ** 2), rel=1e-9)
    positive = weights[weights > 0]
    assert answer.perplexity == pytest.approx(np.exp(-(positive * np.log(positive)).sum()), rel=1e-9)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "boxcar", "epanechnikov", "triangular"])
def test_a_kernel_named_without_a_bandwidth_gets_one_that_beats_the_mean(name):
    table = gpa_table()
    answer = Database.open(table, key="gpa", value="salary").ask([2.8, 3.3, 3.8], score=name)
    truth = 30_000 + 40_000 / (1 + np.exp(-(np.array([2.8, 3.3, 3.8]) - 3.3) / 0.15))
    assert np.abs(np.array(answer.value) - truth).max() < 0.1 * table["salary"].std()


def test_swap_asks_for_people_by_major_without_copying_the_table():
    students = Database.open(MAJORS, key="name", value="major")
    majors = students.swap()
    assert majors.table is students.table
    assert majors.ask("psychology").value == "John Doe"
    assert majors.swap().ask("John Doe").value == "psychology"
