"""A tracker that raises or hangs is named once and dropped, and the run goes on."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path

import pytest

from runner.errors import ConfigError
from runner.reporting.trackers import Trackers
from runner.reporting.trackers import tracker as tracker_module


class Recorder:
    """Records all calls; raises or hangs in the methods with the given names."""

    def __init__(self, *, raises: str = "", hangs: str = "") -> None:
        self.calls: list[tuple] = []
        self.raises, self.hangs = raises, hangs

    def _called(self, method: str, *args) -> None:
        self.calls.append((method, *args))
        if method == self.raises:
            raise OSError("no network")
        if method == self.hangs:
            threading.Event().wait()

    def start(self, run, state):
        self._called("start", run["name"], state)

    def log(self, split, step, metrics):
        self._called("log", split, step, dict(metrics))

    def state(self):
        self._called("state")
        return {"id": "abc"}

    def finish(self, status):
        self._called("finish", status)

    def messages(self):
        return ["data is in a folder"] if self.calls[-1][0] == "finish" else []

    def named(self, method: str) -> list[tuple]:
        return [call for call in self.calls if call[0] == method]


def run_through(trackers: Trackers, folder: Path) -> None:
    trackers.start({"name": "n", "dir": folder, "config": {}})
    trackers.log("train", 1, {"loss": 0.5})
    trackers.state()
    trackers.log("train", 2, {"loss": 0.4})
    trackers.finish("completed")
    trackers.finish("completed")


@pytest.mark.parametrize("method", ["start", "log", "state", "finish"])
def test_a_tracker_that_raises_is_named_once_and_dropped(tmp_path, method, caplog):
    broken, whole = Recorder(raises=method), Recorder()
    run_through(Trackers({"broken": broken, "whole": whole}, logging.warning), tmp_path)
    warnings = caplog.messages
    assert [w for w in warnings if "no network" in w] == [
        "tracker broken: no network; the run goes on without it"
    ]
    assert len(broken.named(method)) == 1
    assert broken.calls[-1][0] == method
    assert [call[1:] for call in whole.named("log")] == [
        ("train", 1, {"loss": 0.5}),
        ("train", 2, {"loss": 0.4}),
    ]
    assert whole.named("finish") == [("finish", "completed")]
    assert "tracker whole: data is in a folder" in warnings


def test_a_tracker_that_hangs_in_finish_does_not_delay_the_end(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tracker_module, "FINISH_LIMIT_S", 0.3)
    hanging, whole = Recorder(hangs="finish"), Recorder()
    started = time.monotonic()
    run_through(Trackers({"hanging": hanging, "whole": whole}, logging.warning), tmp_path)
    assert time.monotonic() - started < 5
    assert whole.named("finish")
    assert any("tracker hanging: did not finish" in w for w in caplog.messages)


def test_a_tracker_whose_method_takes_other_arguments_is_refused_with_what_it_must_take():
    own = Recorder()
    own.log = lambda metrics: None
    with pytest.raises(ConfigError, match=r"log\(metrics\) must take \(split, step, metrics\), as"):
        tracker_module.check_tracker("tracker.mine", own)


def test_the_limits_leave_exit_within_thirty_seconds():
    from runner.reporting.trackers import wandb

    assert wandb.FINISH_LIMIT_S < tracker_module.FINISH_LIMIT_S < 30


def test_identity_goes_to_checkpoints_and_the_run_directory_and_comes_back(tmp_path):
    first = Trackers({"one": Recorder()}, pytest.fail)
    first.start({"name": "n", "dir": tmp_path, "config": {}})
    assert first.state() == {"one": {"id": "abc"}}
    assert json.loads((tmp_path / "trackers.json").read_text()) == first.state()
    from_checkpoint, from_folder = Recorder(), Recorder()
    run = {"name": "n", "dir": tmp_path, "config": {}}
    Trackers({"one": from_checkpoint}, pytest.fail).start(run, {"one": {"id": "saved"}})
    assert from_checkpoint.named("start") == [("start", "n", {"id": "saved"})]
    Trackers({"one": from_folder}, pytest.fail).start(run)
    assert from_folder.named("start") == [("start", "n", {"id": "abc"})]


def test_an_incomplete_identity_file_makes_a_new_identity(tmp_path):
    (tmp_path / "trackers.json").write_text('{"one": {"i')
    tracker = Recorder()
    Trackers({"one": tracker}, pytest.fail).start({"name": "n", "dir": tmp_path, "config": {}})
    assert tracker.named("start") == [("start", "n", None)]


def test_a_dropped_tracker_keeps_its_identity_for_the_next_attempt(tmp_path):
    trackers = Trackers({"one": Recorder(raises="log")}, lambda _: None)
    trackers.start({"name": "n", "dir": tmp_path, "config": {}})
    trackers.log("train", 1, {})
    assert trackers.state() == {"one": {"id": "abc"}}


def test_no_trackers_leave_no_file(tmp_path):
    run_through(Trackers({}, pytest.fail), tmp_path)
    assert not list(tmp_path.iterdir())


class Drawing(Recorder):
    def log_histograms(self, split, step, histograms):
        self._called("log_histograms", split, step, dict(histograms))


def test_histograms_go_to_trackers_that_show_them(tmp_path):
    plain, drawing, broken = Recorder(), Drawing(), Drawing(raises="log_histograms")
    warnings: list[str] = []
    trackers = Trackers({"a": plain, "b": drawing, "c": broken}, warn=warnings.append)
    assert trackers.show_histograms
    assert not Trackers({"a": plain}, warn=warnings.append).show_histograms
    trackers.start({"name": "n", "dir": tmp_path, "config": {}})
    shown = tracker_module.Histogram((0.0, 1.0), (2,), 1.0, 0.5)
    for step in (1, 2):
        trackers.log_histograms("weights", step, {"x": shown})
    assert drawing.named("log_histograms") == [
        ("log_histograms", "weights", step, {"x": shown}) for step in (1, 2)
    ]
    assert len(broken.named("log_histograms")) == 1
    assert warnings == ["tracker c: no network; the run goes on without it"]
    assert plain.named("log_histograms") == []
