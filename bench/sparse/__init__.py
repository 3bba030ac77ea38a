"""Embedding tables: what an update costs, ours beside what others write."""
