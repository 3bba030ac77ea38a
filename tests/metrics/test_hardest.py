"""The rows with the largest loss, beside a plain sort."""

from __future__ import annotations

import json

import pytest
import torch

from runner.batch import Prediction, TaskSpec
from runner.metrics.hardest import HardestRows
from tests.conftest import TINY


def test_they_are_those_of_a_plain_sort_whatever_the_batches():
    generator = torch.Generator().manual_seed(0)
    logits_NT = torch.randn(50, 2, generator=generator)
    labels_NT = (torch.rand(50, 2, generator=generator) < 0.5).float()
    weights_N = (torch.arange(50) % 7 != 3).float()
    losses = {"click": torch.rand(50, generator=generator), "buy": torch.rand(50)}
    losses["buy"][11] = torch.nan
    order = torch.randperm(50, generator=generator)
    hardest = HardestRows(5)
    for part in order.split(8):
        prediction = Prediction(logits_NT[part], labels_NT[part], weights_N[part], part[:, None])
        hardest.add(part, prediction, {name: loss[part] for name, loss in losses.items()})
    rows = hardest.rows([TaskSpec("click"), TaskSpec("buy", "regression")])
    total_N = losses["click"] + losses["buy"]
    usable = [n for n in range(50) if weights_N[n] > 0 and n != 11]
    best = sorted(usable, key=lambda n: -float(total_N[n]))
    assert [row["row"] for row in rows] == [11, *best[:4]]  # what is no number comes first
    first = rows[1]
    assert first["loss"] == float(total_N[best[0]])
    assert first["labels"] == {n: float(y) for n, y in zip(("click", "buy"), labels_NT[best[0]])}
    assert first["predicted"]["click"] == float(logits_NT[best[0], 0].sigmoid())
    assert first["predicted"]["buy"] == float(logits_NT[best[0], 1])
    assert HardestRows(5).rows([]) == []


@pytest.mark.slow
def test_a_run_lists_them_in_its_report_and_an_evaluation_finds_the_same(runner, tmp_path):
    run, again = tmp_path / "run", tmp_path / "again"
    runner.run(*TINY, "metrics.hardest_rows=3", "report=true", f"hydra.run.dir={run}").check()
    listed = json.loads((run / "hardest.json").read_text())
    assert listed.keys() == {"validation", "test"}
    found = listed["test"]["rows"]
    assert len(found) == 3 and found[0]["loss"] >= found[2]["loss"] > 0
    assert "Rows with the largest loss" in (run / "report.html").read_text()
    words = (f"run={run}", "metrics.hardest_rows=3", f"hydra.run.dir={again}")
    runner.run("loop=eval", "loop.split=[validation,test]", *words).check()
    assert json.loads((again / "hardest.json").read_text()) == listed
