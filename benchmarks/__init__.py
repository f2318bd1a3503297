"""Benchmarks: one file per claim. `python -m benchmarks additive`, or `make bench CLAIM=additive`.

_claim.py    claims, the rows that they measure, and their goals
_race.py     interleaved timing
_calls.py    the measured calls, built from the shapes of `qkv.workloads`, and their checks
_peers.py    the same work in other libraries
_memory.py   peak memory of a new process
_record.py   results, with a description of the machine
page.py      writes docs/performance/, docs/benchmarks.md and the table of README.md from the latest results
"""
