"""What a person sees of a run. Imports no torch, and rich only on a terminal."""

from runner.reporting.console.view import View as View
