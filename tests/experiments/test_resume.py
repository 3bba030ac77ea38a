"""Every experiment with its own step, killed and resumed, equals one that was never killed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from runner.rundir.checkpoint import open_checkpoint, tensor_shapes
from tests.conftest import Zygote
from tests.tiers import fast
from tests.whole.compare_runs import differences, newest_checkpoint

SYNTHETIC = (
    "dataset=synthetic",
    "dataset.max_cardinality=60",
    "dataset.rows={train: 1500, validation: 200, test: 200}",
)
TINY = (
    "trainer.num_threads=1",
    "trainer.batch_size=32",
    "trainer.max_steps=24",
    "trainer.log_every=7",
    "trainer.eval_every=11",
    "checkpoint.save_every=5",
)
OWN = {  # settings, and a tensor that only this experiment has
    "adversarial": (
        (*SYNTHETIC, "model.net.user=C9", "model.net.item=C12", "task.generator_dim=4"),
        "dense_optimizer/task.generator.item.weight/exp_avg",
    ),
    "bandit": (
        (*SYNTHETIC, "model.net.fields=[C9,C12]", "model.net.hidden=[8]"),
        "dense/task.environment.account",
    ),
    "multi_task": (
        (*SYNTHETIC, "model.net.user=[C1,C2]", "model.net.tower=[8,4]"),
        "dense_optimizer/user.2.weight/exp_avg",
    ),
    "meta_learning": (
        ("dataset.support=4", "dataset.query=6", "trainer.batch_size=8"),
        "tables/item/exp_avg",
    ),
}


@pytest.fixture(scope="module")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GroupLens' three files, made up: 60 users with 6 to 20 ratings of 30 items."""
    folder, dice = tmp_path_factory.mktemp("ml"), random.Random(0)
    users = [f"{u}::{'FM'[u % 2]}::{(1, 18, 25)[u % 3]}::{u % 5}::1234" for u in range(1, 61)]
    movies = [f"{i}::Film ({1980 + i % 9})::Drama|Action" for i in range(1, 31)]
    ratings = [
        f"{u}::{i}::{dice.choice((1, 2, 4, 5))}::0"
        for u in range(1, 61)
        for i in dice.sample(range(1, 31), dice.randint(6, 20))
    ]
    for name, lines in (("users", users), ("movies", movies), ("ratings", ratings)):
        (folder / f"{name}.dat").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def train(runner: Zygote, ratings: Path):
    def run(name: str, folder: Path, *more: str, kill: str = ""):
        own = OWN[name][0]
        if name == "meta_learning":
            own = (*own, f"dataset.path={ratings}")
        return runner.run(
            "--allow",
            "tests",
            f"experiments={name}",
            "tracker=tensorboard",
            "tracker.tensorboard._target_=tests.experiments.mortal.Mortal",
            *TINY,
            *own,
            *more,
            f"hydra.run.dir={folder}",
            cwd=folder.parent,  # the code beside the YAML is found from anywhere
            env={"DIES_AT": kill},
        )

    return run


@pytest.mark.long
@pytest.mark.parametrize("name", fast("multi_task", of=OWN))
@pytest.mark.parity("C1", "C8")
def test_killed_and_resumed_equals_never_killed(train, tmp_path, name):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(name, whole).check()
    assert OWN[name][1] in tensor_shapes(open_checkpoint(newest_checkpoint(whole)))
    for kill in ("14", "21"):
        train(name, killed, kill=kill).check(-9)
    assert "resuming from step" in train(name, killed).check().text
    assert differences(killed, whole) == []
