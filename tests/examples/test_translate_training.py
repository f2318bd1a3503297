"""Training of the translator: it resumes exactly after any interruption, and reaches a documented loss."""

import contextlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

if any(importlib.util.find_spec(name) is None for name in ("torch", "tokenizers", "sacrebleu")):
    pytest.skip("the extra qkv[hf,look] is not installed", allow_module_level=True)

import torch
from examples.translate import __main__ as command
from examples.translate import checkpoints, pairs
from examples.translate.batches import Examples
from examples.translate.training import Stop, open_model, rate, train, watched_loss
from examples.translate.vocabulary import Vocabulary

from qkv.errors import DataError, OptionError

from .conftest import TRAINED, small

ROOT = Path(__file__).parent.parent.parent
EXACT = ("step", "epoch", "loss", "rate", "tokens", "watched_loss")


class After(Stop):
    """Stop condition that is true after a number of steps."""

    def __init__(self, steps):
        self.left = steps

    @property
    def wanted(self):
        self.left -= 1  # called before every step
        return self.left < 0


def numbers(history):
    """Return the reported numbers that must be equal, without the seconds."""
    return [{name: report[name] for name in EXACT if name in report} for report in history]


def parameters(folder):
    return {name: each.clone() for name, each in open_model(folder)[0].state_dict().items()}


@pytest.fixture(scope="module")
def uninterrupted(pairs_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "model"
    return train(pairs_file, folder, small(dropout=0.3)), parameters(folder)


def test_stopped_and_started_again_it_ends_with_the_same_numbers(pairs_file, tmp_path, uninterrupted):
    whole, learned = uninterrupted
    assert whole.epoch > 0, "the interruptions must cross the end of an epoch"
    folder = tmp_path / "model"
    for count in (5, 1, 1):
        state = train(pairs_file, folder, small(dropout=0.3), stop=After(count))
        assert state.step < 12
        torch.manual_seed(99)  # different random state in between
        torch.rand(7)
    state = train(pairs_file, folder, small(dropout=0.3), save_every=2)
    assert numbers(state.history) == numbers(whole.history)
    assert all(torch.equal(each, learned[name]) for name, each in parameters(folder).items())


def test_steps_after_the_last_checkpoint_are_repeated_identically(pairs_file, tmp_path, uninterrupted):
    whole, learned = uninterrupted
    folder = tmp_path / "model"

    def crash(state, report):
        if state.step == 7:
            raise MemoryError

    with pytest.raises(MemoryError):
        train(pairs_file, folder, small(dropout=0.3), save_every=4, told=crash)
    assert (folder / "best.pt").exists()
    state = train(pairs_file, folder, small(dropout=0.3), save_every=4)
    assert numbers(state.history) == numbers(whole.history)
    assert all(torch.equal(each, learned[name]) for name, each in parameters(folder).items())


class Interrupting(io.StringIO):
    """A stream that interrupts this process at the report of step 15."""

    def write(self, text):
        if text.startswith("step 15 "):
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


def kill_at_step_15(words):
    """Run the command in a process of its own until step 15; return its code."""
    settings = dict(os.environ, PYTHONPATH=f"{ROOT / 'src'}", OMP_NUM_THREADS="1")
    line = [sys.executable, "-m", "examples.translate", *words]
    with subprocess.Popen(line, cwd=ROOT, env=settings, stderr=subprocess.PIPE, text=True) as process:
        for shown in process.stderr:
            if shown.startswith("step 15 "):
                break
        process.kill()
    return process.returncode


@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.long)], ids=["Ctrl-C", "kill -9"]
)
def test_interrupted_or_killed_it_goes_on_with_the_same_losses(pairs_file, tmp_path, how):
    options = small(steps=40, report_every=5, check_every=20)
    whole = train(pairs_file, tmp_path / "whole", options)
    folder = tmp_path / "killed"
    line = ["train", pairs_file, "--out", folder, "--save-every", 7]
    for name, _, there in type(options)().differences(options):
        line += [name, there]

    words = list(map(str, line))
    if how == signal.SIGINT:
        with contextlib.redirect_stderr(Interrupting()) as said:
            assert command.main(words) == 130
        assert "saved" in said.getvalue()
    else:
        assert kill_at_step_15(words) == -signal.SIGKILL
    assert json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["step"] < 40
    train(pairs_file, folder, options, save_every=7)
    log = [json.loads(text) for text in (folder / "log.jsonl").read_text().splitlines()]
    assert numbers(log) == numbers(whole.history)
    assert not [path for path in folder.iterdir() if path.suffix == ".part"]


