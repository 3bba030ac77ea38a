"""The folder of an exported model: its files, its graphs, its weights, and deltas to it."""
