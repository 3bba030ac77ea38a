"""Starts a run from the weights of other runs."""
