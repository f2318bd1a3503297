"""Queries by worker processes: the answers of one process, with workers that die and fragments that are damaged."""

import os
import pickle
import signal
import threading
from contextlib import suppress
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from qkv import Database, masks, normalizers, scores
from qkv.database.cluster import scheduler, worker
from qkv.database.cluster.executor import ClusterExecutor
from qkv.database.cluster.opening import open_cluster
from qkv.database.cluster.scheduler import LostResultError, Scheduler, divide
from qkv.database.cluster.task import FragmentRows, FragmentTask
from qkv.database.cluster.worker import FragmentWorker
from qkv.database.execute.scan import DeviceProducts
from qkv.errors import DamagedStoreError, OptionError, QueryError, RefusedError
from qkv.store import row_files
from tests.database.cluster.local_worker import LocalWorker
from tests.effort import sample

ROWS, BYTES = 1500, 20_000
NORMALIZERS = [
    None,
    normalizers.Softmax(0.5),
    normalizers.Mean(),
    normalizers.TopK(5),
    normalizers.Hard(),
    normalizers.Sparsemax(),
    normalizers.Entmax15(),
]


@cache
def table():
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((2, ROWS))
    vectors = pa.array(draw.standard_normal(ROWS * 6).astype(np.float32))
    return pa.table(
        {
            "x": pa.array(x, mask=draw.random(ROWS) < 0.01),
            "y": np.where(draw.random(ROWS) < 0.01, np.inf, y),
            "vector": pa.FixedSizeListArray.from_arrays(vectors, 6),
            "name": [f"{'abcdefghij'[i % 10] * 3} {i % 97} Straße" for i in range(ROWS)],
            "city": pa.array([f"city {i % 7}" for i in range(ROWS)]).dictionary_encode(),
            "value": pa.array(np.sin(3 * x), mask=draw.random(ROWS) < 0.01),
        }
    )


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    """A store of several fragments, with missing cells and deleted rows."""
    path = tmp_path_factory.mktemp("cluster") / "rows"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "BYTES", BYTES)
        rows = Database.create(path, table(), "x,y", "value")
        rows.delete("value > 0.99")
    return path


def open_locally(path, key="x,y", value="value", workers=3, deaths=None, skip=False, **options):
    database = Database.open(path, key, value, **options)
    database.cluster = Scheduler(lambda: LocalWorker(deaths), workers, "workers", skip)
    return database


@cache
def both(folder, key="x,y", value="value"):
    """Return the database in one process and with workers, which are reused, as the choice of bandwidths takes time."""
    return Database.open(folder, key, value, memory="1 KiB"), open_locally(folder, key, value)


def assert_same(got, expected, tolerance=1e-12):
    assert got.found == expected.found
    for name in ("value", "spread", "standard_error", "effective_rows", "perplexity"):
        for mine, theirs in zip(getattr(got, name), getattr(expected, name), strict=True):
            if isinstance(theirs, (float, np.ndarray)):
                np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance, err_msg=name)
            else:
                assert mine == theirs, name
    for mine, theirs in zip(got.rows, expected.rows, strict=True):
        assert [row.index for row in mine] == [row.index for row in theirs]
        np.testing.assert_allclose([r.weight for r in mine], [r.weight for r in theirs], rtol=1e-6, atol=tolerance)
    assert got.reason == expected.reason


KEYS = [
    ("x,y", "value", [(0.1, 0.2), (-1.0, 0.5), (50.0, 50.0)], 1e-12),
    ("x", "city", [0.1, None, -3.0], 1e-12),
    ("vector", "value", [[1.0] * 6, [0.5, -1, 0, 0, 1, 2]], 1e-6),
    ("name", "value", ["aaa 20 strasse", "bbb 31", "nothing"], 1e-12),
    ("city", "vector", ["city 3", "Lima"], 1e-12),
]
CASES = [
    (*key, how) for number, key in enumerate(KEYS) for how in (NORMALIZERS if not number else (None, NORMALIZERS[5]))
]


@pytest.mark.parametrize(("key", "value", "queries", "tolerance", "normalizer"), sample(CASES, 4), ids=str)
def test_workers_give_the_answers_of_one_process(folder, key, value, queries, tolerance, normalizer):
    one, many = both(folder, key, value)
    assert len(many.store.block_names()) > 4
    expected = one.ask(queries, normalizer=normalizer)
    assert_same(many.ask(queries, normalizer=normalizer), expected, tolerance)
    where = {"where": "y > 0.3"}
    assert_same(
        many.ask(queries, normalizer=normalizer, **where), one.ask(queries, normalizer=normalizer, **where), tolerance
    )


