"""Benchmarks: one file per claim. `python -m benchmarks additive`, or `make bench CLAIM=additive`.

_claim.py    what a claim is, the rows that it measures, and the goals they must keep
_race.py     interleaved timing
_calls.py    the calls that are measured, made from the shapes of `qkv.workloads`, and checked
_peers.py    the same work done by others
_memory.py   peak memory of a fresh process
_record.py   results, and the machine they are of
page.py      writes docs/benchmarks.md from the last results
"""
