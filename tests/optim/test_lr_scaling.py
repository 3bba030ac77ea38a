"""Scaling of rates by the batches of an update: its rules, its number, the signature, the log."""

from __future__ import annotations

from copy import deepcopy

import pytest

from runner.config.signature import compute_signature
from runner.optim.lr_scaling import describe_lr_scaling, lr_scale_factor, resolve_lr_batches
from tests.conftest import TINY
from tests.whole.compare_runs import read_rows

BATCH = ("trainer.batch_size=16", "trainer.accumulate=4", "trainer.max_steps=3")


@pytest.mark.parametrize(("rule", "scale"), [("constant", 1), ("sqrt", 3), ("linear", 9)])
@pytest.mark.parity("L4")
def test_a_rule_scales_by_the_number_of_batches(rule, scale):
    assert lr_scale_factor(rule, 9) == pytest.approx(scale)


def config(rule: str = "linear", batches: int | None = None, ranks: int = 2, accumulate: int = 3):
    return {
        "trainer": {
            "batch_size": 12 // ranks // accumulate,
            "accumulate": accumulate,
            "num_processes": ranks,
            "lr_scaling": {"rule": rule, "batches": batches},
        }
    }


def resolved(**more) -> dict:
    ours = config(**more)
    record = deepcopy(ours)
    resolve_lr_batches(ours, record, {})
    assert ours == record
    return ours


def test_the_number_is_ranks_times_micro_batches_and_a_run_that_has_one_keeps_it():
    assert resolved()["trainer"]["lr_scaling"]["batches"] == 6
    assert resolved(ranks=1, batches=6)["trainer"]["lr_scaling"]["batches"] == 6
    assert resolved(rule="constant")["trainer"]["lr_scaling"]["batches"] is None


def test_the_number_is_signed_where_it_determines_the_rates():
    def signed(**more):
        return compute_signature(resolved(**more), "data")

    same_rows = {"ranks": 1, "accumulate": 6}
    assert signed(rule="constant") == signed(rule="constant", **same_rows)
    assert signed() == signed(**same_rows), "six batches an update, whoever computes them"
    assert signed() != signed(rule="sqrt") != signed(rule="constant")
    assert signed() != signed(ranks=1, accumulate=3), "three batches an update"


def test_the_note_lists_every_rate_before_and_after():
    note = describe_lr_scaling("linear", 4, {"dense": 0.004, "sparse": 0.08})
    assert note == (
        "full learning rates x 4 (linear, 4 batches an update): "
        "dense 0.001 -> 0.004, sparse 0.02 -> 0.08"
    )
    assert describe_lr_scaling("constant", None, {"dense": 0.004}) == ""


@pytest.mark.slow
def test_a_run_logs_the_scaled_rates_and_keeps_them_on_resume(runner, tmp_path):
    run = tmp_path / "run"
    more = ("optimizer=sgd", "optimizer.dense.lr=0.01", "optimizer.sparse.lr=0.1")
    words = (*TINY, *BATCH, *more, "trainer.log_every=1", "trainer.lr_scaling.rule=sqrt")
    done = runner.run(*words, f"hydra.run.dir={run}").check()
    assert "full learning rates x 2 (sqrt, 4 batches an update): dense 0.01 -> 0.02" in done.text
    assert rates(run) == [(0.02, 0.2)] * 3
    other = ("trainer.max_steps=4", "trainer.accumulate=2", "trainer.batch_size=32")
    runner.run("resume", str(run), *other).check()
    assert rates(run) == [(0.02, 0.2)] * 4


def rates(run) -> list[tuple[float, float]]:
    return [(r["lr/dense"], r["lr/sparse"]) for r in read_rows(run, "train")]
