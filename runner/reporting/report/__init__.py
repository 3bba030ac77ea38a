"""Reports of runs: tables in the terminal, one HTML page. Imports no torch."""
