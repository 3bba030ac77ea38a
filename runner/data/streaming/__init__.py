"""Datasets whose rows come as time goes on: for loop=online."""
