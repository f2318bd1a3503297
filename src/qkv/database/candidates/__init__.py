"""Candidates of an approximate index: only the rows that it returns are compared, and recall is measured."""
