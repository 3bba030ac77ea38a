"""What runs came to, for people: a table in the terminal, one HTML page. Imports no torch."""
