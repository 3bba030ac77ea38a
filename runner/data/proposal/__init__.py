"""Proposes the schema of a table that has none: `schema FILE`."""
