"""Canaries: whatever a run's parts say, and however it ends, no secret leaves the process.

One secret has a name that says so, the other was read by the configuration. Both are looked for in
every file, in the names of files, and in what was printed.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from runner.config.compose import compose_job
from runner.remote import _print_outcome, read_answer, train_on_cluster, write_run_dir
from runner.rundir.masked_streams import mask_standard_streams
from tests.conftest import TINY, Finished, Zygote
from tests.data.streaming.files import SCHEMA, arrive, rows

pytestmark = pytest.mark.long
SECRET, READ = 'sk "canary"/5b1f0e', "canary-of-the-configuration"
ENV = {"MY_API_TOKEN": SECRET, "PLACE": READ, "WANDB_ERROR_REPORTING": "false"}
LEAKING = (
    *("--allow", "tests", "task._target_=tests.whole.leaking.LeakingTask"),
    "model.net._target_=tests.whole.leaking.LeakingModel",
)
SETTINGS = (*LEAKING, *TINY, "trainer.max_steps=6", "trainer.log_every=1")
DATASET = "dataset._target_=tests.whole.leaking.leaking"
CALLBACK = (
    "+callbacks.leak={_target_: tests.whole.leaking.LeakingCallback, note: 'by ${oc.env:PLACE}'}"
)
TRACEBACK = "trainer.traceback=true"
TUNE_SIZE = ("loop=tune_batch_size", "loop.start=16", "loop.updates=3", "loop.max_batch_size=32")
TUNE_LR = ("loop=tune_lr", "loop.updates=5")
TWO = ("trainer.num_processes=2", "trainer.rank_timeout_s=30")
OFFLINE = ("tracker=both", "tracker.wandb.mode=offline")


def forms() -> Iterator[bytes]:
    for secret in (SECRET, READ):
        yield from (secret.encode(), json.dumps(secret)[1:-1].encode(), quote(secret).encode())
    encoded = base64.b64encode(f"user:{SECRET}".encode())
    yield encoded[8:-4]  # where no neighbour has a part in a character
    yield b"canary"


def assert_hidden(folder: Path, shown: str) -> int:
    """Return how many places name the secret instead of telling it."""
    found, masked = [], shown.count("${oc.env:MY_API_TOKEN}")
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        content += path.name.encode()
        found += [f"{path}: {form!r}" for form in forms() if form in content]
        masked += content.count(b"${oc.env:MY_API_TOKEN}")
    found += [f"printed: {form!r}" for form in forms() if form in shown.encode()]
    assert not found, f"{found}\n{shown}"
    return masked


def run(runner: Zygote, folder: Path, *words: str, leak: str = "", at: int = 0) -> Finished:
    env = {**ENV, "LEAK": leak, "AT": str(at)}
    return runner.run(*words, f"hydra.run.dir={folder / 'run'}", env=env)


@pytest.mark.parametrize(
    ("leak", "words", "code"),
    [
        ("", (CALLBACK, "report=true", *OFFLINE), 0),
        ("stop", (CALLBACK,), 0),
        ("pause", (CALLBACK,), 143),
        ("SIGINT", (CALLBACK,), 130),
        ("callback", (CALLBACK, *OFFLINE, "report=true"), 1),
        ("task", (TRACEBACK,), 1),
        ("model", (), 1),
        ("evaluation", (CALLBACK, TRACEBACK), 1),
        ("dataset", (DATASET, TRACEBACK), 1),
        ("task", (*TUNE_SIZE, TRACEBACK), 1),
        ("", (*TUNE_SIZE, "loop.then=train", CALLBACK), 0),
        ("task", (*TUNE_LR, TRACEBACK), 1),
        ("", (*TUNE_LR, "loop.then=train", CALLBACK), 0),
        ("task", ("loop=debug", TRACEBACK), 1),
        ("model", ("loop=debug", "loop.statistics=true"), 1),
        ("", ("loop=debug", CALLBACK), 0),
    ],
)
def test_no_exit_of_a_loop_tells_a_secret(runner, tmp_path, leak, words, code):
    done = run(runner, tmp_path, *SETTINGS, *words, leak=leak).check(code)
    assert assert_hidden(tmp_path, done.text) > 0, done.text
    if leak in ("stop", "callback") and "loop=debug" not in words:
        result = json.loads((tmp_path / "run" / "result.json").read_text())
        told = result["stopped"] if leak == "stop" else result["error"]
        assert "no access with ${oc.env:MY_API_TOKEN}" in told
        assert "by ${oc.env:PLACE}" in told


@pytest.mark.parametrize("leak", ["", "stop", "callback", "task", "SIGINT"])
def test_no_exit_of_loop_online_tells_a_secret(runner, tmp_path, leak):
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(SCHEMA))
    (tmp_path / "files").mkdir()
    arrive(tmp_path / "files", "0.parquet", rows(300))
    words = [w for w in SETTINGS if not w.startswith("dataset.")]
    words = [w for w in words if "max_steps" not in w and "eval_every" not in w]
    words += ["loop=online", "dataset=folder", "dataset.poll_s=0.05", "dataset.idle_timeout_s=0.2"]
    words += [f"dataset.path={tmp_path / 'files'}", f"dataset.schema={tmp_path / 'schema.yaml'}"]
    done = run(runner, tmp_path, *words, CALLBACK, TRACEBACK, leak=leak)
    expected = {"task": 1, "callback": 1, "SIGINT": 130}.get(leak, 0)
    assert done.code == expected, done.text
    assert assert_hidden(tmp_path, done.text) > 0, done.text


@pytest.mark.parametrize("leak", ["", "evaluation", "dataset"])
def test_no_exit_of_an_evaluation_tells_a_secret(runner, tmp_path, leak):
    run(runner, tmp_path, *SETTINGS, DATASET).check()
    place = f"hydra.run.dir={tmp_path / 'eval'}"
    words = ("loop=eval", f"run={tmp_path / 'run'}", *LEAKING[:2], TRACEBACK, place)
    done = runner.run(*words, env={**ENV, "LEAK": leak})
    assert done.code == (1 if leak else 0), done.text
    masked = assert_hidden(tmp_path, done.text)
    assert masked > 0 or not leak


@pytest.mark.parametrize(
    "words",
    [
        ("trainer.max_steps=${oc.env:MY_API_TOKEN}",),
        ("model=${oc.env:PLACE}",),
        (f"+tracker.x={{key: '{SECRET}'}}",),
        ("dataset=parquet", "dataset.path=${oc.env:MY_API_TOKEN}/x", "dataset.schema=none.yaml"),
        (f"trainer.max_stps={READ}", "tracker.y=${oc.env:PLACE}"),
    ],
)
def test_a_refused_configuration_does_not_quote_a_secret(runner, tmp_path, words):
    assert_hidden(tmp_path, run(runner, tmp_path, *words).check(2).text)


def test_a_secret_on_the_command_line_is_kept_as_a_reference_and_the_run_resumes(runner, tmp_path):
    """As after `key=$MY_API_TOKEN`, which the shell has replaced by the value."""
    given = CALLBACK.replace("'by ${oc.env:PLACE}'", repr(SECRET))
    first = run(runner, tmp_path, *SETTINGS, given, leak="pause").check(143)
    assert "note: ${oc.env:MY_API_TOKEN}" in (tmp_path / "run" / "config.yaml").read_text()
    words = ("resume", str(tmp_path / "run"), "--allow", "tests")
    again = runner.run(*words, env=ENV).check()
    shown = runner.run(
        "report", str(tmp_path / "run"), "--html", f"{tmp_path}/x.html", env=ENV
    ).check()
    assert_hidden(tmp_path, first.text + again.text + shown.text)


@pytest.mark.parametrize(("leak", "at"), [("task", 1), ("callback", 1), ("stop", 0), ("", 0)])
def test_two_ranks_tell_no_secret(runner, tmp_path, leak, at):
    done = run(runner, tmp_path, *SETTINGS, *TWO, CALLBACK, TRACEBACK, leak=leak, at=at)
    assert done.code == (1 if at else 0), done.text
    assert assert_hidden(tmp_path, done.text) > 0, done.text
    assert "no access with ${oc.env:MY_API_TOKEN}" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize(
    ("leak", "seeds"), [("task", "1"), pytest.param("stop", "1,2", marks=pytest.mark.slow)]
)
def test_a_sweep_and_its_jobs_tell_no_secret(runner, tmp_path, leak, seeds):
    given = CALLBACK.replace("'by ${oc.env:PLACE}'", repr(SECRET))
    words = ("-m", f"seed={seeds}", *SETTINGS, given, f"hydra.sweep.dir={tmp_path / 'sweep'}")
    done = runner.run(*words, env={**ENV, "LEAK": leak, "AT": "0"})
    assert done.code == (1 if leak == "task" else 0), done.text
    logs = [p.read_text() for p in (tmp_path / "sweep").rglob("job.log")]
    assert len(logs) == len(seeds.split(","))
    assert all("${oc.env:MY_API_TOKEN}" in log for log in logs)
    assert assert_hidden(tmp_path, done.text) > 0
    again = runner.run(
        "report", str(tmp_path / "sweep"), "--html", f"{tmp_path}/x.html", env=ENV
    ).check()
    assert_hidden(tmp_path, again.text)


@pytest.mark.parametrize("leak", ["task", pytest.param("", marks=pytest.mark.slow)])
def test_what_comes_back_from_a_cluster_tells_no_secret(tmp_path, monkeypatch, capfd, leak):
    """Without Ray: its function is called here, and its answer written as the driver does."""
    for name, value in {**ENV, "LEAK": leak}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    request = {"words": [*SETTINGS, CALLBACK, TRACEBACK], "dir": str(tmp_path / "far")}
    answer = train_on_cluster(request)
    assert answer["code"] == (1 if leak else 0)
    monkeypatch.chdir(tmp_path)
    composed = compose_job([*SETTINGS[2:], "hydra.run.dir=near"])
    restore = mask_standard_streams()
    try:
        # a cluster of another version may send what is not masked
        answer["files"]["log.txt"] += SECRET.encode()
        found = read_answer({**answer, "last": SECRET})
        _print_outcome(found, write_run_dir(composed, found.files))
    finally:
        restore()
    shown = capfd.readouterr()
    assert (tmp_path / "near" / "log.txt").read_text().endswith("${oc.env:MY_API_TOKEN}")
    assert_hidden(tmp_path, shown.out + shown.err)
