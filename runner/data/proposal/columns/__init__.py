"""Analyses the columns of a sample: statistics, labels, roles, events, doubtful values."""
