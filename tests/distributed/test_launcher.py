"""Reports of ranks that are forked processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

REPORT = """
from runner.distributed.launcher import ProcessResult, run_on_ranks
text = {text!r}
result = run_on_ranks(2, lambda: ProcessResult(2, "refused", text * 30_000, "x" + text * 30_000))
assert result.message and set(result.message) == {{text}}, result.message[:9]
assert result.trace and set(result.trace) == {{text}}
print(result.code, len(result.message))
"""


@pytest.mark.parametrize(("text", "length"), [("a", 20_000), ("\n", 10_000), ("數", 2_500)])
def test_a_long_report_ends_its_rank_whatever_its_characters(text, length):
    done = subprocess.run(
        [sys.executable, "-c", REPORT.format(text=text)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    code, least = map(int, done.stdout.split())
    assert code == 2 and least >= length
