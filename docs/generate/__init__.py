"""Generators of the pages and figures of the site, run by docs/build.py."""
