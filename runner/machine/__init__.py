"""The machine: cores and threads, imports, how memory is kept, and how much is left."""
