"""From sources to prepared files: recipes, fingerprints and writers."""