def test_a_mask_a_sum_and_the_options_that_run_in_one_process_are_answered(folder):
    one, many = both(folder)
    mask = masks.AllowedKeys(np.arange(one.table.num_rows) % 3 == 0)
    assert_same(many.ask([(0.1, 0.2)], mask=mask), one.ask([(0.1, 0.2)], mask=mask))
    score = scores.Exact()
    assert_same(many.ask([(0.1, 0.2)], score=score), one.ask([(0.1, 0.2)], score=score))
    assert_same(many.ask([(0.1, 0.2)], aggregate="local-linear"), one.ask([(0.1, 0.2)], aggregate="local-linear"))
    assert "none; local linear regression runs in this process" in str(
        many.ask((0.1, 0.2), aggregate="local-linear").plan
    )
    assert "3 workers" in str(many.ask((0.1, 0.2)).plan)
    assert_same(many.ask([(0.1, 0.2)], aggregate="vote"), one.ask([(0.1, 0.2)], aggregate="vote"))


@pytest.mark.parametrize("workers", [1, 50])
def test_the_answer_does_not_depend_on_the_number_of_workers(folder, workers, monkeypatch):
    one, many = both(folder)
    monkeypatch.setattr(many._executor, "scheduler", Scheduler(LocalWorker, workers, "workers"))
    assert_same(many.ask([(0.1, 0.2)]), one.ask([(0.1, 0.2)]))


def test_a_dead_worker_is_replaced_and_the_answer_is_equal_to_the_last_bit(folder, monkeypatch):
    _, many = both(folder)
    expected = many.ask([(0.1, 0.2), (0.3, 0.4)])
    deaths = [True, False, True, True, False, True]
    dying = Scheduler(lambda: LocalWorker(deaths), 3, "workers")
    monkeypatch.setattr(many._executor, "scheduler", dying)
    got = many.ask([(0.1, 0.2), (0.3, 0.4)])
    assert dying.replaced == 4
    assert (got.value, got.standard_error, got.rows) == (expected.value, expected.standard_error, expected.rows)


def test_results_of_many_workers_are_merged_in_a_tree_and_read_again_if_they_are_lost(folder, monkeypatch):
    _, many = both(folder)
    expected = many.ask([(0.1, 0.2), (0.3, 0.4)])
    workers = len(many.store.block_names())
    monkeypatch.setattr(scheduler, "FAN_IN", 2)
    merged, losses = [], []

    class Losing(LocalWorker):
        def merge(self, results):
            merged.append(len(results))
            if losses and losses.pop():
                raise LostResultError
            return super().merge(results)

        def fetch(self, result):
            if losses and losses.pop():
                raise LostResultError
            return result

    monkeypatch.setattr(many._executor, "scheduler", Scheduler(Losing, workers, "workers"))
    whole = many.ask([(0.1, 0.2), (0.3, 0.4)])
    assert_same(whole, expected)
    assert len(merged) > 2
    assert max(merged) == 2
    for lost in ([False, True, False, True, True, False, True, True], [True] * 8):
        losses += lost
        again = many.ask([(0.1, 0.2), (0.3, 0.4)])
        assert not losses
        assert (again.value, again.standard_error, again.rows) == (whole.value, whole.standard_error, whole.rows)


def test_a_task_that_ends_every_worker_is_given_up(folder, monkeypatch):
    monkeypatch.setattr(scheduler, "_MOST_ATTEMPTS", 3)
    _, many = both(folder)
    monkeypatch.setattr(many._executor, "scheduler", Scheduler(lambda: LocalWorker([True]), 2, "workers"))
    with pytest.raises(RefusedError, match="3 workers died one after another"):
        many.ask([(0.1, 0.2)])


def test_a_damaged_fragment_fails_the_query_by_name_or_is_stated_in_the_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "BYTES", BYTES)
    Database.create(tmp_path / "rows", table(), "x,y", "value")
    many, skipping = (open_locally(tmp_path / "rows", skip=skip) for skip in (False, True))
    options = {"score": scores.Gaussian(0.5), "max_distance": 9.0}
    assert many.ask((0.1, 0.2), **options).value == skipping.ask((0.1, 0.2), **options).value
    name = many.store.block_names()[1]
    (tmp_path / "rows" / "rows" / name).unlink()
    for each in (many, skipping):
        each.close()  # new workers open the store again
    with pytest.raises(DamagedStoreError, match=f"(?s)1 of .* fragments could not be read, .*{name}"):
        many.ask((0.1, 0.2), **options)
    answer = skipping.ask((0.1, 0.2), **options)
    assert any("could not be read" in note and name in note for note in answer.notes)
    expected = Database.open(tmp_path / "rows", damaged="skip", memory="1 KiB").ask((0.1, 0.2), **options)
    np.testing.assert_allclose(answer.value, expected.value, rtol=1e-12)
    assert answer.rows[0].record == expected.rows[0].record


