"""Entry point of `python -m qkv`, which runs the same program as the command `qkv`."""

from __future__ import annotations

from qkv.cli.main import main

if __name__ == "__main__":
    main()
