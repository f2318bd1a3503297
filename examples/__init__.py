"""Small tables for `qkv ask`, and example programs, such as `python -m examples.translate`."""
