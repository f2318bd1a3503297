"""Reading of files, data frames and SQL results as Arrow tables, and formatting of values for display."""
