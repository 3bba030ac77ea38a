"""A run that was made before the modules moved goes on, and is known under its signature.

`old_run.zip` is its directory: DLRM on 3,000 generated rows, a callback with a state, and a rule
that has doubled the rows of an update, 24 updates. Another processor may round differently, so
numbers are compared within 1e-5; on the one that made it they were equal to the last bit.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import yaml

from runner.config.compose import compose
from runner.config.signature import compute_signature
from runner.data import fingerprint

OLD = Path(__file__).with_name("old_run.zip")
SIGNATURE = "e48a2bcb"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "old"
    with zipfile.ZipFile(OLD) as archive:
        archive.extractall(folder)
    return folder


def metrics_of(folder: Path) -> dict[str, float]:
    metrics = json.loads((folder / "result.json").read_text())["metrics"]
    return {name: float(value) for name, value in metrics.items()}


def test_its_parts_have_other_names_by_now(old):
    named = yaml.safe_load((old / "config.yaml").read_text())
    assert named["task"]["_target_"] == "runner.task.Supervised"
    composed = compose([], from_run=old).config
    assert composed["task"]["_target_"] == "runner.training.update.task.Supervised"


def test_it_signs_as_it_did(old):
    config = compose([], from_run=old).config
    assert compute_signature(config, fingerprint(config["dataset"])) == SIGNATURE


def test_its_evaluation_gives_the_numbers_of_its_training(runner, old, tmp_path):
    words = ("loop=eval", f"run={old}", "checkpoint.step=best")
    runner.run(*words, f"hydra.run.dir={tmp_path / 'evaluation'}").check()
    found, trained = metrics_of(tmp_path / "evaluation"), metrics_of(old)
    for name, value in found.items():
        assert value == pytest.approx(trained[name], rel=1e-5, nan_ok=True), name


@pytest.mark.long
def test_resumed_it_ends_as_a_run_that_was_never_interrupted(runner, old, tmp_path):
    longer = "trainer.max_steps=32"
    assert "resuming from step 24" in runner.run("resume", str(old), longer).check().text
    whole = tmp_path / "whole"
    words = [*yaml.safe_load((old / "meta.json").read_text())["overrides"], longer]
    words = [w for w in words if w != "trainer.max_steps=24"]
    runner.run(*words, f"hydra.run.dir={whole}").check()
    resumed, expected = metrics_of(old), metrics_of(whole)
    assert resumed.keys() == expected.keys()
    for name, value in resumed.items():
        assert value == pytest.approx(expected[name], rel=1e-5, nan_ok=True), name


def test_reproduced_it_has_its_signature_again(runner, old, tmp_path):
    again = tmp_path / "again"
    done = runner.run("reproduce", str(old), f"hydra.run.dir={again}")
    assert json.loads((again / "meta.json").read_text())["signature"] == SIGNATURE, done.text
