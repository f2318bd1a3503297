"""Ask a Ray dataset: `python -m examples.engines.ray_data` (pip install "ray[data]").

Each batch becomes a partial result in the worker that holds it. The bytes of an Arrow stream carry its metadata.
"""

import numpy as np
import pyarrow as pa
import ray

from qkv.database import partials

ROWS = 100_000
QUERIES = [0.5, 2.0, 3.0]


def ask_batch(batch: pa.Table) -> dict[str, list[bytes]]:
    """Return the partial result of the queries over one batch, as bytes."""
    first = batch["i"][0].as_py()  # names the fragment, also if the batch is computed again
    made = partials.compute(QUERIES, batch, key="x", value="y", score="gaussian:0.05", fragment=first)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_batch(made)
    return {"partial": [sink.getvalue().to_pybytes()]}


def main() -> list[float]:
    """Return the average of sin(x) near each query, from eight blocks."""
    x = np.arange(ROWS) / ROWS * 4
    data = ray.data.from_arrow(pa.table({"i": np.arange(ROWS), "x": x, "y": np.sin(x)})).repartition(8)
    rows = data.map_batches(ask_batch, batch_format="pyarrow", batch_size=None).take_all()
    return partials.finalize(partials.merge(row["partial"] for row in rows))["value"].to_pylist()


if __name__ == "__main__":
    print(main())
