"""Multirun: every job its own process, known by its signature. Imports no torch."""

from runner.sweep.plan import Checked
from runner.sweep.run import Options, search, sweep

__all__ = ["Checked", "Options", "search", "sweep"]
