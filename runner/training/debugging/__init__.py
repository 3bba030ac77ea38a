"""Observes the inside of an update: non-finite values, statistics, times. Imports no loop."""
