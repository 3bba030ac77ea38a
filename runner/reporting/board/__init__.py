"""The board: a local page of all runs and sweeps that keeps itself up to date."""
