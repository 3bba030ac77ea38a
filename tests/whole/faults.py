"""Faults of runs: directories edited, hostile, moved; clocks that jump; disk and memory that end.

`python -m tests.whole.faults` runs all, `... edits` some, `--short` a tier of each. It prints a
table; the exit code is 0 if every case passed.
"""

from __future__ import annotations

import sys

from tests.data.faults import own_cache
from tests.fault_table import count_faults
from tests.whole.fault_callables import callables
from tests.whole.fault_edits import edits
from tests.whole.fault_moves import clock_jumps, moved_directories
from tests.whole.fault_resources import full_disk_of_a_run, out_of_memory, two_in_one_folder

FAULTS = {
    f.__name__: f
    for f in (
        edits, callables, clock_jumps, moved_directories,
        full_disk_of_a_run, out_of_memory, two_in_one_folder,
    )
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(count_faults(FAULTS, __doc__, around=own_cache))
