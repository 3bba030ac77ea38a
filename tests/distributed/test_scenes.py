"""Collectives, gradients, updates and tables on two ranks are compared with one process."""

from __future__ import annotations

import pytest

SCENES = (
    "collectives",
    "order",
    "gradients",
    "updates",
    "closures",
    "exchanges",
    "norms",
    "drops",
    "pipelines",
    "pipeline_errors",
)


@pytest.mark.long
@pytest.mark.parity("T3", "E1")
def test_two_ranks_equal_one_process(runner):
    runner.run("tests.distributed.scenes", *SCENES, entry="tests.zygote:run_module").check()


@pytest.mark.long
def test_tables_start_and_step_alike_under_every_plan(runner):
    runner.run("tests.distributed.scenes", "tables", entry="tests.zygote:run_module").check()
