"""Trainings by other libraries, each run by an interpreter of its own: `python -m bench.peers`."""
