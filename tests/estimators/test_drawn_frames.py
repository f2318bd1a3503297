"""Estimators that are fitted to a drawn table in one container predict alike for every container, and after saving."""

import datetime as dt
import pickle
import random
import warnings

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from qkv.errors import DataError
from qkv.estimators import AttentionClassifier, AttentionRegressor
from tests.database.drawn_tables import CELLS, containers, drawn_cells
from tests.effort import cases


def test_predictions_do_not_depend_on_the_containers_of_the_fit_and_of_the_queries(tmp_path):
    for seed in range(cases(60)):
        draw = random.Random(seed)
        kinds = {f"c{n}": draw.choice([*CELLS]) for n in range(draw.randint(1, 3))}
        missing, classify = draw.choice([0.0, 0.1, 0.4]), draw.random() < 0.5
        known, asked = (
            containers({name: drawn_cells(draw, kind, count, missing) for name, kind in kinds.items()}, kinds)
            for count in (25, 6)
        )
        y = [draw.choice("abc") if classify else draw.uniform(-3, 3) for _ in range(25)]
        model = AttentionClassifier if classify else AttentionRegressor
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few rows
            fitted = {name: model("none", random_state=0).fit(frame, y) for name, frame in known.items()}
            wanted = fitted["arrow"].predict(asked["arrow"])
            fitted["arrow"].save(tmp_path / "model")
            fitted["loaded"], fitted["copied"] = (
                model.load(tmp_path / "model"),
                pickle.loads(pickle.dumps(fitted["arrow"])),
            )
            found = {f"fitted to {name}": each.predict(asked["arrow"]) for name, each in fitted.items()}
            found |= {f"asked by {name}": fitted["arrow"].predict(frame) for name, frame in asked.items()}
        for name, predictions in found.items():
            if classify:
                assert predictions.tolist() == wanted.tolist(), (seed, kinds, name)
            else:
                np.testing.assert_allclose(predictions, wanted, rtol=1e-5, atol=1e-6, err_msg=f"{seed} {kinds} {name}")


def test_lists_of_dates_are_read_and_other_tables_name_what_to_pass():
    pandas = pytest.importorskip("pandas")
    rows = [[dt.date(2020, 1, day), day % 3] for day in range(1, 20)]
    frame = pandas.DataFrame({"day": pandas.to_datetime([day for day, _ in rows]), "rest": [rest for _, rest in rows]})
    model, expected = (AttentionRegressor("none").fit(table, range(19)) for table in (rows, frame))
    np.testing.assert_allclose(model.predict(rows), expected.predict(frame))
    for table, said in (
        (frame.to_dict("list"), "got a dict. Pass, for example, pandas.DataFrame"),
        (frame.rename(columns={"rest": "day"}), "got 'day' repeatedly. Rename one"),
    ):
        with pytest.raises(DataError, match=said):
            AttentionRegressor("none").fit(table, range(19))
