"""Relations of queries in, relations of answers out: streams of Arrow batches, and functions of DuckDB connections."""
