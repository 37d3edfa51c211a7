"""Benchmarks: Moldau side by side with a peer or a physical limit, always in one run.

Owns the harness (`figures`, `machine`, `wire`, `sender`, `reader`, `bare`, `nodes`) and one module
`bench_…` per row; `run` runs them. Linux only: CPU and memory of a node come from /proc. Must not
be imported by the package; asserts nothing about time.
"""
