"""Where queries and keys stand, and the sentence for when nobody says."""

import numpy as np
import pytest

from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.errors import KindError, OptionError, PositionError, ShapeError


@pytest.mark.parametrize(
    ("positions", "of_queries"),
    [
        (Positions(align="start"), [0, 1]),
        (Positions(align="end"), [3, 4]),
        (Positions(query_start=7), [7, 8]),
        (Positions(query_start=np.int64(7)), [7, 8]),
    ],
    ids=str,
)
def test_queries_stand_where_it_is_said(positions, of_queries):
    tile = Tile.whole(2, 5, (), positions)
    assert tile.query_positions(np.zeros(()))[:, 0].tolist() == of_queries
    assert tile.key_positions(np.zeros(())).tolist() == [0, 1, 2, 3, 4]
    assert tile.query_position_range() == (of_queries[0], of_queries[-1])


@pytest.mark.parametrize("start", [[0, 4], (0, 4), np.array([0, 4])], ids=["list", "tuple", "array"])
def test_a_start_per_batch_element_may_be_a_list_or_an_array(start):
    tile = Tile.whole(2, 5, (2,), Positions(query_start=start))
    assert tile.query_positions(np.zeros(()))[..., 0].tolist() == [[0, 1], [4, 5]]
    assert tile.query_position_range() is None


def test_a_start_in_numpy_serves_a_call_in_torch():
    torch = pytest.importorskip("torch")
    tile = Tile.whole(2, 5, (2,), Positions(query_start=[0, 4]))
    assert tile.query_positions(torch.zeros(()))[..., 0].tolist() == [[0, 1], [4, 5]]


def test_equal_lengths_need_no_positions():
    assert Tile.whole(3, 3).query_positions(np.zeros(()))[:, 0].tolist() == [0, 1, 2]


def test_a_tile_stands_at_its_own_rows_and_columns():
    tile = Tile.whole(4, 6, (), Positions(align="end")).restrict((1, 3), (2, 5))
    assert tile.query_positions(np.zeros(()))[:, 0].tolist() == [3, 4]
    assert tile.key_positions(np.zeros(())).tolist() == [2, 3, 4]


def test_an_alignment_nobody_knows_is_refused_with_those_that_are():
    with pytest.raises(OptionError, match=r'align must be "start" or "end", got .left'):
        Positions(align="left")


@pytest.mark.parametrize("start", [1.5, [0.5, 1.0]])
def test_a_start_that_is_no_integer_is_refused(start):
    with pytest.raises(
        KindError, match=r"query_start must be an integer or an integer array, got an array of dtype float64"
    ):
        Positions(query_start=start)


def test_starts_for_another_number_of_batch_elements_are_refused():
    with pytest.raises(ShapeError, match=r"must broadcast to the batch axes \(2,\) of the call, got \(3,\)"):
        Positions(query_start=[0, 1, 2]).bind(np.zeros(()), (2,))


@pytest.mark.parametrize(("arguments", "given"), [({}, "none"), ({"align": "end", "query_start": 2}, "both")])
def test_the_error_says_whether_none_or_both_were_given(arguments, given):
    with pytest.raises(OptionError) as error:
        Positions(**arguments)
    assert str(error.value) == (
        f'exactly one of align and query_start must be given, got {given}. Pass align="start", align="end" or '
        "query_start=n."
    )


def test_what_a_tile_lacks_is_named_with_what_to_pass():
    with pytest.raises(PositionError) as position:
        Tile.whole(5, 7).offset()
    assert str(position.value).endswith(
        'the lengths differ. Pass positions=Positions(align="start") if query 0 has the position of key 0, or '
        'positions=Positions(align="end") if the last query has the position of the last key.'
    )
    with pytest.raises(OptionError) as seed:
        Tile.whole(5, 7).uniform(np.zeros(()), 1)
    assert str(seed.value) == (
        "seed must be given for dropout and random normalizers, got None. Pass an integer, such as seed=0."
    )
