"""Several ranks of one run: who they are, how they start and end, how many rows each takes."""
