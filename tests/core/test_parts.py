"""Parts as values: what a new part gets by being a frozen dataclass."""

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from qkv import masks, normalizers, scores
from qkv.core.parts import Part, array_field, delegates, require_number
from qkv.errors import OptionError, ShapeError
from qkv.scores import Biased, Dot, Gaussian, SumOf


@dataclass(frozen=True, eq=False)
class Example(Part):
    """Every kind of field there is."""

    name: str = "x"
    scale: Any = array_field(default=1.0)
    pairs: Any = array_field("q", "k", default=None)
    table: Any = array_field("k", "width", default=None)
    inner: Any = None
    several: tuple[Any, ...] = ()
    function: Any = None


def test_a_numpy_scalar_becomes_the_python_number_it_is():
    part = Example(scale=np.float32(0.5))
    assert type(part.scale) is float
    assert part.arrays() == ()
    assert part.signature() == Example(scale=0.5).signature()


def test_arrays_within_parts_and_tuples_are_found_in_the_order_of_the_fields():
    a, b, c, d = (np.full(n, float(n)) for n in (1, 2, 3, 4))
    part = Example(scale=a, inner=Example(scale=b), several=(c, (Example(scale=d), "word")))
    assert [len(array) for array in part.arrays()] == [1, 2, 3, 4]
    doubled = part.map_arrays(lambda array: 2 * array)
    assert doubled.several[1][0].scale.tolist() == [8.0] * 4
    assert doubled.several[1][1] == "word"
    assert len(list(part.parts())) == 3


def test_signatures_differ_where_numbers_shapes_or_functions_differ():
    parts = [
        Example(),
        Example(scale=2.0),
        Example(scale=2),
        Example(scale=np.ones(2)),
        Example(scale=np.ones(3)),
        Example(function=abs),
        Example(function=[1]),
        Example(inner=Example()),
    ]
    assert len({part.signature() for part in parts}) == len(parts)


def test_cutting_takes_the_axes_named_q_and_k_and_leaves_what_is_broadcast():
    part = Example(pairs=np.arange(12.0).reshape(3, 4), table=np.arange(8.0).reshape(4, 2), scale=np.ones(5))
    cut = part.slice(slice(1, 3), slice(0, 2))
    assert (cut.pairs.shape, cut.table.shape, cut.scale.shape) == ((2, 2), (2, 2), (5,))
    assert Example(pairs=np.ones((1, 4))).slice(slice(1, 3), slice(0, 2)).pairs.shape == (1, 2)


def test_cutting_reaches_the_parts_within():
    score = SumOf((Dot(), Biased(Gaussian(2.0), per_key=np.arange(5.0))))
    assert score.slice(slice(0, 1), slice(3, 5)).scores[1].per_key.tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("array", "batch", "words"),
    [
        (
            np.ones((2, 3, 4)),
            (2, 5),
            r"Example must .* \(\*batch, q, k\) .* batch axes \(2, 5\).*batch axes \(2,\).*\(2, 3, 4\).*x\[:, None\]",
        ),
        (np.ones((5, 3, 4)), (2, 5), r"x\[None\]"),
        (np.ones((1, 2, 3, 4)), (2,), r"x\[0\]"),
        (np.ones((2, 2, 3, 4)), (2,), r"Change the number of axes\.$"),  # x[0] would drop the second element
        (np.ones((3, 3, 4)), (2,), r"\(2,\) of the call, got \(3,\).*equal, or 1"),
        (np.ones(3), (), r"must have shape \(\*batch, q, k\), got shape \(3,\)"),
    ],
)
def test_batch_axes_that_could_be_misread_are_refused_with_a_way_out(array, batch, words):
    with pytest.raises(ShapeError, match=words):
        Example(pairs=array).bind(np.zeros(()), batch)


def test_fitting_brings_floating_arrays_to_the_dtype_and_leaves_integers():
    part = Example(scale=np.ones(()), several=(np.arange(3),)).bind(np.zeros(()), (), np.float32)
    assert part.scale.dtype == np.float32
    assert part.several[0].dtype == np.arange(3).dtype


