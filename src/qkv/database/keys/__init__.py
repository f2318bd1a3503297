"""Modules that read key columns, parse queries, and choose how queries are compared with keys."""
