"""Small tables for `qkv ask`, and models that are built from the parts: `python -m examples.translate`."""
