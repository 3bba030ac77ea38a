"""Code of the experiments that need some, each beside its YAML."""
