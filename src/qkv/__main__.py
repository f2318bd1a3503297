"""Entry point of `python -m qkv`, the same as the `qkv` command."""

from __future__ import annotations

from qkv.cli.main import main

if __name__ == "__main__":
    main()
