"""W&B against a local server that can refuse keys and stop answering, and offline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.errors import UserError
from runner.reporting.trackers import Histogram, wandb
from runner.reporting.trackers.wandb import TrackedExport, WandB, parent_artifact
from runner.rundir import find_checkpoint
from runner.rundir.checkpoint.manifest import Checkpoint, Manifest
from tests.reporting.trackers.wandb_server import FakeServer, sent_records

CANARY = "canary7canary7canary7canary7canary7canary7"


@pytest.fixture(autouse=True)
def isolated(monkeypatch, tmp_path_factory):
    """Hide the settings, keys and caches of this machine, and name a server that does not exist."""
    home = tmp_path_factory.mktemp("home")
    for name in [n for n in os.environ if n.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")


@pytest.fixture
def server(monkeypatch) -> Iterator[FakeServer]:
    server = FakeServer()
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    yield server
    server.close()


def started(folder: Path, state=None, config=None, **options) -> WandB:
    tracker = WandB(project="p", **options)
    run = {"name": "n", "dir": folder, "config": config or {"model": {"width": 8}}}
    tracker.start(run | {"group": "sweep", "job_type": "train"}, state)
    return tracker


def wait_for(condition, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def process_group(tracker: WandB) -> int:
    assert tracker._process is not None
    return tracker._process.pid


def recorded(folder: Path, text: str, kind: str = "") -> int:
    """Count a text in the logs that `wandb sync` sends."""
    logs = folder.glob(f"wandb/{kind}run-*/*.wandb")
    return sum(path.read_bytes().count(text.encode()) for path in logs)


@pytest.mark.long
@pytest.mark.parity("T13")
def test_rows_config_group_and_status_arrive(tmp_path, server):
    tracker = started(tmp_path)
    tracker.log("train", 3, {"loss": 0.5})
    tracker.log("train", 6, {"loss": 0.25})
    tracker.log("validation", 6, {"auc": 0.75})
    tracker.log("test", 3, {"auc": 0.7})  # with the weights of an earlier step
    tracker.finish("failed")
    rows = [(r["_step"], r.get("train/loss"), r.get("validation/auc")) for r in server.history]
    assert rows == [(3, 0.5, None), (6, 0.25, 0.75)]
    assert server.history[-1]["test/auc"] == 0.7
    first = server.runs[0]
    assert (first["project"], first["displayName"]) == ("p", "n")
    assert (first["groupName"], first["jobType"]) == ("sweep", "train")
    assert '"width":8' in first["config"]
    assert server.exit_codes == [1]
    assert tracker.messages() == []


@pytest.mark.long
def test_histograms_arrive_with_the_metrics_of_their_step(tmp_path, server):
    tracker = started(tmp_path)
    tracker.log("weights", 3, {"norm": 0.5})
    shown = Histogram((-1.0, 0.0, 0.5), (3, 4), 1.5, 6.25)
    tracker.log_histograms("weights", 3, {"dense/top": shown})
    tracker.finish("completed")
    [row] = server.history
    assert (row["_step"], row["weights/norm"]) == (3, 0.5)
    drawn = row["weights/dense/top"]
    assert (drawn["_type"], drawn["values"], drawn["bins"]) == ("histogram", [3, 4], [-1, 0, 0.5])


@pytest.mark.long
def test_a_resumed_run_keeps_its_identity(tmp_path, server):
    first = started(tmp_path)
    first.finish("interrupted")
    second = started(tmp_path, first.state())
    second.finish("completed")
    assert {run["name"] for run in server.runs} == {first.state()["id"]} == {second.state()["id"]}


@pytest.mark.long
def test_the_key_reaches_no_file(tmp_path, server):
    tracker = started(tmp_path)
    tracker.log("train", 1, {"loss": 0.5})
    tracker.finish("completed")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]


@pytest.mark.long
def test_without_a_key_it_is_offline_and_says_how_to_send_it(tmp_path):
    tracker = started(tmp_path)
    for step in range(1, 4):
        tracker.log("train", step, {"loss": 0.5})
    tracker.finish("completed")
    (message,) = tracker.messages()
    assert message.startswith("offline (No API key")
    assert f"wandb sync {tmp_path}/wandb/offline-run-*" in message
    assert recorded(tmp_path, "train/loss", "offline-") >= 3


@pytest.mark.long
@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_the_mode_of_the_environment_sends_nothing(tmp_path, server, monkeypatch, mode):
    monkeypatch.setenv("WANDB_MODE", mode)
    tracker = started(tmp_path)
    tracker.log("train", 1, {"loss": 0.5})
    tracker.finish("completed")
    assert (tracker.messages(), server.runs, server.history) == ([], [], [])
    assert (recorded(tmp_path, "train/loss", "offline-") >= 1) == (mode == "offline")


@pytest.mark.long
def test_with_a_refused_key_it_is_offline(tmp_path, server):
    server.refuse_key = True
    tracker = started(tmp_path)
    tracker.log("train", 1, {"loss": 0.5})
    tracker.finish("completed")
    assert "401" in tracker.messages()[0]
    assert recorded(tmp_path, "train/loss", "offline-") >= 1


@pytest.mark.slow
def test_with_a_key_and_no_server_training_does_not_wait(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    before = time.monotonic()
    tracker = started(tmp_path)
    tracker.log("train", 1, {"loss": 0.5})
    assert time.monotonic() - before < 1
    tracker.finish("completed")
    assert time.monotonic() - before < 30
    assert recorded(tmp_path, "train/loss", "offline-") >= 1


@pytest.mark.long
def test_a_network_lost_midway_delays_nothing_and_loses_nothing(tmp_path, server, monkeypatch):
    monkeypatch.setattr(wandb, "FINISH_LIMIT_S", 5)
    tracker = started(tmp_path)
    tracker.log("train", 1, {"loss": 0.5})
    wait_for(lambda: server.runs)
    server.silent.set()
    before = time.monotonic()
    for step in range(2, 20):
        tracker.log("train", step, {"loss": 0.5})
    assert time.monotonic() - before < 0.5
    tracker.finish("completed")
    assert time.monotonic() - before < 10
    assert "wandb sync" in tracker.messages()[0]
    assert not alive(process_group(tracker))
    # each row names it twice; the last one is held back for more of the same step
    wait_for(lambda: recorded(tmp_path, "train/loss") >= 2 * 18)


def test_a_kill_of_its_process_is_an_error_at_the_next_row(tmp_path):
    tracker = started(tmp_path, mode="offline")
    os.killpg(process_group(tracker), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="ended with code -9"):
        wait_for(lambda: tracker.log("train", 1, {}))


@pytest.mark.long
def test_a_killed_run_leaves_its_rows_and_no_process_and_goes_on_as_the_same_run(tmp_path):
    code = (
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        "from runner.reporting.trackers.wandb import WandB\n"
        "tracker = WandB(project='p', mode='offline', notes='wider?', tags=['wide'])\n"
        "run = {'name': 'n', 'dir': Path(sys.argv[1]), 'config': {'model': {'width': 8}}}\n"
        "tracker.start(run | {'group': 'sweep', 'job_type': 'train'}, None)\n"
        "tracker.log('train', 1, {'loss': 0.5})\n"
        "time.sleep(0.5)\n"
        "print(tracker._process.pid, tracker.state()['id'], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    group, id_ = done.stdout.split()
    wait_for(lambda: not alive(int(group)))
    resumed = started(tmp_path, {"id": id_}, mode="offline", notes="wider?", tags=["wide"])
    resumed.log("train", 2, {"loss": 0.25})
    resumed.finish("completed")
    logs = [sent_records(path) for path in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))]
    for log in logs:
        run = next(record.run for record in log if record.HasField("run"))
        assert (run.run_id, run.display_name, run.project) == (id_, "n", "p")
        assert (run.run_group, run.job_type) == ("sweep", "train")
        assert (run.notes, list(run.tags)) == ("wider?", ["wide"])
        config = {update.key: json.loads(update.value_json) for update in run.config.update}
        assert config["model"] == {"width": 8}
    rows = [{i.nested_key[0]: i.value_json for i in r.history.item} for log in logs for r in log]
    assert [row["train/loss"] for row in rows if row] == ["0.5", "0.25"]
    assert [r.exit.exit_code for log in logs for r in log if r.HasField("exit")] == [1, 0]


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="must be auto, online or offline"):
        WandB(project="p", mode="ofline")


def a_checkpoint(run: Path, step: int) -> Path:
    folder = run / "checkpoints" / f"step-{step}"
    folder.mkdir(parents=True)
    (folder / "weights.safetensors").write_bytes(b"\0" * 100)
    return folder


@pytest.mark.long
def test_slices_and_the_checkpoint_with_its_parent_are_in_the_files_that_are_sent(
    tmp_path, monkeypatch
):
    parent, run = tmp_path / "parent", tmp_path / "run"
    a_checkpoint(parent, 3)
    (parent / "trackers.json").write_text('{"wandb": {"id": "abcd1234"}}')
    assert parent_artifact(parent) == "checkpoint-abcd1234:best"
    assert parent_artifact(parent / "checkpoints" / "step-3") == "checkpoint-abcd1234:step-3"
    assert parent_artifact(run) is None
    found = Checkpoint(7, a_checkpoint(run, 7), {}, Manifest(7, {}))
    monkeypatch.setattr(find_checkpoint, "find_checkpoint", lambda *a, **k: found)
    config = {"checkpoint": {"init_from": str(parent)}}
    tracker = started(run, mode="offline", artifact="best", config=config)
    tracker.log("train", 7, {"loss": 0.5, "lr/dense": 0.001})
    tracker.log("test", 7, {"auc": 0.7, "auc/country=1": 0.75, "auc/country=2": 0.625})
    tracker.finish("completed")
    assert tracker.messages() == []
    [log] = run.glob("wandb/offline-run-*/*.wandb")
    logged = [r.request.log_artifact.artifact for r in sent_records(log) if r.HasField("request")]
    logged += [r.artifact for r in sent_records(log) if r.HasField("artifact")]
    [checkpoint] = [a for a in logged if a.name.startswith("checkpoint-")]
    assert checkpoint.type == "model" and set(checkpoint.aliases) == {"latest", "best", "step-7"}
    assert recorded(run, f"file://{found.path}/weights.safetensors", "offline-")
    assert json.loads(checkpoint.metadata)["made from"] == "checkpoint-abcd1234:best"
    assert not [r for r in sent_records(log) if r.HasField("use_artifact")]  # wandb refuses it
    [table] = run.glob("wandb/offline-run-*/files/media/table/test/slices*.json")
    assert json.loads(table.read_text()) == {
        "columns": ["slice", "auc"],
        "data": [["country=1", 0.75], ["country=2", 0.625]],
    }


@pytest.mark.slow
def test_an_export_is_an_artifact_of_the_run_that_trained_it(tmp_path):
    run, model = tmp_path / "run", tmp_path / "model"
    a_checkpoint(run, 7)
    model.mkdir()
    (model / "weights.safetensors").write_bytes(b"\0" * 10)
    (run / "meta.json").write_text('{"name": "n", "signature": "s"}')
    (run / "trackers.json").write_text('{"wandb": {"id": "abcd1234"}}')
    (run / "config.yaml").write_text("tracker: {}\n")
    with pytest.raises(UserError, match="was not trained with tracker=wandb"):
        TrackedExport(run)
    node = "{_target_: runner.reporting.trackers.wandb.WandB, project: p, mode: offline}"
    (run / "config.yaml").write_text(f"tracker: {{wandb: {node}}}\n")
    said: list[str] = []
    TrackedExport(run).log(model, 7, said.append)
    assert said == []
    for text in (
        "export-abcd1234",
        "checkpoint-abcd1234:step-7",
        f"file://{model}/weights.safetensors",
    ):
        assert recorded(run, text, "offline-"), text


@pytest.mark.slow
def test_a_run_without_a_checkpoint_says_so_and_ends(tmp_path):
    tracker = started(tmp_path, mode="offline", artifact="last")
    tracker.finish("failed")
    [message] = tracker.messages()
    assert message.startswith("no artifact: ")
