"""What a person reads on the terminal before a job has a view of its own."""

from __future__ import annotations

import sys


def print_status(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr, flush=True)
