"""Makes and measures an index of the items of an artifact."""
