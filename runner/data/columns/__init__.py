"""Columns declared by a schema, and the encoding of their raw values as ids and numbers."""
