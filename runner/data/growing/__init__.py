"""Unbounded ids: each new value gets its own row, and rarely used rows are freed."""
