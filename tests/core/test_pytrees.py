"""Parts as pytrees: arrays are leaves, all else is static, and what comes back is the same part."""

from typing import Any

import numpy as np
import pytest

from qkv import masks, normalizers, scores
from qkv.testing.cases import MASKS, NORMALIZERS, SCORES, SHAPES, PartFactory

jax = pytest.importorskip("jax")

FACTORY = PartFactory(SHAPES["heads that share keys"], 0)
PARTS = {
    f"{kind}: {name}": made
    for kind, table in (("score", SCORES), ("normalizer", NORMALIZERS), ("mask", MASKS))
    for name, make in table.items()
    if (made := make(FACTORY)) is not None
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_the_tree_of_its_arrays(name: str) -> None:
    part: Any = PARTS[name]
    leaves, tree = jax.tree.flatten(part)
    assert len(leaves) == len(part.arrays())
    again = jax.tree.unflatten(tree, leaves)
    assert again.signature() == part.signature()
    assert all(one is other for one, other in zip(again.arrays(), part.arrays(), strict=True))


def test_other_arrays_make_no_other_tree_and_other_numbers_do() -> None:
    def tree(part: Any) -> Any:
        return jax.tree.structure(part)

    assert tree(scores.Gaussian(np.ones(2))) == tree(scores.Gaussian(np.ones((3, 4))))
    assert tree(scores.Gaussian(1.0)) != tree(scores.Gaussian(2.0))
    assert tree(masks.Window(1, 2)) != tree(masks.Window(2, 2))
    assert hash(tree(masks.Window(1, 2))) == hash(tree(masks.Window(1, 2)))


def test_what_stands_for_arrays_keeps_the_tree() -> None:
    part = normalizers.TopK(2, normalizer=normalizers.Softmax(np.ones(2), sink=np.zeros(2)))
    for stand_in in (0, object()):
        other = jax.tree.map(lambda leaf, stand_in=stand_in: stand_in, part)
        assert jax.tree.structure(other) == jax.tree.structure(part)
        assert jax.tree.leaves(other) == [stand_in] * 2


def test_a_part_of_ones_own_is_known_once_it_is_made() -> None:
    from dataclasses import dataclass

    from qkv.core.parts import array_field

    @dataclass(frozen=True, eq=False)
    class Mine(scores.Score):
        weight: Any = array_field("width")

        def logits(self, query: Any, key: Any, tile: Any) -> Any:
            return query @ key.T

    assert len(jax.tree.leaves(Mine(np.ones(3)))) == 1
