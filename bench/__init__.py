"""Benchmarks: measured by hand, never by the tests. `python -m bench.overhead`, `bench.startup`."""