def test_an_error_of_a_score_reaches_the_caller(folder):
    with pytest.raises(RefusedError, match="score must not be this one"):
        both(folder)[1].ask([(0.1, 0.2)], score=scores.Custom(_refuse))


def _refuse(query, key):
    if len(key) == 1:
        return query @ key.T  # the check of the kinds of the columns
    raise RefusedError("score must not be this one.")


def _break(query, key):
    if len(key) == 1:
        return query @ key.T
    raise _OddError("broken", 1)


class _OddError(ValueError):
    def __init__(self, message, number):
        super().__init__(message)  # so that it cannot be loaded from a pickle


def test_an_error_of_any_kind_reaches_the_caller_and_does_not_end_the_worker(folder, monkeypatch):
    _, many = both(folder)
    local = Scheduler(LocalWorker, 2, "workers")
    monkeypatch.setattr(many._executor, "scheduler", local)
    with pytest.raises(RefusedError, match="_OddError: broken"):
        many.ask([(0.1, 0.2)], score=scores.Custom(_break))
    reply = pickle.loads(FragmentWorker().run(b"cno_such_module\nname\n."))
    assert isinstance(reply.error, RefusedError)
    assert "must be importable by the workers" in str(reply.error)


def test_a_failed_query_of_another_thread_does_not_remove_the_note_of_an_unreadable_fragment(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "BYTES", BYTES)
    Database.create(tmp_path / "rows", table(), "x,y", "value")
    skipping = open_locally(tmp_path / "rows", skip=True)
    options = {"score": scores.Gaussian(0.5), "max_distance": 9.0}
    skipping.ask((0.1, 0.2), **options)
    (tmp_path / "rows" / "rows" / skipping.store.block_names()[1]).unlink()
    skipping.close()
    scan = ClusterExecutor.scan

    def interrupted(executor, *arguments):
        merged = scan(executor, *arguments)

        def fail():
            with suppress(QueryError):
                skipping.ask(("no number", 0.2), **options)

        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        return merged

    monkeypatch.setattr(ClusterExecutor, "scan", interrupted)
    assert any("could not be read" in note for note in skipping.ask((0.1, 0.2), **options).notes)


def test_a_query_that_is_interrupted_leaves_no_reply_to_the_next_one(folder, monkeypatch):
    _, many = both(folder)
    expected = many.ask([(0.1, 0.2)])

    class Queueing(LocalWorker):
        """A worker that replies in the order of its messages, like a process."""

        def __init__(self):
            super().__init__()
            self.replies = []

        def send(self, message):
            self.replies.append(self.call(message))

        def receive(self, sent):
            if interruptions and interruptions.pop():
                raise KeyboardInterrupt
            return self.replies.pop(0)

    interruptions = [True, False]
    monkeypatch.setattr(many._executor, "scheduler", Scheduler(Queueing, 3, "workers"))
    with pytest.raises(KeyboardInterrupt):
        many.ask([(1.0, -1.0)])
    assert many.ask([(0.1, 0.2)]).value == expected.value


def test_fragments_are_divided_into_consecutive_shares_of_equal_rows():
    rows = [5, 5, 0, 90, 3, 7, 40, 50]
    tasks = [FragmentTask(FragmentRows(n, str(n), count), frozenset(), None) for n, count in enumerate(rows)]
    shares = divide(tasks, 2)
    assert [[each.fragment.index for each in share] for share in shares] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [len(share) for share in divide([], 3)] == [0, 0, 0]
    assert sum(len(share) for share in divide(tasks, 100)) == len(tasks)


@pytest.mark.parametrize("text", ["process", "processes:0", "processes:x", "ray:x", "", 3, "processes:", "spark"])
def test_an_unknown_cluster_is_refused_with_those_that_exist(folder, text):
    if text == "processes:":
        assert open_cluster(text).count >= 1
        return
    with pytest.raises(OptionError, match="cluster must be 'processes'"):
        Database.open(folder, cluster=text)


