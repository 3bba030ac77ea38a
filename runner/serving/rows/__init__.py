"""Rows to be scored: read, and encoded by the transforms of a run's training."""
