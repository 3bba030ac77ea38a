"""Scores the rows of files with the model of a run."""
