"""Contracts of all masks: each against its definition for one pair."""

import numpy as np
import pytest

from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.errors import GradientError, KindError, OptionError, ShapeError
from qkv.masks import AllowedKeys, AllowedPairs, Blocks, Causal, Custom, Documents, Lengths, Prefix, Window
from qkv.masks.base import And, Not, Or
from qkv.testing import MaskContract


class TestCausal(MaskContract):
    part = Causal

    def formula(self, mask, at):
        return at.j <= at.i

    def test_refuses_an_alignment_it_does_not_know(self):
        with pytest.raises(OptionError, match=r'align.*must be "start" or "end".*, got .middle'):
            Causal(align="middle")


class TestCausalWithItsOwnAlignment(MaskContract):
    part = Causal

    def make(self, draw):
        return Causal(align="end")

    def formula(self, mask, at):
        return at.col <= at.row + 2  # 7 keys, 5 queries, whatever the call says


class TestLengths(MaskContract):
    part = Lengths

    def make(self, draw):
        return Lengths(draw.integers(8))

    def formula(self, mask, at):
        return at.col < mask.lengths

    @pytest.mark.parametrize("lengths", [2.5, [1.0, 2.0]])
    def test_refuses_lengths_that_are_no_integers(self, lengths):
        with pytest.raises(KindError, match=r"lengths of Lengths must be .* integers, got dtype float64"):
            Lengths(lengths)

    def test_takes_a_list_of_one_integer_per_batch_element(self):
        allowed = Lengths([1, 3]).allowed(Tile.whole(1, 3, (2,)), np.zeros(()))
        assert allowed.tolist() == [[[True, False, False]], [[True, True, True]]]


class TestKeys(MaskContract):
    part = AllowedKeys

    def make(self, draw):
        return AllowedKeys(draw.booleans(draw.k))

    def formula(self, mask, at):
        return mask.array[at.col]

    @pytest.mark.parametrize("array", [np.array([1, 0]), np.array([0.0, -np.inf]), [1, 0]])
    def test_refuses_what_is_not_boolean_and_says_how_to_convert(self, array):
        with pytest.raises(
            KindError, match=r"array of AllowedKeys must be boolean, got dtype (int64|float64).*array == 1.*array == 0"
        ):
            AllowedKeys(array)

    def test_refuses_another_length_and_points_to_pairs(self):
        with pytest.raises(
            ShapeError, match=r"AllowedKeys must have shape \(\*batch, 7\).*got shape \(.*3,?\).*AllowedPairs"
        ):
            AllowedKeys(np.ones(3, dtype=bool)).check(5, 7)


class TestPairs(MaskContract):
    part = AllowedPairs

    def make(self, draw):
        return AllowedPairs(draw.booleans(draw.q, draw.k))

    def formula(self, mask, at):
        return mask.array[at.row, at.col]

    def test_refuses_other_lengths_and_points_to_keys(self):
        with pytest.raises(
            ShapeError,
            match=r"AllowedPairs must have shape \(\*batch, 5, 7\).* length 1, got shape \(2, 3\).*AllowedKeys",
        ):
            AllowedPairs(np.ones((2, 3), dtype=bool)).check(5, 7)

    def test_mission_c4_padding_mask_of_shape_batch_1_1_length(self):
        array = np.array([True, True, False])[None, None, None]
        tile = Tile.whole(2, 3, (1, 4))
        AllowedPairs(array).check(2, 3)
        allowed = AllowedPairs(array).bind(np.zeros(()), (1, 4)).allowed(tile, np.zeros(()))
        assert np.broadcast_to(allowed, (1, 4, 2, 3)).all(axis=(0, 1, 2)).tolist() == [True, True, False]


class TestWindow(MaskContract):
    part = Window

    def make(self, draw):
        return Window(2, 1)

    def formula(self, mask, at):
        return at.i - 2 <= at.j <= at.i + 1

    @pytest.mark.parametrize("sides", [(-1, 0), (0, 1.5), (True, 0)])
    def test_refuses_a_side_that_is_no_whole_number(self, sides):
        with pytest.raises(OptionError, match=r"(before|after) of Window must be a non-negative integer, or None"):
            Window(*sides)


class TestWindowOpenToTheLeft(MaskContract):
    part = Window

    def make(self, draw):
        return Window(None, 0)

    def formula(self, mask, at):
        return at.j <= at.i


