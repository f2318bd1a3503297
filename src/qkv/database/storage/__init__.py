"""Databases on disk: creation, opening, writing, and vectors from encoders."""
