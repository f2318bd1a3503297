"""Key columns as arrays, parsed queries, and comparisons of queries with keys."""