class TestDocuments(MaskContract):
    part = Documents

    def make(self, draw):
        return Documents(np.sort(draw.integers(3, draw.q)), np.sort(draw.integers(3, draw.k)))

    def formula(self, mask, at):
        return mask.query_ids[at.row] == mask.key_ids[at.col]

    def test_refuses_ids_that_are_not_one_for_each(self):
        with pytest.raises(ShapeError, match=r"must have lengths 5 and 7, got lengths 3 and 3"):
            Documents([0, 0, 1]).check(5, 7)

    @pytest.mark.parametrize(
        ("rows", "keys"),
        [((0, 1), (1, 3)), ((1, 2), (3, 4)), ((2, 3), (4, 6)), ((0, 3), (1, 6)), ((3, 4), (0, 0)), ((0, 0), (0, 7))],
    )
    def test_the_key_range_is_exactly_from_the_first_to_the_last_key_with_an_id_of_the_queries(self, rows, keys):
        mask = Documents([1, 2, 3, 5], [0, 1, 1, 2, 3, 3, 4])
        assert mask.key_range(Tile.whole(4, 7).restrict(rows, (0, 7))) == keys

    def test_the_key_range_contains_the_keys_of_every_batch_element(self):
        mask = Documents([[1], [4]], [[0, 1, 2, 3, 4], [3, 3, 3, 4, 5]])
        assert mask.key_range(Tile.whole(1, 5, (2,))) == (0, 5)
        assert Documents([[1], [4]], [[0, 1, 0, 0, 0], [0, 0, 4, 0, 0]]).key_range(Tile.whole(1, 5, (2,))) == (1, 3)

    def test_a_tile_of_one_document_is_covered_whole_and_one_of_two_in_part(self):
        mask, tile = Documents([0, 0, 1, 1]), Tile.whole(4, 4)
        covers = [mask.coverage(tile.restrict(rows, cols)) for rows in ((0, 2), (2, 4)) for cols in ((0, 2), (2, 4))]
        assert covers == ["all", "none", "none", "all"]
        assert mask.coverage(tile) == mask.coverage(tile.restrict((1, 3), (2, 3))) == "part"
        assert Documents([3], [1, 2]).coverage(Tile.whole(1, 2)) == "none"
        assert Documents([1], [1, 2]).coverage(Tile.whole(1, 2)) == "part"

    def test_without_key_ids_the_keys_are_the_queries(self):
        allowed = Documents([0, 1]).allowed(Tile.whole(2, 2), np.zeros(()))
        assert allowed.tolist() == [[True, False], [False, True]]


class TestPrefix(MaskContract):
    part = Prefix

    def make(self, draw):
        return Prefix(draw.integers(8))

    def formula(self, mask, at):
        return at.col < mask.length or at.j <= at.i

    def test_refuses_a_length_that_is_no_integer(self):
        with pytest.raises(KindError, match=r"length of Prefix must be .* integers, got dtype float64"):
            Prefix(1.5)

    @pytest.mark.parametrize(
        ("rows", "keys"), [((0, 1), (0, 3)), ((1, 3), (0, 3)), ((3, 4), (0, 4)), ((4, 6), (0, 6)), ((0, 6), (0, 6))]
    )
    def test_the_key_range_ends_at_the_prefix_or_at_the_last_query(self, rows, keys):
        tile = Tile.whole(6, 6).restrict(rows, (0, 6))
        assert Prefix(3).key_range(tile) == Prefix(np.array([1, 3])).key_range(tile) == keys

    @pytest.mark.parametrize(
        ("rows", "cols", "cover"),
        [
            ((0, 1), (0, 2), "all"),  # within both prefixes
            ((0, 1), (0, 3), "part"),  # within one of them
            ((0, 1), (3, 4), "none"),  # after both, and after the query
            ((0, 4), (3, 6), "part"),
            ((5, 6), (0, 6), "all"),  # before the query
            ((0, 1), (2, 4), "part"),
        ],
    )
    def test_a_tile_is_covered_by_the_prefix_the_causal_mask_or_neither(self, rows, cols, cover):
        assert Prefix(np.array([2, 3])).coverage(Tile.whole(6, 6, (2,)).restrict(rows, cols)) == cover


