"""Lengths, widths and batch axes: what fits, and what is said where they do not."""

import numpy as np
import pytest

from qkv.core.axes import Axes, _broadcast
from qkv.errors import ShapeError


@pytest.mark.parametrize(
    ("shapes", "batch", "output"),
    [
        (((5, 4), (9, 4), (9, 2)), (), (5, 2)),
        (((8, 5, 4), (1, 9, 4), (9, 2)), (8,), (8, 5, 2)),
        (((2, 1, 5, 4), (3, 9, 4), (2, 3, 9, 2)), (2, 3), (2, 3, 5, 2)),
        (((0, 4), (9, 4), (9, 2)), (), (0, 2)),
        (((5, 4), (0, 4), (0, 2)), (), (5, 2)),
        (((100, 10, 5), (100, 20, 5), (100, 20, 10)), (100,), (100, 10, 10)),
    ],
)
def test_batch_axes_broadcast_and_lengths_are_kept_apart(shapes, batch, output):
    axes = Axes.of(*shapes)
    assert axes.batch == batch
    assert axes.output == output
    assert axes.pairs == axes.batch_size * axes.q * axes.k


def test_text_has_no_width_axis():
    axes = Axes.of((3,), (7,), (7, 2), text=True)
    assert (axes.q, axes.k, axes.output) == (3, 7, (3, 2))


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((4,), (9, 4), (9, 2)), r"query must have shape \(\*batch, q, width\).*got shape \(4,\)"),
        (((5, 4), (4,), (9, 2)), r"key must have shape \(\*batch, k, width\).*got shape \(4,\)"),
        (((5, 4), (9, 4), (9,)), r"value must have shape \(\*batch, k, value_width\).*got shape \(9,\).*x\[:, None\]"),
        (((5, 4), (9, 4), (8, 2)), "key and value must have the same length, got 9 keys .* and 8 values"),
        (((2, 5, 4), (3, 9, 4), (9, 2)), r"query \(2,\), key \(3,\) and value \(\).*equal, or 1"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_came_and_what_is_wanted(shapes, words):
    with pytest.raises(ShapeError, match=words):
        Axes.of(*shapes)


def test_text_that_does_not_fit_is_told_its_own_shape():
    with pytest.raises(ShapeError, match=r"query must have shape \(\*batch, q\).*got shape \(\)"):
        Axes.of((), (9,), (9, 2), text=True)


def test_batch_axes_whose_lengths_are_no_plain_integers_broadcast_by_the_same_rule():
    two, three = np.int64(2), np.int64(3)
    assert _broadcast((two, 1), (three,), ()) == (2, 3)
    assert _broadcast((1, three), (two, 1)) == (2, 3)
    assert _broadcast((np.int64(1),)) == (1,)
    with pytest.raises(ValueError, match=r"^$"):
        _broadcast((two, three), (two, two))
