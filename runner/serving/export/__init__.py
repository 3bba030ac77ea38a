"""Writes a trained model as an artifact, and compares it with the run's evaluation."""
