"""Queries by actors of Ray: the answers of one process, while actors are killed. `test_ray.py` runs this file."""

import os
import signal
import time
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from qkv import Database, normalizers, scores
from qkv.database.cluster import opening, scheduler
from qkv.database.cluster.opening import RayWorker
from qkv.database.cluster.scheduler import Scheduler
from qkv.errors import OptionError
from qkv.store import row_files
from tests.effort import LONG, sample

KILLED = 3 if LONG else 1
ACTORS = 3 if LONG else 2
PROCESSORS = {"num_cpus": ACTORS, "num_gpus": 2 if LONG else 0}
"""Actors with a share of a GPU import PyTorch, each for seconds."""


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    import ray

    path = tmp_path_factory.mktemp("ray") / "rows"
    x = np.linspace(0, 6, 5000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "BYTES", 10_000)
        Database.create(path, {"x": x, "y": np.sin(x)}, "x", "y")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # where Ray writes a token
        for unused in ("start_monitor", "start_log_monitor"):  # processes that start for seconds
            patch.setattr(f"ray._private.node.Node.{unused}", lambda self: None, raising=False)
        for left in (2, 1, 0):  # Ray gives its processes 30 s to start, which a busy machine may exceed
            try:
                ray.init(log_to_driver=False, include_dashboard=False, object_store_memory=2**27, **PROCESSORS)
                break
            except Exception:
                ray.shutdown()
                if not left:
                    raise
        yield path
        ray.shutdown()


@pytest.mark.parametrize(
    "normalizer", sample([normalizers.Softmax(), normalizers.TopK(5), normalizers.Sparsemax()], 3), ids=str
)
def test_actors_of_ray_that_are_killed_change_no_answer(folder, normalizer, monkeypatch):
    monkeypatch.setattr(scheduler, "FAN_IN", 2)  # actors merge the results of others
    options = {"score": scores.Gaussian(0.1), "normalizer": normalizer, "max_distance": 9.0}
    expected = Database.open(folder, memory="1 KiB").ask([0.5, 2.0], **options)
    many = Database.open(folder, cluster=f"ray:{ACTORS}")
    try:
        first = many.ask([0.5, 2.0], **options)
        np.testing.assert_allclose(first.value, expected.value, rtol=1e-12)
        assert [[row.index for row in rows] for rows in first.rows] == [[row.index for row in r] for r in expected.rows]
        for killed in range(KILLED):
            os.kill(many.cluster.workers[killed].process_id, signal.SIGKILL)
            again = many.ask([0.5, 2.0], **options)
            assert (again.value, again.standard_error, again.rows) == (first.value, first.standard_error, first.rows)
        assert many.cluster.replaced == KILLED
    finally:
        many.close()


def test_another_address_than_the_connected_one_is_an_error(folder):
    with pytest.raises(OptionError, match="cluster must be the address to which Ray is connected"):
        Database.open(folder, cluster="ray://other:10001")


@pytest.mark.long
def test_a_regressor_over_the_actors_of_ray_is_that_of_one_process(folder):
    from sklearn.base import clone

    from qkv.estimators import AttentionRegressor

    rows = pa.table({"x": np.linspace(0, 6, 5000)})
    expected = AttentionRegressor("none", random_state=0).fit(rows, np.sin(rows["x"].to_numpy()))
    many = Database.open(folder, cluster="ray:2")
    try:
        fitted = clone(expected).fit(many)
        os.kill(many.cluster.workers[1].process_id, signal.SIGKILL)
        np.testing.assert_allclose(
            fitted.predict(rows.slice(100, 50)), expected.predict(rows.slice(100, 50)), rtol=1e-12, atol=1e-12
        )
        assert many.cluster.replaced == 1
    finally:
        many.close()


@pytest.mark.long
def test_actors_share_the_gpus_that_are_free_and_do_not_wait_for_others(folder, monkeypatch):
    """Ray believes the number of GPUs that it is told; PyTorch finds none here, and the actors use their processors."""
    import ray

    monkeypatch.setattr(opening, "_GPU_SECONDS", 3.0)
    deadline = time.monotonic() + 60
    while ray.available_resources().get("GPU") != 2.0 and time.monotonic() < deadline:
        time.sleep(0.1)  # until those of the actors of other tests are free
    many = Database.open(folder, cluster="ray:2")
    expected = many.ask([0.5], score=scores.Gaussian(0.1)).value
    reserved = [ray.get(worker._actor.reserved_gpus.remote()) for worker in many.cluster.workers]
    assert sorted(reserved) == [["0"], ["1"]]
    another = Scheduler(partial(RayWorker, 0.5), 1, "actors of Ray")
    waiting = Database.open(folder)
    waiting.cluster = another
    try:
        assert waiting.ask([0.5], score=scores.Gaussian(0.1)).value == pytest.approx(expected)
        assert ray.get(another.workers[0]._actor.reserved_gpus.remote()) == []
    finally:
        many.close()
        waiting.close()
