"""Shared by all data modules: declared columns, block files, the cache, the interface."""
