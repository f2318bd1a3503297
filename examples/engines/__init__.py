"""Attention over a table that another engine holds: partial results per fragment, merged in any order."""
