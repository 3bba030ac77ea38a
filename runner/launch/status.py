"""Messages on the terminal before a job has its own view."""

from __future__ import annotations

import sys

from runner.rundir.masked_streams import replace_controls


def print_status(text: str) -> None:
    """Print a line on stderr."""
    print(replace_controls(text), file=sys.stderr, flush=True)
