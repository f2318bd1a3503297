"""Ask a Dask data frame: `python -m examples.engines.dask_frames` (pip install "dask[dataframe]").

Each partition becomes a partial result where it is, and only partial results are moved.
"""

import dask
import dask.dataframe
import numpy as np
import pandas as pd

from qkv.database import partials

ROWS = 100_000
QUERIES = [0.5, 2.0, 3.0]


def ask_partition(frame, number: int):
    """Return the partial result of the queries over one partition."""
    return partials.compute(QUERIES, frame, key="x", value="y", score="gaussian:0.05", fragment=number)


def main() -> list[float]:
    """Return the average of sin(x) near each query, from eight partitions."""
    x = np.arange(ROWS) / ROWS * 4
    table = dask.dataframe.from_pandas(pd.DataFrame({"x": x, "y": np.sin(x)}), npartitions=8)
    parts = [dask.delayed(ask_partition)(part, number) for number, part in enumerate(table.to_delayed())]
    # Dask merges the results of neighbors in a tree.
    while len(parts) > 1:
        parts = [dask.delayed(partials.merge)(parts[index : index + 2]) for index in range(0, len(parts), 2)]
    return partials.finalize(parts[0].compute())["value"].to_pylist()


if __name__ == "__main__":
    print(main())
