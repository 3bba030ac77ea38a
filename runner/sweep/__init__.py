"""Multirun: every job its own process, known by its signature. Imports no torch."""
