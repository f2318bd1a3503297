"""Files saved by a released version are opened, or refused with what to do."""

import importlib.util
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv.errors import DataError

SAVED = sorted(path for path in (Path(__file__).parent / "saved").iterdir() if path.is_dir())
TEXTS = ["a golden ring", "shadows in the den", "the ship sails", "gold and silver"]
needs_lance = pytest.mark.skipif(importlib.util.find_spec("lance") is None, reason="pylance is not installed")
BACKENDS = ["arrow", pytest.param("lance", marks=needs_lance)]


@pytest.fixture(name="saved", params=SAVED, ids=lambda path: path.name)
def _saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(request.param, tmp_path / "saved"))  # a store may write beside its rows


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_saved_store_answers_and_takes_more_rows(saved: Path, backend: str) -> None:
    from qkv.database import Database

    store = Database.open(saved / f"store_{backend}")
    assert store.ask(0.2, score="gaussian:0.001").value == pytest.approx(2.0)
    store.append({"x": [0.9], "number": [9.0]})
    assert Database.open(saved / f"store_{backend}").ask(0.9, score="gaussian:0.001").value == pytest.approx(9.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_saved_store_with_an_encoder_answers(saved: Path, backend: str) -> None:
    pytest.importorskip("sklearn")
    from qkv.database import Database

    answer = Database.open(saved / f"enc_{backend}").ask("golden ring")
    assert answer.rows[0].record["text"] == TEXTS[0]


def test_a_saved_index_is_refused_with_the_remedy(saved: Path) -> None:
    pytest.importorskip("sklearn")
    from qkv.search import Index

    with pytest.raises(DataError, match=r"Create an index with Index\.save"):
        Index.open(saved / "index_latent")


def test_a_saved_cache_has_its_tokens(saved: Path) -> None:
    pytest.importorskip("safetensors")
    pytest.importorskip("torch")
    from qkv.nn import KeyValueCache

    assert "5 tokens" in repr(KeyValueCache.load(saved / "cache.safetensors"))


def test_the_state_of_a_saved_module_is_loaded_without_a_missing_name(saved: Path) -> None:
    torch = pytest.importorskip("torch")
    from qkv import nn

    module = nn.MultiHeadAttention(16, 2, score=nn.Additive)
    module.load_state_dict(torch.load(saved / "state_Additive.pt"), strict=True)


def test_saved_table_vectors_have_their_columns(saved: Path) -> None:
    from qkv.encoders import TableVectors

    assert str(TableVectors.load(saved / "table.npz")) == "table vectors of x, c, 5 numbers"


def test_pickled_parts_compute_what_those_constructed_now_compute(saved: Path) -> None:
    from qkv import masks, normalizers, scores

    *scored, normalizer, causal, window = pickle.loads((saved / "parts.pkl").read_bytes())
    x = np.random.default_rng(0).normal(size=(6, 4))
    for old, new in zip(scored, (scores.ScaledDot(), scores.Gaussian(2.0)), strict=True):
        for old_mask, new_mask in ((causal, masks.Causal()), (window, masks.Window(2, 0))):
            output = qkv.attend(x, x, x, score=old, normalizer=normalizer, mask=old_mask)
            expected = qkv.attend(x, x, x, score=new, normalizer=normalizers.TopK(3), mask=new_mask)
            np.testing.assert_array_equal(output, expected)


def test_parts_are_found_in_the_modules_that_older_pickles_name() -> None:
    old = {"scores": "scaled_dot.ScaledDot alibi.ALiBi spelling.Spelling", "normalizers": "sum.Sum sample.Sample"}
    for package, names in (old | {"masks": "causal.Causal blocks.Blocks"}).items():
        for module, name in (each.split(".") for each in names.split()):
            found = pickle.loads(f"cqkv.{package}.{module}\n{name}\n.".encode())
            assert found is getattr(getattr(qkv, package), name)


def test_masks_are_found_by_the_names_that_older_pickles_have() -> None:
    from qkv import masks

    for new, old in {"AllowedKeys": "Keys", "AllowedPairs": "Pairs"}.items():
        assert not hasattr(masks, old)
        mask = getattr(masks, new)(np.eye(3) == 1)
        current = pickle.dumps(mask, protocol=0).decode("latin-1")
        for module in ("arrays", old.lower()):
            before = current.replace(f"qkv.masks.arrays\n{new}\n", f"qkv.masks.{module}\n{old}\n")
            assert before != current
            found = pickle.loads(before.encode("latin-1"))
            assert type(found) is type(mask)
            np.testing.assert_array_equal(found.array, mask.array)


def test_a_saved_join_is_refused_with_the_remedy(saved: Path) -> None:
    pytest.importorskip("sklearn")
    from qkv.join import SoftJoin

    with pytest.raises(DataError, match="Fit the model again"):
        SoftJoin.load(saved / "join.model")
