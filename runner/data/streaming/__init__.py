"""Datasets whose rows arrive over time, for loop=online."""
