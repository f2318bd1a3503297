"""Key columns as arrays, parsed queries, and the comparison between them."""
