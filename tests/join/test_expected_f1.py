"""The threshold of joins without labels."""

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("pyarrow")

from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.join import SoftJoin
from qkv.join.unsupervised import expected_f1_threshold
from tests.effort import cases


def expected_f1(weights, threshold):
    found = weights >= threshold
    return 2 * weights[found].sum() / (found.sum() + weights.sum())


@settings(derandomize=True, max_examples=cases(60), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.floats(1.0, 100.0))
def test_no_threshold_from_two_fifths_to_a_half_has_a_larger_expected_f1(seed, pairs, certainty):
    rng = np.random.default_rng(seed)
    weights = 1 / (1 + np.exp(certainty * rng.normal(size=pairs)))
    weights[0] = 1.0  # a match is expected
    threshold = expected_f1_threshold(weights)
    assert 0.4 <= threshold <= 0.5
    best = max(expected_f1(weights, cut) for cut in weights)
    if best >= 0.8:
        assert expected_f1(weights, threshold) == pytest.approx(
            max(expected_f1(weights, cut) for cut in np.linspace(0.4, 0.5, 2001))
        )
    else:
        assert threshold == 0.5


@pytest.mark.parametrize("weights", [[], [0.3, 0.2], [0.45, 0.02]])
def test_the_threshold_is_a_half_where_less_than_one_match_is_expected(weights):
    assert expected_f1_threshold(np.array(weights)) == 0.5


NAMES = [
    *("Ada Quist", "Ole Thorup", "Mia Juul", "Per Holm", "Eva Lund", "Jens Bach", "Ida Skov", "Lars Toft"),
    *("Bo Friis", "Tove Krag"),
]
CITIES = ["Aarhus", "Odense", "Vejle", "Esbjerg", "Kolding", "Horsens", "Randers", "Viborg", "Herning", "Ribe"]


def test_both_of_two_equal_right_rows_are_found():
    left = {"name": NAMES, "city": CITIES}
    right = {"name": [*NAMES, NAMES[3]], "city": [*CITIES, CITIES[3]]}
    join = SoftJoin(on=("name", "city")).fit(left, right)
    pairs = {(pair.left, pair.right): pair.weight for pair in join.join(left, right)}
    assert set(pairs) == {(row, row) for row in range(10)} | {(3, 10)}
    assert pairs[3, 3] == pairs[3, 10] < 0.5
    assert len(join.join(left, right, threshold=0.5)) == 9
