"""What a person sees of a run. Imports no torch, and rich only on a terminal."""

from runner.view.view import View as View