class TestBlocks(MaskContract):
    part = Blocks

    def make(self, draw):
        return Blocks(draw.booleans(-(-draw.q // 2), -(-draw.k // 3)), (2, 3))

    def formula(self, mask, at):
        return mask.layout[at.row // 2, at.col // 3]

    @pytest.mark.parametrize("size", [0, (2, 0), 1.5, (2,), (2, 3, 4)])
    def test_refuses_a_size_that_is_no_whole_number_or_two(self, size):
        with pytest.raises(OptionError, match=r"size of Blocks must be an integer of at least 1 or a tuple of two"):
            Blocks(np.ones((1, 1), dtype=bool), size)

    def test_refuses_a_layout_of_another_shape_and_names_the_expected_one(self):
        with pytest.raises(
            ShapeError,
            match=r"layout of Blocks must have shape \(\*batch, 3, 3\) for 5 queries and 7 keys in blocks of size "
            r"\(2, 3\), got shape \(1, 1\)\. Pass one element for each pair of blocks\.$",
        ):
            Blocks(np.ones((1, 1), dtype=bool), (2, 3)).check(5, 7)

    @pytest.mark.parametrize(
        ("rows", "keys"),
        [((0, 2), (3, 6)), ((2, 4), (0, 3)), ((4, 5), (6, 7)), ((6, 8), (0, 0)), ((1, 3), (0, 6)), ((3, 5), (0, 7))],
    )
    def test_the_key_range_is_exactly_from_the_first_to_the_last_block_allowed_for_the_queries(self, rows, keys):
        layout = np.array([[False, True, False], [True, False, False], [False, False, True], [False, False, False]])
        tile = Tile.whole(8, 7).restrict(rows, (0, 7))
        assert Blocks(layout, (2, 3)).key_range(tile) == keys

    def test_the_key_range_contains_the_blocks_of_every_batch_element(self):
        layout = np.array([[[False, True, False]], [[False, False, True]]])
        assert Blocks(layout, (2, 3)).key_range(Tile.whole(2, 9, (2,))) == (3, 9)


class TestAnd(MaskContract):
    part = And
    printed = " & "

    def make(self, draw):
        return Causal() & AllowedKeys(draw.booleans(draw.k))

    def formula(self, mask, at):
        return at.j <= at.i and mask.right.array[at.col]


class TestOr(MaskContract):
    part = Or
    printed = " | "

    def make(self, draw):
        return Window(0, 0) | Documents(draw.integers(2, draw.q), draw.integers(2, draw.k))

    def formula(self, mask, at):
        return at.i == at.j or mask.right.query_ids[at.row] == mask.right.key_ids[at.col]


class TestNot(MaskContract):
    part = Not
    printed = "~"

    def make(self, draw):
        return ~Lengths(draw.integers(8))

    def formula(self, mask, at):
        return at.col >= mask.mask.lengths


@pytest.mark.parametrize("align", ["start", "end"])
def test_a_start_for_each_batch_element_shifts_its_causal_mask(align):
    tile = Tile.whole(1, 4, (2,), Positions(query_start=[0, 2]))
    assert Causal().allowed(tile, np.zeros(())).sum(axis=-1).tolist() == [[1], [3]]
    assert Causal(align=align).allowed(tile, np.zeros(())).sum(axis=-1).tolist() == [1 if align == "start" else 4]


def dilated(query, key):
    return (key <= query + 1) & ((query - key) % 2 == 0)


def equal_remainders(query, key, divisor):
    return query % divisor == key % divisor


class TestCustom(MaskContract):
    part = Custom

    def make(self, draw):
        return Custom(dilated)

    def formula(self, mask, at):
        return at.j <= at.i + 1 and (at.i - at.j) % 2 == 0

    def test_refuses_what_is_no_function(self):
        with pytest.raises(OptionError, match=r"function of Custom must be callable, got 3\. .*lambda query, key"):
            Custom(3)

    @pytest.mark.parametrize("result", [lambda q, k: q - k, lambda q, k: None, lambda q, k: [[True]]])
    def test_refuses_a_result_that_is_not_boolean(self, result):
        with pytest.raises(KindError, match=r"result of the function of Custom must be a boolean array, got"):
            Custom(result).allowed(Tile.whole(2, 2), np.zeros(()))

    @pytest.mark.parametrize("result", [lambda q, k: (q == k)[:1, :1].repeat(3, 1), lambda q, k: (q == k)[None, None]])
    def test_refuses_a_result_that_does_not_fit_the_pairs(self, result):
        with pytest.raises(ShapeError, match=r"must broadcast to shape \(2, 2\), got shape .*\(2, 1\).*\(1, 2\)"):
            Custom(result).allowed(Tile.whole(2, 2), np.zeros(()))

    @pytest.mark.parametrize("constant", [True, False])
    def test_a_constant_result_holds_for_all_pairs(self, constant):
        mask = Custom(lambda query, key: constant)
        allowed = mask.allowed(Tile.whole(2, 3, (), Positions(align="end")), np.zeros(()))
        assert np.broadcast_to(allowed, (2, 3)).tolist() == [[constant] * 3] * 2
        bound = mask.bind(np.zeros(()), ())
        assert bound.coverage(Tile.whole(2, 2)) == ("all" if constant else "none")

    def test_refuses_parameters_that_require_a_gradient(self):
        torch = pytest.importorskip("torch")
        with pytest.raises(GradientError, match=r"parameters of Custom must not require a gradient.*scores.Custom"):
            Custom(equal_remainders, (torch.ones(1, requires_grad=True),))


class TestCustomWithItsOwnAlignmentAndParameters(MaskContract):
    part = Custom

    def make(self, draw):
        return Custom(equal_remainders, (np.array(3),), align="end")

    def formula(self, mask, at):
        return (at.row + 2) % 3 == at.col % 3  # 7 keys, 5 queries
