"""Multirun: every job its own process, known by its signature. Imports no torch."""

from runner.sweep.plan import Checked
from runner.sweep.run import sweep

__all__ = ["Checked", "sweep"]