def test_a_second_call_on_a_finished_folder_changes_nothing(pairs_file, trained):
    before = (trained / "last.pt").read_bytes()
    assert train(pairs_file, trained, small(**TRAINED)).step == 150
    assert (trained / "last.pt").read_bytes() == before


def test_other_options_or_pairs_in_the_same_folder_are_refused_and_named(pairs_file, trained, tmp_path):
    with pytest.raises(OptionError, match=r"--width 32, not 16; --seed 1, not 2"):
        train(pairs_file, trained, small(**TRAINED | {"width": 16, "seed": 2}))
    other = tmp_path / "other.tsv"
    other.write_text(pairs_file.read_text() + "One more.\tUne de plus.\n")
    with pytest.raises(OptionError, match="other pairs"):
        train(other, trained, small(**TRAINED))


@pytest.mark.parametrize("damage", ["cut", "text", "other", "missing"])
def test_a_checkpoint_that_cannot_be_used_is_refused_in_a_sentence(pairs_file, trained, tmp_path, damage):
    folder = tmp_path / "model"
    folder.mkdir()
    for path in trained.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "best.pt").unlink()
    last = folder / "last.pt"
    if damage == "cut":
        last.write_bytes(last.read_bytes()[:3000])
    elif damage == "text":
        last.write_text("not a checkpoint")
    elif damage == "other":
        torch.save({"state": {}, "model": {"x": torch.zeros(1)}}, last)
    else:
        last.unlink()
    with pytest.raises(DataError, match="checkpoint"):
        open_model(folder)


def test_a_checkpoint_runs_no_code(tmp_path):
    class Harm:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'harm'}",)

    torch.save(Harm(), tmp_path / "last.pt")
    with pytest.raises(DataError):
        checkpoints.load(tmp_path / "last.pt", torch.nn.Linear(1, 1))
    assert not (tmp_path / "harm").exists()


def test_subwords_are_learned_from_the_training_side_only(pairs_file, trained):
    options = small()
    parts = pairs.split(pairs.read(pairs_file), options.held_out, options.watched)
    for side, name in enumerate(("source", "target")):
        kept = Vocabulary.load(trained / f"{name}.json")
        sentences = [pair[side] for pair in parts.train]
        # A sentence with several translations counts once.
        again = Vocabulary.learn(sentences if side else dict.fromkeys(sentences), options.vocabulary)
        assert kept.encode(sentences) == again.encode(sentences)
    held = pairs.read_asked(trained / "held_out.tsv")
    assert held == parts.held_out


def test_the_rate_rises_over_the_warm_up_and_falls_to_zero():
    options = small(steps=100, warm_up=10, rate=0.5)
    rates = [rate(options, step) for step in range(1, 101)]
    assert max(rates) == rates[9] == 0.5
    assert all(a < b for a, b in pairwise(rates[:10]))
    assert all(a > b for a, b in pairwise(rates[9:]))
    assert 0 < rates[-1] < 0.01


def test_training_stops_when_no_pair_is_short_enough(pairs_file, tmp_path):
    with pytest.raises(OptionError, match="--longest 1"):
        train(pairs_file, tmp_path / "model", small(longest=1))


def test_a_folder_that_cannot_be_made_is_refused_in_a_sentence(pairs_file, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be created"):
        train(pairs_file, tmp_path / "file" / "model", small())


@pytest.mark.long
@pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA does not name the folder of public data")
def test_half_a_minute_on_real_sentences_reaches_a_loss_of_3_3_by_reading_the_source(tmp_path):
    """Train a small GRU with additive attention; docs/translate.md has the results of large ones."""
    options = small(
        width=64, vocabulary=800, pairs=40_000, longest=10, batch_tokens=400, steps=320, warm_up=30,
        rate=5e-3, held_out=500, watched=300, check_every=320, report_every=80, smoothing=0.0, dropout=0.0,
    )  # fmt: skip
    path = Path(os.environ["QKV_DATA"]) / "tatoeba" / "fra.txt.gz"
    state = train(path, tmp_path / "model", options)
    assert state.best < 3.3
    model, source, target, _, _ = open_model(tmp_path / "model")
    asked = [one for one in pairs.read_asked(tmp_path / "model" / "watched.tsv") if len(one.sentence) < 25]
    sources = source.encode([one.sentence for one in asked])
    targets = target.encode([one.references[0] for one in asked])
    own, other = (watched_loss(model, Examples(each, targets, 400)) for each in (sources, sources[1:] + sources[:1]))
    assert other > own + 0.3
