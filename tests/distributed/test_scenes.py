"""Collectives, gradients, updates and tables on two ranks are compared with one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCENES = (
    "collectives",
    "order",
    "gradients",
    "updates",
    "closures",
    "exchanges",
    "norms",
    "pipelines",
    "pipeline_errors",
)
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.long
@pytest.mark.parity("T3", "E1")
def test_two_ranks_equal_one_process():
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed.scenes", *SCENES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("scene", ["tables"])
def test_tables_start_and_step_alike_under_every_plan(scene):
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed.scenes", scene],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
