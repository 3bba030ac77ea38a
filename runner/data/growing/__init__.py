"""Ids without end: each new value gets its own row, and rows hardly used come free again."""
