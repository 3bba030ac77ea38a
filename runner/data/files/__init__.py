"""A user's files: found, opened in each format, and read in chunks that record their position."""
