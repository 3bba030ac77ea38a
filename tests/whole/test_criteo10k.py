"""Every model of rows on 10,000 real rows of Criteo: it trains, evaluates, overfits a batch.

No claim of quality: 8,000 rows are too few. The first two are the short tier.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.conftest import shared_data
from tests.models.scene import MODELS

FIRST = ("dlrm", "mlp")
NAMES = [
    pytest.param(name, marks=() if name in FIRST else (pytest.mark.slow,))
    for name in sorted(MODELS, key=lambda name: (name not in FIRST, name))
]
COMMON = ("dataset=criteo", "trainer.num_threads=1", "report=false")


@pytest.mark.data
@pytest.mark.parametrize("name", NAMES)
def test_a_model_trains_on_real_rows_and_evaluates(runner, tmp_path, name):
    path = shared_data("criteo10k/train.txt")
    runner.run(
        *COMMON,
        f"model={name}",
        f"dataset.path={path}",
        "trainer.batch_size=256",
        "optimizer.dense.lr=0.003",
        f"hydra.run.dir={tmp_path / 'run'}",
    ).check()
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["status"] == "completed"
    assert found["metrics"]["test/auc"] > 0.6, "of a model that has learnt nothing it is 0.5"
    assert 0 < found["metrics"]["test/log_loss"] < 0.69, "of a coin it is 0.693"


@pytest.mark.data
@pytest.mark.parametrize("name", NAMES)
def test_a_model_learns_a_batch_of_real_rows_by_heart(runner, name):
    path = shared_data("criteo10k/train.txt")
    done = runner.run(
        *COMMON,
        f"model={name}",
        f"dataset.path={path}",
        "seed=1",  # with seed 0 units of MaskNet's blocks die at this rate
        "optimizer=adam",
        "optimizer.sparse.lr=0.01",
        "optimizer.dense.lr=0.005",
        "trainer.batch_size=128",
        "loop=debug",
        "loop.overfit_one_batch=true",
        "loop.max_steps=60",
    ).check()
    before, after = map(float, re.search(r"fell from (\S+) to (\S+) in 60", done.text).groups())
    assert after < 0.05 < 0.3 < before
