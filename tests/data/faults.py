"""All faults of the data: files, values, columns, outputs, attacks and the order of rows.

It prints a table.

`python -m tests.data.faults` runs all, `... damaged_files bad_ids` some, `--short` a tier of each.
The exit code is 0 if every case passed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests.data.fault_attacks import attacks
from tests.data.fault_columns import other_columns, read_only
from tests.data.fault_files import damaged_cache, damaged_files, empty_files
from tests.data.fault_ids import bad_ids
from tests.data.fault_resume import every_position, every_resume, every_resume_of_ranks
from tests.data.fault_values import bad_values
from tests.fault_table import count_faults

FAULTS = {
    f.__name__: f
    for f in (
        damaged_files, empty_files, damaged_cache, bad_values, bad_ids, other_columns, read_only,
        attacks, every_position, every_resume, every_resume_of_ranks,
    )
}  # fmt: skip


@contextmanager
def own_cache() -> Iterator[None]:
    before = os.environ.get("RUNNER_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RUNNER_CACHE"] = folder
        yield
    if before is None:
        del os.environ["RUNNER_CACHE"]
    else:
        os.environ["RUNNER_CACHE"] = before


if __name__ == "__main__":
    sys.exit(count_faults(FAULTS, __doc__, around=own_cache))
