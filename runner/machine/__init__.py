"""The machine: cores and threads, imports, memory, and the folder of what is kept."""
