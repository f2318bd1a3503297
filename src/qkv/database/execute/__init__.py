"""Executors, which answer queries over a table in memory or block by block over a store."""
