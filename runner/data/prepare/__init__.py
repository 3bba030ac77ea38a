"""From a source to prepared files: recipes, fingerprints and writers."""
