"""Regression and search over fragments that workers hold: the results of one process."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

from qkv import Database
from qkv.database.cluster import scheduler
from qkv.database.cluster.scheduler import Scheduler
from qkv.errors import DamagedStoreError, DataError, KindError, OptionError, RefusedError
from qkv.estimators import AttentionRegressor
from qkv.store import row_files
from tests.database.cluster.local_worker import LocalWorker

ROWS = 900
QUICK = {"random_state": 0, "verbose": False}


def rows():
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((2, ROWS))
    city = draw.integers(0, 5, ROWS)
    value = np.sin(2 * x) + 0.3 * city + 0.1 * y
    return pa.table(
        {
            "x": pa.array(x, mask=draw.random(ROWS) < 0.05),
            "y": y,
            "city": pa.array([f"city {n}" for n in city]),
            "value": pa.array(value, mask=draw.random(ROWS) < 0.03),
        }
    )


def stored(path, table):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "BYTES", 10_000 * table.num_rows // ROWS)
        Database.create(path, table, "x,y,city", "value")
    return path


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("regressor") / "rows", rows())


def with_workers(path, count=3, deaths=None, key="x,y,city"):
    database = Database.open(path, key, "value")
    database.cluster = Scheduler(lambda: LocalWorker(deaths), count, "workers")
    return database


def one_process(count=ROWS, **options):
    whole = rows().slice(0, count)
    whole = whole.filter(pa.compute.is_valid(whole["value"]))
    return AttentionRegressor(**options, **QUICK).fit(whole.select(["x", "y", "city"]), whole["value"].to_numpy())


ASKED = rows().select(["x", "y", "city"]).slice(5, 40)
NETWORK = {"metric": "network", "max_steps": 20, "hidden": 8, "n_estimators": 2}


@pytest.mark.thinned
@pytest.mark.parametrize("count", [ROWS, 200])
@pytest.mark.parametrize("options", [{"metric": "none"}, NETWORK, {"metric": "none", "bandwidth": 0.5}], ids=str)
def test_a_regressor_over_fragments_is_that_of_one_process(folder, options, count, tmp_path):
    folder = folder if count == ROWS else stored(tmp_path / "rows", rows().slice(0, count))
    expected = one_process(count, **options)
    tolerance = 1e-6 if options is NETWORK else 1e-12  # products in float32 depend on how rows are grouped
    for database in (with_workers(folder, deaths=[False, True, False, True]), Database.open(folder)):
        assert len(database.store.block_names()) > 2
        fitted = AttentionRegressor(**options, **QUICK).fit(database)
        assert fitted.n_steps_ == expected.n_steps_
        for name, array in expected.parameters_.items():
            np.testing.assert_array_equal(fitted.parameters_[name], array, err_msg=name)
        np.testing.assert_array_equal(fitted.out_of_bag_rows_, expected.out_of_bag_rows_)
        np.testing.assert_allclose(fitted.validation_loss_, expected.validation_loss_, rtol=1e-5)
        np.testing.assert_allclose(fitted.predict(ASKED), expected.predict(ASKED), rtol=tolerance, atol=tolerance)
    assert not hasattr(fitted, "keys_")


@pytest.mark.long
def test_worker_processes_fit_and_predict_as_one_process(folder):
    database = Database.open(folder, "x,y,city", "value", cluster="processes:2")
    try:
        fitted = AttentionRegressor("none", **QUICK).fit(database)
        np.testing.assert_allclose(fitted.predict(ASKED), one_process(metric="none").predict(ASKED), rtol=1e-12)
    finally:
        database.close()


def test_what_needs_the_rows_in_memory_and_wrong_arguments_are_refused(folder, tmp_path):
    database = Database.open(folder)
    fitted = AttentionRegressor("none", **QUICK).fit(database)
    for call in (lambda: fitted.predict_interval(ASKED), lambda: fitted.save(tmp_path / "model")):
        with pytest.raises(RefusedError, match="the fitted rows must be in memory"):
            call()
    for call in (lambda: fitted.explain_rows(ASKED), lambda: fitted.partial_fit(ASKED, np.zeros(40))):
        with pytest.raises(RefusedError, match="the fitted rows must be in memory"):
            call()
    with pytest.raises(OptionError, match="y and sample_weight must be None"):
        AttentionRegressor("none").fit(database, np.zeros(ROWS))
    with pytest.raises(KindError, match="the values city must be numbers"):
        AttentionRegressor("none").fit(Database.open(folder, "x", "city"))
    infinite = Database.create(tmp_path / "infinite", {"x": [1.0, 2.0], "y": [1.0, np.inf]}, "x", "y")
    with pytest.raises(DataError, match="infinity or a value too large"):
        AttentionRegressor("none").fit(infinite)


def test_a_damaged_fragment_fails_a_prediction_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "BYTES", 10_000)
    Database.create(tmp_path / "rows", rows(), "x,y", "value")
    database = with_workers(tmp_path / "rows", key="x,y")
    fitted = AttentionRegressor("none", **QUICK).fit(database)
    name = database.store.block_names()[1]
    (tmp_path / "rows" / "rows" / name).unlink()
    database.close()  # new workers read the fragments again
    with pytest.raises(DamagedStoreError, match=f"(?s)1 of .* fragments of rows could not be read: {name}"):
        fitted.predict(ASKED.select(["x", "y"]))


@pytest.mark.parametrize("slots", [1, 16, 17, 300])
def test_a_lost_branch_is_merged_again_from_all_its_fragments(monkeypatch, slots):
    monkeypatch.setattr(
        scheduler, "merge_replies", lambda group: [slot for part in group for slot in pickle.loads(part)]
    )
    monkeypatch.setattr(Scheduler, "_read_again", lambda self, scan, slot: pickle.dumps([slot]))
    branch = scheduler._Branch(3, 3 + slots, None)
    assert pickle.loads(object.__new__(Scheduler)._repeat(None, branch)) == list(range(3, 3 + slots))
