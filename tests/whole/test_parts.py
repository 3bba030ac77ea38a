"""Runs whose parameters have several optimizers: resumed bit for bit, and on other ranks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from runner.rundir.checkpoint import open_checkpoint, tensor_shapes
from tests.conftest import TINY, Zygote
from tests.distributed.test_runs import ONE, SETTINGS, TWO, assert_close
from tests.whole.compare_runs import differences, newest_checkpoint, read_rows

PARTS = (
    "optimizer.parts=["
    "{pattern: '^tables.C[12]$', frozen: true},"
    "{pattern: '^tables.C[34]$', name: some, sparse: {kind: adam, lr: 0.01},"
    " schedule: {kind: linear}},"
    "{pattern: '^bottom', frozen: true},"
    "{pattern: bias, name: biases, dense: {_target_: torch.optim.SGD, lr: 0.1, momentum: 0.9}}]"
)
OWN = "optimizer.schedules.dense={kind: cosine}"


def train(runner: Zygote, folder: Path, *more: str, kill: str = "") -> int:
    return runner.run(
        "--allow",
        "tests",
        "task._target_=tests.whole.traced.Traced",
        *TINY,
        PARTS,
        OWN,
        *more,
        f"hydra.run.dir={folder}",
        env={"TRACE_FILE": f"{folder}.trace", "TRACE_KILL": kill},
    ).code


@pytest.mark.long
@pytest.mark.parity("E3", "E4")
def test_killed_and_resumed_equals_never_killed_and_the_rates_are_the_formulas(runner, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train(runner, whole) == 0
    assert train(runner, killed, kill="step:23") == -9
    assert train(runner, killed, kill="step:9") == -9
    assert train(runner, killed) == 0
    assert differences(killed, whole) == []
    shapes = tensor_shapes(open_checkpoint(newest_checkpoint(whole)))
    assert "tables/C3/exp_avg" in shapes and "tables/C5/sum" in shapes
    assert "dense_optimizer/top.0.bias/momentum_buffer" in shapes
    assert "dense_optimizer/top.0.weight/exp_avg" in shapes
    assert not [n for n in shapes if n.startswith("dense_optimizer/bottom")]
    assert {n for n in shapes if n.startswith(("tables/C1/", "tables/C2/"))} == {
        "tables/C1/weight",
        "tables/C2/weight",
    }
    for row in read_rows(killed, "train"):
        k = row["step"] - 1
        cosine = (1 + math.cos(math.pi * k / 40)) / 2
        assert row["lr/dense"] == pytest.approx(0.001 * cosine)
        assert row["lr/biases"] == pytest.approx(0.1 * cosine)
        assert row["lr/some"] == pytest.approx(0.01 * (1 - k / 40))
        assert row["lr/sparse"] == 0.02


@pytest.mark.parametrize("plan", ["row_wise", pytest.param("auto", marks=pytest.mark.slow)])
def test_parts_on_two_ranks_killed_and_resumed_on_one_equal_one_process(runner, tmp_path, plan):
    one, two = tmp_path / "one", tmp_path / "two"
    allow, traced = ("--allow", "tests"), "task._target_=tests.distributed.traced.Traced"
    common = (*allow, traced, *SETTINGS, PARTS, OWN)
    env = {"TRACE_FILE": f"{tmp_path}/trace"}
    runner.run(*common, *ONE, f"hydra.run.dir={one}", env=env).check()
    half = (*TWO, f"sharding={plan}", f"hydra.run.dir={two}")
    runner.run(*common, *half, env={**env, "TRACE_KILL": "1:17"}).check(1)
    done = runner.run(*allow, "resume", str(two), "trainer.num_processes=1", env=env).check()
    assert "resuming from step" in done.text
    assert_close(two, one, atol=5e-6)
