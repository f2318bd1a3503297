"""Read files, frames and SQL into Arrow tables, and format values for people."""
