"""What every data module shares: declared columns, block files, the cache, the interface."""
