"""Databases on disk, with functions that create, open and write them and that encode their keys as vectors."""
