"""A user's own table: files found and read, columns declared, rows checked, encoded and cached."""
