"""Declared columns: what a schema says of them, and how their raw values become ids and numbers."""
