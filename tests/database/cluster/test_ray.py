"""Queries by actors of Ray: the answers of one process, while actors are killed. Starting Ray takes some seconds."""

import os
import signal
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import clone

from qkv import Database, normalizers, scores
from qkv.database.cluster import scheduler
from qkv.errors import OptionError
from qkv.estimators import AttentionRegressor
from qkv.store import row_files

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'qkv[ray]'"),
]


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    import ray

    path = tmp_path_factory.mktemp("ray") / "rows"
    x = np.linspace(0, 6, 5000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "BYTES", 10_000)
        Database.create(path, {"x": x, "y": np.sin(x)}, "x", "y")
    ray.init(num_cpus=3, log_to_driver=False, include_dashboard=False, object_store_memory=2**27)
    yield path
    ray.shutdown()


@pytest.mark.parametrize("normalizer", [normalizers.Softmax(), normalizers.TopK(5), normalizers.Sparsemax()], ids=str)
def test_actors_of_ray_that_are_killed_change_no_answer(folder, normalizer, monkeypatch):
    monkeypatch.setattr(scheduler, "FAN_IN", 2)  # actors merge the results of others
    options = {"score": scores.Gaussian(0.1), "normalizer": normalizer, "threshold": 9.0}
    expected = Database.open(folder, memory="1 KiB").ask([0.5, 2.0], **options)
    many = Database.open(folder, cluster="ray:3")
    try:
        first = many.ask([0.5, 2.0], **options)
        np.testing.assert_allclose(first.value, expected.value, rtol=1e-12)
        assert [[row.index for row in rows] for rows in first.rows] == [[row.index for row in r] for r in expected.rows]
        for killed in range(3):
            os.kill(many.cluster.workers[killed].process_id, signal.SIGKILL)
            again = many.ask([0.5, 2.0], **options)
            assert (again.value, again.standard_error, again.rows) == (first.value, first.standard_error, first.rows)
        assert many.cluster.replaced == 3
    finally:
        many.close()


def test_another_address_than_the_connected_one_is_an_error(folder):
    with pytest.raises(OptionError, match="cluster must be the address to which Ray is connected"):
        Database.open(folder, cluster="ray://other:10001")


def test_a_regressor_over_the_actors_of_ray_is_that_of_one_process(folder):
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
