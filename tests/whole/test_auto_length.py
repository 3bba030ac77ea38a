"""`auto` is the number that is proposed for the train rows, and the run is that of the number."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from runner.config.compose import ComposedConfig, compose_job
from runner.config.proposed_length import propose_length, propose_warmup, table_overrides
from runner.config.targets import allowed_packages
from runner.errors import ConfigError
from runner.launch import resolve_automatic, run_spec
from tests.conftest import TINY, Zygote

AUTO = ("trainer.batch_size=auto", "trainer.max_epochs=auto", "scheduler.warmup=auto")
# 3,000 rows are 47 updates of 64 rows an epoch, of which 20 epochs make 940
SAME = ("trainer.batch_size=64", "trainer.max_epochs=20", "scheduler.warmup=47")
EPOCHS = tuple(word for word in TINY if "max_steps" not in word and "batch_size" not in word)
SHORT = ("trainer.batch_size=auto", "trainer.max_steps=30", "scheduler.warmup=auto")


def resolved(*words: str) -> ComposedConfig:
    return resolve_automatic(compose_job([*EPOCHS, *words]), allowed_packages([]))


@pytest.mark.parametrize("steps", [1, 30, 940, 10**6])
def test_the_warm_up_is_a_tenth_of_the_run_an_epoch_or_2000_updates(steps):
    assert propose_warmup(steps, 10**9) == min(steps // 10, 2000)
    assert propose_warmup(steps, 2) == min(steps // 10, 2)


@pytest.mark.parametrize("rows", [1, 400, 3000, 4000, 100_000])
def test_a_small_table_is_learnt_for_as_many_updates_as_one_of_4000_rows(rows):
    words = dict(word.split("=") for word in table_overrides(rows))
    per_epoch = math.ceil(rows / propose_length(rows).batch_size)
    assert int(words["trainer.max_epochs"]) * per_epoch >= 60 * 60
    between = int(words.get("trainer.eval_every", per_epoch))  # two evaluations
    patience = int(words["trainer.early_stop.patience"]) * between
    assert between <= max(20, per_epoch) and patience >= 3 * 60


def test_a_large_table_has_the_length_of_auto():
    assert table_overrides(100_001) == [*AUTO, "trainer.early_stop.patience=3"]
    assert table_overrides(20_000_000) == [*AUTO]


def test_a_run_with_auto_has_the_signature_and_the_settings_of_the_numbers(cache):
    ours, theirs = resolved(*AUTO), resolved(*SAME)
    assert ours.saved_config == theirs.saved_config == ours.config
    assert run_spec(ours).signature == run_spec(theirs).signature
    (note,) = ours.notes
    assert note == f"auto, for 3,000 train rows: {', '.join(SAME)}"
    assert not theirs.notes


@pytest.mark.parametrize(("ranks", "accumulate", "rows"), [(2, 1, 32), (2, 4, 8), (1, 100, 1)])
def test_the_proposed_rows_are_those_of_an_update_over_ranks_and_micro_batches(
    ranks, accumulate, rows, cache
):
    words = (f"trainer.num_processes={ranks}", f"trainer.accumulate={accumulate}")
    assert resolved(*AUTO, *words).config["trainer"]["batch_size"] == rows


def test_each_of_the_keys_may_be_auto_beside_numbers(cache):
    config = resolved("trainer.batch_size=300", "trainer.max_epochs=2", "scheduler.warmup=auto")
    assert config.config["scheduler"]["warmup"] == 2  # a tenth of 2 x 10 updates
    config = resolved("trainer.max_epochs=auto").config["trainer"]
    assert (config["batch_size"], config["max_epochs"]) == (4096, propose_length(3000).max_epochs)


def test_data_that_do_not_tell_their_rows_are_refused_by_name(monkeypatch):
    composed = compose_job(["trainer.batch_size=auto"])
    composed.config["dataset"] = {"_target_": "mydata.clicks.Clicks"}
    monkeypatch.setattr("runner.launch.checks.check_parts", lambda *given, **more: None)
    with pytest.raises(ConfigError, match=r"trainer\.batch_size=auto: .*give a number"):
        resolve_automatic(composed, [])


def test_a_typing_error_is_told_with_the_word_that_is_taken(runner: Zygote):
    done = runner.run("trainer.max_epochs=Auto").check(2)
    assert "trainer.max_epochs=Auto: expected whole number or null or auto" in done.text


@pytest.mark.long
def test_two_ranks_train_with_the_same_numbers_and_the_same_directory_goes_on(
    runner: Zygote, tmp_path: Path
):
    words = (*EPOCHS, *SHORT, f"hydra.run.dir={tmp_path}")
    done = runner.run(*words, "trainer.num_processes=2").check()
    assert "auto, for 3,000 train rows: trainer.batch_size=32, scheduler.warmup=3" in done.text
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert (config["trainer"]["batch_size"], config["scheduler"]["warmup"]) == (32, 3)
    assert json.loads((tmp_path / "result.json").read_text())["examples"] == 30 * 64
    alone = runner.run(*words)  # 64 rows on one rank are the same update
    assert (alone.code, "is done already" in alone.text) == (0, True)
    runner.run("resume", str(tmp_path), "trainer.max_steps=40").check()
    assert json.loads((tmp_path / "result.json").read_text())["examples"] == 40 * 64


@pytest.mark.slow
def test_jobs_of_a_sweep_are_known_by_their_numbers(runner: Zygote, tmp_path: Path):
    words = ("-m", *EPOCHS, "trainer.max_steps=3", "seed=0,1", f"hydra.sweep.dir={tmp_path}")
    runner.run(*words, "trainer.batch_size=auto").check()
    again = runner.run(*words, "trainer.batch_size=64", "--dry-run").check()
    assert "2 jobs: 2 done" in again.text


@pytest.mark.slow
def test_ranks_of_torchrun_get_the_numbers_of_rank_0(cache: Path, tmp_path: Path):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    run = tmp_path / "run"
    words = ("-m", "runner", *EPOCHS, *SHORT, f"hydra.run.dir={run}")
    done = subprocess.run(
        (*torchrun, *words), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "result.json").read_text())["examples"] == 30 * 64
