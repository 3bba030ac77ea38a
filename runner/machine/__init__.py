"""The machine: cores and threads, imports, memory, and the cache folder."""
