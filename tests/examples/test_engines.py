"""The examples for other engines: fragments in DuckDB, Dask and Ray give the answers of one table."""

from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

import qkv


@pytest.mark.parametrize(
    ("name", "package", "install"),
    [
        ("duckdb_fragments", "duckdb", "duckdb"),
        ("dask_frames", "dask", "dask[dataframe]"),
        pytest.param("ray_data", "ray", "ray[data]", marks=pytest.mark.long),  # starting Ray takes some seconds
    ],
)
def test_fragments_of_another_engine_give_the_answers_of_one_table(name, package, install):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install '{install}'")
    x = np.arange(100_000) / 100_000 * 4
    whole = qkv.Database.open({"x": x, "y": np.sin(x)}, "x", "y").ask([0.5, 2.0, 3.0], score=qkv.scores.Gaussian(0.05))
    got = import_module(f"examples.engines.{name}").main()
    np.testing.assert_allclose(got, whole.value, rtol=1e-12)
