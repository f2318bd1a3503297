"""What may be a mask, what may not, and how masks combine; and that none is without a contract."""

import inspect

import numpy as np
import pytest

import qkv.masks
from qkv.core.tile import Tile
from qkv.errors import KindError
from qkv.masks import AllowedKeys, AllowedPairs, Blocks, Causal, Documents, Lengths, Prefix, Window
from qkv.masks.base import and_masks, require_mask

from . import test_contracts


def test_every_exported_mask_has_a_contract():
    contracts = [c for c in vars(test_contracts).values() if inspect.isclass(c) and hasattr(c, "part")]
    assert {c.part.__name__ for c in contracts} == set(qkv.masks.__all__) - {"Mask"} | {"And", "Or", "Not"}


@pytest.mark.parametrize(
    "combine",
    [require_mask, lambda x: Causal() & x, lambda x: x & Causal(), lambda x: Causal() | x, lambda x: x | Causal()],
    ids=["alone", "mask & array", "array & mask", "mask | array", "array | mask"],
)
def test_a_bare_array_is_refused_with_the_masks_that_make_one_of_it(combine):
    with pytest.raises(
        KindError, match=r"got an array of shape \(2, 3\).*masks.AllowedKeys.*masks.AllowedPairs.*True means"
    ):
        combine(np.ones((2, 3), dtype=bool))


def test_a_bare_list_is_refused_like_an_array():
    with pytest.raises(KindError, match=r"got a list.*masks.AllowedKeys"):
        require_mask([True, False])


def test_a_class_of_masks_is_refused_by_its_name():
    with pytest.raises(KindError, match=r"mask must be a Mask, got the class Causal, not an instance\. Pass"):
        require_mask(Causal)


def test_a_mask_of_keys_and_a_mask_of_pairs_is_no_mask_of_keys():
    assert (AllowedKeys(np.array([True])) & Lengths(1)).key_only
    assert not (AllowedKeys(np.array([True])) & Causal()).key_only


def test_combinations_print_as_they_were_written():
    assert str(~(Causal() & Lengths(3))) == "~(Causal() & Lengths(3))"
    assert str(~Causal() & (Window(1, 0) | Lengths(3))) == "~Causal() & (Window(1, after=0) | Lengths(3))"


@pytest.mark.parametrize(
    ("mask", "rows", "cols", "cover"),
    [
        (Causal(), (4, 8), (0, 4), "all"),
        (Causal(), (0, 4), (4, 8), "none"),
        (Causal(), (0, 4), (0, 4), "part"),
        (Causal(), (3, 8), (0, 4), "all"),
        (Window(1, 0), (4, 8), (0, 3), "none"),
        (Window(8, 8), (0, 8), (0, 8), "all"),
        (Lengths([2, 4]), (0, 8), (0, 2), "all"),
        (Lengths([2, 4]), (0, 8), (4, 8), "none"),
        (Lengths([2, 4]), (0, 8), (2, 4), "part"),
        (Causal() & Lengths([2, 4]), (4, 8), (0, 2), "all"),
        (Causal() & Lengths([2, 4]), (0, 2), (4, 8), "none"),
        (Causal() | Lengths([2, 4]), (0, 2), (0, 2), "all"),
        (~Causal(), (0, 4), (4, 8), "all"),
    ],
    ids=str,
)
def test_whole_tiles_are_known_without_looking_at_pairs(mask, rows, cols, cover):
    assert mask.coverage(Tile.whole(8, 8, (2,)).restrict(rows, cols)) == cover


def test_and_masks_joins_the_masks_that_are_given_and_none_is_no_mask():
    tile, zero = Tile.whole(4, 4), np.zeros(())
    first, second, third = AllowedKeys(np.array([1, 1, 0, 1], dtype=bool)), Lengths(3), Lengths(4)
    assert and_masks() is and_masks(None, None) is None
    assert and_masks(None, second) is second
    joined = and_masks(first, None, second, third)
    assert joined.allowed(tile, zero).tolist() == [[True, True, False, False]]
    with pytest.raises(KindError, match="mask must be a Mask, got 'causal'"):
        and_masks(first, "causal")


@pytest.mark.parametrize(
    ("make", "field", "owner"),
    [
        (lambda: AllowedPairs([[True, False]]), "array", AllowedPairs),
        (lambda: AllowedKeys([True, False]), "array", AllowedKeys),
        (lambda: Prefix([1, 2]), "length", Prefix),
        (lambda: Lengths([1, 2]), "lengths", Lengths),
        (lambda: Blocks([[True]], 2), "layout", Blocks),
        (lambda: Documents([0, 1]), "query_ids", Documents),
    ],
)
def test_a_list_becomes_an_array_of_the_mask(make, field, owner):
    mask = make()
    assert isinstance(mask, owner)
    assert isinstance(getattr(mask, field), np.ndarray)


@pytest.mark.parametrize(
    "make", [AllowedKeys, AllowedPairs, lambda array: Blocks(array, 1)], ids=["AllowedKeys", "AllowedPairs", "Blocks"]
)
def test_integers_in_place_of_booleans_are_refused_by_the_name_of_the_mask(make, request):
    with pytest.raises(KindError, match=rf"array of {request.node.callspec.id} must be boolean, got"):
        make([[1, 0]])


@pytest.mark.parametrize(
    ("left", "right", "cover"),
    [("none", "none", "none"), ("none", "part", "part"), ("part", "none", "part"), ("none", "all", "all")],
)
def test_the_coverage_of_two_masks_of_which_one_suffices(left, right, cover):
    keys = {"none": [False, False], "part": [True, False], "all": [True, True]}
    assert (AllowedKeys(keys[left]) | AllowedKeys(keys[right])).coverage(Tile.whole(3, 2)) == cover


def test_document_key_ranges_read_the_queries_of_the_tile_alone():
    mask = Documents([5, 1, 1], [0, 1, 2])
    assert mask.key_range(Tile.whole(3, 3).restrict((1, 3), (0, 3))) == (1, 2)
    assert mask.key_range(Tile.whole(3, 3).restrict((0, 1), (0, 3))) == (0, 0)


@pytest.mark.parametrize(("allowed", "cover"), [(True, "all"), (False, "none")])
def test_one_element_for_all_keys_covers_every_tile(allowed, cover):
    tile = Tile.whole(3, 9).restrict((0, 3), (4, 8))
    assert AllowedKeys([allowed]).coverage(tile) == cover
    assert AllowedKeys([allowed] * 9).coverage(tile) == cover


@pytest.mark.parametrize("mask", [Documents(np.arange(3), np.arange(0)), Blocks(np.ones((1, 0), dtype=bool), 4)])
def test_the_key_range_of_no_keys_is_empty(mask):
    assert mask.key_range(Tile.whole(3, 0)) == (0, 0)
