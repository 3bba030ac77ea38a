"""Mistakes over all keys, made from the declarations: a sample here, 1,000 in the slow tier."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("count", "seed"), [(30, 3), pytest.param(1000, 0, marks=pytest.mark.slow)]
)
def test_every_mistake_is_refused_by_one_message_without_torch_or_a_directory(count, seed):
    command = [sys.executable, "-m", "tests.config.mistakes", "--json"]
    words = ["--count", str(count), "--seed", str(seed)]
    done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=590)
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert not told["failures"], told["failures"]
    assert told["count"] == count and sum(told["kinds"].values()) == count
    assert len(told["kinds"]) >= 10, told["kinds"]
