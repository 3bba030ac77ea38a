"""A run's output for a person who watches it. Imports no torch, and rich only on a terminal."""

from runner.reporting.console.view import View as View
