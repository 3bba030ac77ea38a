"""Serves an exported model over HTTP, by the Open Inference Protocol v2."""
