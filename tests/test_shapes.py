"""The checks of array annotations report wrong axes, and leave the library's errors to users."""

import jaxtyping
import numpy as np
import pytest

import qkv
from qkv.core.guard import apply_weights
from qkv.interop.onnx import attention
from tests.shapes import is_checking

pytestmark = pytest.mark.skipif(not is_checking(), reason="the first process of the run makes the checks")


def test_an_array_with_other_axes_than_annotated_raises() -> None:
    weights, value = np.ones((2, 3)), np.ones((3, 1))
    assert apply_weights(weights, value, lambda: None, True).shape == (2, 1)
    with pytest.raises(jaxtyping.TypeCheckError):
        apply_weights(np.ones((2, 5)), value, lambda: None, True)


def test_users_get_the_error_of_the_library_and_not_that_of_the_checker() -> None:
    with pytest.raises(qkv.errors.QkvError):
        qkv.attend(np.ones((2, 3)), np.ones((4, 5)), np.ones((4, 1)))
    four_axes, integers = np.ones((1, 1, 2, 3)), np.ones((1, 1, 2, 3), int)
    with pytest.raises(qkv.errors.KindError):
        attention(integers, four_axes, four_axes)
