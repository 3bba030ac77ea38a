"""A run directory that somebody else sent reads no password, and writes nowhere else."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import yaml

from runner.rundir import saved_config
from runner.rundir.run_files import read_meta
from runner.rundir.seal import is_sealed, make_seal
from runner.rundir.secrets import mask_secrets
from tests.fake_job import FakeResult

SECRET = "hunter2-of-the-bank"
REFERENCE = "${oc.env:BANK_PASSWORD}"
URL = f"https://elsewhere.example/{REFERENCE}/rows.csv"


@pytest.fixture
def begun(command, monkeypatch):
    """A command line, and beside it the run of one's own that it has begun."""
    monkeypatch.setenv("BANK_PASSWORD", SECRET)
    command.jobs.do = lambda job: FakeResult("interrupted", signal=signal.SIGINT)
    assert command("hydra.run.dir=run", f"name={REFERENCE}")[0] == 130
    command.jobs.do = lambda job: FakeResult()
    return command


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """The machine of somebody else, who has another key."""
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "other_cache"))


def plant(**groups: dict[str, object]) -> None:
    """Change settings of the run as its sender can, records and all."""
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    for group, settings in groups.items():
        config[group] |= settings
    text = yaml.safe_dump(config)
    Path("run/config.yaml").write_text(text)
    meta = read_meta(Path("run"))
    forged = {**saved_config.config_record(text, config, "train"), "config_seal": "ab" * 32}
    Path("run/meta.json").write_text(json.dumps({**meta, **forged}))


def test_ones_own_run_reads_the_environment_as_before(begun):
    assert begun("resume", "run")[0] == 0
    assert begun.jobs.last.config["name"] == SECRET
    assert REFERENCE in Path("run/config.yaml").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["resume", "run"],
        ["loop=eval", "run=run"],
        ["loop=debug", "run=run"],
        ["refit", "run"],
        ["reproduce", "run"],
        ["schedule", "run"],
        ["predict", "run", "rows.csv", "--out", "out"],
        ["importance", "run"],
    ],
)
def test_a_variable_that_a_sent_run_reads_has_to_be_allowed(begun, elsewhere, words):
    message = begun.refused(*words)
    assert (
        "name: reads the variable BANK_PASSWORD, which is not done for a run directory" in message
    )
    assert SECRET not in message


def test_what_only_a_training_would_send_has_not_to_be_allowed_for_a_prediction(begun, elsewhere):
    settings = {"project": "p", "entity": None, "mode": "offline", "tags": [], "artifact": None}
    target = "runner.reporting.trackers.wandb.WandB"
    plant(tracker={"wandb": {"_target_": target, "notes": REFERENCE, **settings}})
    assert "tracker.wandb.notes: reads the variable" in begun.refused("resume", "run", "name=mine")
    shown = begun.refused("predict", "run", "rows.csv", "--out", "out", "name=mine")
    assert "reads the variable" not in shown
    assert "checkpoints" in shown  # which this run has not


@pytest.mark.parametrize(
    "more", [["--allow", "BANK_PASSWORD"], ["name=mine"], [f"name=mine_{REFERENCE}"]]
)
def test_what_the_command_line_names_is_read_and_is_ones_own_from_then_on(begun, elsewhere, more):
    assert begun("resume", "run", *more)[0] == 0
    assert begun("resume", "run", "trainer.log_every=3")[0] == 0


def test_a_path_of_this_machine_is_sent_nowhere(begun):
    plant(dataset={"path": f"/data/{REFERENCE}/rows.csv"})
    message = begun.refused("resume", "run", "name=mine")
    assert "reads the variable" not in message  # but this dataset has no path


@pytest.mark.parametrize(
    "settings",
    [
        {"path": URL},
        {"path": [URL]},
        {"schema": {"path": URL}},
        {"path": "https://x/${${dataset.a}.env:BANK_PASSWORD}", "a": "oc"},
        {"path": "https://x/${dataset.a}", "a": {"b": REFERENCE}},
        {"path": "https://x/${oc.env:${name}}"},
    ],
)
def test_a_url_that_reads_a_variable_is_refused_however_it_is_written(begun, settings):
    Path("run/config.yaml").write_text(
        Path("run/config.yaml").read_text().replace(f"name: {REFERENCE}", "name: BANK_PASSWORD")
    )
    plant(dataset=settings)
    message = begun.refused("loop=eval", "run=run")
    assert "reads the variable BANK_PASSWORD" in message
    assert SECRET not in message


def test_the_token_of_a_server_is_such_a_variable(begun):
    plant(dataset={"token_env": "BANK_PASSWORD"})
    message = begun.refused("loop=eval", "run=run", "name=mine")
    assert "dataset.token_env: reads the variable BANK_PASSWORD" in message


def test_a_file_that_a_client_sends_has_to_be_named(begun):
    plant(dataset={"client": {"sasl.oauthbearer.assertion.file": "/home/me/.ssh/id"}})
    assert "sends a file, which is not done for" in begun.refused("resume", "run", "name=x")


@pytest.mark.parametrize(
    ("settings", "key", "place"),
    [
        (
            {"checkpoint": {"mirror": "s3://theirs/runs/x"}},
            "checkpoint.mirror",
            "s3://theirs/runs/x",
        ),
        ({"delivery": {"every": 5, "to": "/home/me/site"}}, "delivery.to", "/home/me/site"),
    ],
)
def test_a_place_outside_a_sent_run_has_to_be_named(begun, settings, key, place):
    plant(**settings)
    message = begun.refused("resume", "run", "name=mine")
    assert f"{key}={place}: is a place outside the run, which is not taken" in message
    without = message.rpartition("or ")[2].strip().split()
    assert begun("resume", "run", "name=mine", *without)[0] == 0


def test_a_seal_is_of_one_text_one_key_and_a_private_file(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path))
    seal = make_seal("text")
    assert make_seal("text") == seal
    assert is_sealed("text", seal)
    assert not is_sealed("text ", seal)
    assert not is_sealed("text", None)
    [key] = tmp_path.iterdir()
    key.chmod(0o640)  # somebody else may have read it
    assert not is_sealed("text", seal)
    assert make_seal("text") is None
    monkeypatch.setenv("RUNNER_CACHE", "/proc/nowhere")
    assert make_seal("text") is None


def test_a_resume_that_is_refused_leaves_a_run_ones_own(begun):
    Path("run/result.json").unlink()
    begun.refused("resume", "run", "dataset.zipf=1.5")
    assert begun("resume", "run")[0] == 0
    assert mask_secrets(SECRET) == REFERENCE
