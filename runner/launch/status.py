"""What a person reads on the terminal before a job has a view of its own."""

from __future__ import annotations

import sys

from runner.rundir.masked_streams import replace_controls


def print_status(text: str) -> None:
    """Print a line on stderr."""
    print(replace_controls(text), file=sys.stderr, flush=True)
