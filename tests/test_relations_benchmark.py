"""The queries of `benchmarks.relations` to DuckDB and to `ask` answer the same questions."""

import numpy as np
import pyarrow as pa
import pytest
from benchmarks.relations import answer_values


@pytest.mark.parametrize("seed", range(5))
def test_asof_joins_return_the_last_and_the_nearer_row(seed):
    rng = np.random.default_rng(seed)
    keys, queries = rng.permutation(200)[:40] / 7, rng.uniform(-2, 32, 60)
    groups, query_groups = rng.integers(0, 3, 40), rng.integers(0, 3, 60)
    values = rng.normal(size=40)
    d = pa.table({"g": groups, "x": keys, "y": values})
    q = pa.table({"g": query_groups, "x": queries, "y": rng.normal(size=60)})
    seconds = dict.fromkeys(("last", "nearest", "open", "ask"), 0.0)
    found = answer_values(("g", "x"), d, q, seconds)
    for i, (group, x) in enumerate(zip(query_groups, queries, strict=True)):
        rows = np.flatnonzero(groups == group)
        before = rows[keys[rows] <= x]
        last = values[before[np.argmax(keys[before])]] if len(before) else np.nan
        nearest = values[rows[np.argmin(np.abs(keys[rows] - x))]]
        np.testing.assert_array_equal(found["last"][i], last)
        assert found["nearest"][i] == nearest
    assert all(each > 0 for each in seconds.values())