def test_a_table_in_memory_has_no_cluster():
    with pytest.raises(OptionError, match="cluster must be None"):
        Database.open({"x": [1], "y": [2]}, "x", "y", cluster="processes")


def test_worker_processes_that_are_killed_are_replaced(folder):
    options = {"score": scores.Gaussian(0.5), "max_distance": 9.0}
    expected = both(folder)[0].ask([(0.1, 0.2)], **options)
    many = Database.open(folder, cluster="processes:1")
    try:
        assert_same(many.ask([(0.1, 0.2)], **options), expected)
        os.kill(many.cluster.workers[0].process.pid, signal.SIGKILL)
        assert_same(many.ask([(0.1, 0.2)], **options), expected)
        assert many.cluster.replaced == 1
    finally:
        many.close()


@pytest.mark.long
def test_twenty_workers_killed_during_queries_change_no_answer(folder):
    many = Database.open(folder, cluster="processes:2")
    expected = many.ask([(0.1, 0.2), (1.0, -1.0)])
    killed, stop = [], threading.Event()

    def kill():
        draw = np.random.default_rng(0)
        while len(killed) < 20 and not stop.wait(float(draw.uniform(0.5, 3.0))):
            workers = [worker for worker in many.cluster.workers if worker is not None]
            if workers:
                os.kill(workers[int(draw.integers(len(workers)))].process.pid, signal.SIGKILL)
                killed.append(1)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        while thread.is_alive():
            got = many.ask([(0.1, 0.2), (1.0, -1.0)])
            assert (got.value, got.standard_error, got.rows) == (expected.value, expected.standard_error, expected.rows)
    finally:
        stop.set()
        thread.join()
        many.close()
    assert len(killed) == 20
    assert many.cluster.replaced > 10


@pytest.mark.parametrize("kept", [1, 100])
def test_workers_with_a_gpu_multiply_the_vectors_there_that_fit(tmp_path, kept, monkeypatch):
    """PyTorch multiplies on the processor here; on a GPU only the name of the device differs."""
    rows, held = table().select(["vector"]), []
    monkeypatch.setattr(row_files, "BYTES", BYTES)
    Database.create(tmp_path / "rows", rows.append_column("value", pa.array(np.arange(ROWS) % 10.0)), "vector", "value")
    one, many = both(tmp_path / "rows", "vector", "value")
    most = max(many.store.block_lengths()) * 6 * 4

    class Products(DeviceProducts):
        def __init__(self, device):
            super().__init__(device, kept * most)

        def multiply(self, name, *arguments):
            result = super().multiply(name, *arguments)
            held.append(result is not None)
            return result

    monkeypatch.setattr(worker, "DeviceProducts", Products)
    monkeypatch.setattr(many._executor, "scheduler", Scheduler(lambda: LocalWorker(device="cpu"), 1, "workers"))
    for score in (scores.Gaussian(0.5), scores.Cosine(), scores.ScaledDot()):
        for queries in ([[1.0] * 6], [[1.0] * 6, [0.5, -1, 0, 0, 1, 2]]):
            assert_same(many.ask(queries, score=score), one.ask(queries, score=score), 3e-6)
    assert any(held)
    assert all(held) == (kept == 100)


@pytest.mark.parametrize("kind", sample(["vote", "number", "vector", "name"], 2))
def test_tied_rows_of_several_fragments_have_the_order_of_one_process(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "BYTES", 1_000)
    draw = np.random.default_rng(len(kind))
    places = draw.integers(0, 6, 400)
    keys, query = {
        "number": (places.astype(float), 2.5),
        "vote": (places.astype(float), 2.5),
        "vector": (pa.FixedSizeListArray.from_arrays(pa.array(np.eye(6)[places].ravel()), 6), [1.0, 1, 0, 0, 0, 0]),
        "name": ([f"name {'abcdef'[place]}" for place in places], "name g"),
    }[kind]
    values = [f"label {n}" for n in draw.integers(0, 3, 400)] if kind == "vote" else draw.normal(size=400)
    Database.create(tmp_path / "rows", {"key": keys, "value": values, "other": places % 2}, "key", "value")
    one, many = both(tmp_path / "rows", "key", "value")
    assert len(many.store.block_names()) > 4
    for normalizer in ("topk:4", "hard", "softmax", "sparsemax", None):
        for options in ({"top": 3}, {"top": 30, "where": "other = 0"}):
            expected = one.ask([query], normalizer=normalizer, **options)
            assert_same(many.ask([query], normalizer=normalizer, **options), expected)