@pytest.mark.parametrize(("shape", "axis"), [((9, 5), "q.* is 3 or 1"), ((3, 9), "k.* is 5 or 1")])
def test_arrays_of_other_lengths_are_refused_with_the_length_of_the_call(shape, axis):
    with pytest.raises(ShapeError, match=rf"Example must have .* {axis}, got shape \({shape[0]}, {shape[1]}\)"):
        Example(inner=Example(pairs=np.ones(shape))).check_shapes(None, {"q": 3, "k": 5})


def test_arrays_of_length_one_or_of_the_call_pass():
    for shape in ((3, 5), (1, 5), (3, 1), (7, 3, 5)):
        Example(pairs=np.ones(shape), table=np.ones((5, 9))).check_shapes(None, {"q": 3, "k": 5})


def test_printing_shows_shapes_numbers_and_names_but_no_default():
    part = Example("y", scale=np.ones((2, 3), dtype=np.float32), several=(1, Example()), function=abs)
    assert str(part) == "Example('y', scale=float32[2, 3], several=(1, Example()), function=abs)"


def test_tracers_pass_construction():
    jax = pytest.importorskip("jax")
    got = jax.jit(lambda h: Gaussian(h)(jax.numpy.ones((1, 1)), jax.numpy.zeros((1, 1))))(2.0)
    assert got.tolist() == [[-0.125]]


@pytest.mark.parametrize("value", [0, -1.0, True, "2", None, float("nan")])
def test_a_number_outside_what_is_wanted_is_refused_by_owner_name_and_value(value):
    with pytest.raises(OptionError, match=r"width of Owner must be positive, got"):
        require_number("Owner", "width", value, lambda x: x > 0, "positive")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_arrays_than_the_part_has_is_refused(count):
    part = Example(scale=np.ones(2), inner=Example(scale=np.ones(3)))
    with pytest.raises(ShapeError, match=rf"number of arrays for Example must be 2, got {count}\. Pass as many"):
        part.replace_arrays([np.ones(1)] * count)


def test_delegated_names_read_the_inner_part_and_say_so():
    @delegates("inner", "scale", "name")
    @dataclass(frozen=True, eq=False)
    class Outer(Part):
        inner: Any = None

    outer = Outer(Example("word", scale=2.5))
    assert (outer.scale, outer.name) == (2.5, "word")
    assert "`scale` of `inner`" in Outer.scale.__doc__
    assert "`name` of `inner`" in Outer.name.__doc__


def test_a_class_of_parts_defined_before_jax_is_imported_is_a_pytree(monkeypatch):
    jax = pytest.importorskip("jax")
    with monkeypatch.context() as before:
        before.delitem(sys.modules, "jax")

        @dataclass(frozen=True, eq=False)
        class Early(Part):
            scale: Any = array_field(default=1.0)

    (leaf,) = jax.tree_util.tree_leaves(Early(np.ones(2)))
    assert leaf.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("library", ["numpy", "torch", "jax.numpy", "tensorflow"])
@pytest.mark.parametrize(
    ("make", "bad"),
    [
        (normalizers.Softmax, 0.0),
        (normalizers.Softmax, math.nan),
        (normalizers.Entmax, 1.0),
        (scores.Gaussian, -1.0),
        (scores.Laplace, math.nan),
        (scores.Cosine, 0.0),
        (lambda cap: scores.Softcap(scores.Dot(), cap), -2.0),
        (lambda decay: scores.Decay(scores.Dot(), decay), 0.5),
        (masks.Lengths, -1),
        (masks.Prefix, -1),
    ],
)
def test_an_array_of_settings_is_refused_for_a_number_that_is_refused_itself(library, make, bad):
    array = getattr(pytest.importorskip(library), {"torch": "tensor", "tensorflow": "constant"}.get(library, "array"))
    for given in (bad, array(bad), array([bad, bad]), array([bad] * 100)):
        with pytest.raises(OptionError, match="must be"):
            make(given)
