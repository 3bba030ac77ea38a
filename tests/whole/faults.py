"""Hostile directories: edited run directories, and names of all code where parts belong.

`python -m tests.whole.faults` runs all, `... edits` some, `--short` a tier of each. It prints a
table; the exit code is 0 if every case passed.
"""

from __future__ import annotations

import sys

from tests.fault_table import count_faults
from tests.whole.fault_callables import callables
from tests.whole.fault_edits import edits

FAULTS = {f.__name__: f for f in (edits, callables)}

if __name__ == "__main__":
    sys.exit(count_faults(FAULTS, __doc__))
