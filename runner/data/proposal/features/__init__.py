"""Proposes features that predict the label better on held-out rows."""
