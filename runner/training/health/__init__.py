"""Assesses a run: a baseline (the yardstick) on the same data, and findings about the data."""
