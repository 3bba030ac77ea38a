"""The profile of a window of updates: what it records, and that it changes no result."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from torch.autograd import DeviceType

from runner.training.profiler import operator_table
from tests.conftest import TINY
from tests.whole.compare_runs import differences

SHORT = (*TINY, "trainer.max_steps=12", "trainer.accumulate=2", "trainer.eval_every=4")


@pytest.fixture(scope="module")
def unprofiled(runner, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unprofiled") / "run"
    runner.run(*SHORT, f"hydra.run.dir={folder}").check()
    return folder


@pytest.mark.long
@pytest.mark.parity("L17", "E8")
def test_a_window_is_traced_and_nothing_of_the_run_changes(runner, unprofiled, tmp_path):
    run = tmp_path / "run"
    window = ("trainer.profile.updates=4", "trainer.profile.after=3")
    done = runner.run(*SHORT, *window, f"hydra.run.dir={run}").check()
    assert differences(run, unprofiled) == []
    meta = [json.loads((folder / "meta.json").read_text()) for folder in (run, unprofiled)]
    assert meta[0]["signature"] == meta[1]["signature"]
    assert f"profile of 4 updates: {run}/profile/rank-0.json" in done.text
    events = json.loads((run / "profile" / "rank-0.json").read_text())["traceEvents"]
    steps = [e for e in events if e.get("name") == "Optimizer.step#Adam.step"]
    assert len(steps) == 4, "one dense update each, however many micro-batches"
    table = (run / "profile" / "rank-0.txt").read_text()
    assert table.splitlines()[0].split() == ["operator", "calls", "own", "CPU", "ms", "share"]
    assert "aten::addmm" in table and table in done.text.replace("\n  ", "\n")


@pytest.mark.long
def test_a_training_that_ends_within_or_before_the_window_says_so(runner, unprofiled, tmp_path):
    within, before = tmp_path / "within", tmp_path / "before"
    window = ("trainer.profile.updates=50", "trainer.profile.after=10")
    done = runner.run(*SHORT, *window, f"hydra.run.dir={within}")
    assert "profile of 2 updates" in done.text and done.code == 0
    assert differences(within, unprofiled) == []
    done = runner.run(*SHORT, *window, "trainer.profile.after=12", f"hydra.run.dir={before}")
    assert "nothing is recorded: the training ended before" in done.text and done.code == 0
    assert differences(before, unprofiled) == []


@pytest.mark.long
def test_an_online_training_is_profiled_and_an_evaluation_of_it_is_not(runner, tmp_path):
    run, plain, evaluated = tmp_path / "run", tmp_path / "plain", tmp_path / "evaluated"
    words = (*SHORT, "loop=online", "trainer.log_every=4")
    window = ("trainer.profile.updates=3", "trainer.profile.after=2")
    done = runner.run(*words, *window, f"hydra.run.dir={run}").check()
    assert f"profile of 3 updates: {run}/profile/rank-0.json" in done.text
    events = json.loads((run / "profile" / "rank-0.json").read_text())["traceEvents"]
    assert len([e for e in events if e.get("name") == "Optimizer.step#Adam.step"]) == 3
    runner.run(*words, f"hydra.run.dir={plain}").check()
    assert differences(run, plain) == []
    evaluate = ("loop=eval", f"run={run}", f"hydra.run.dir={evaluated}", "loop.split=validation")
    refused = runner.run(*evaluate, "trainer.profile.updates=5").check(2)
    assert "trainer.profile.updates=5: the loop evaluate records no updates" in refused.text
    runner.run(*evaluate).check()


@pytest.mark.long
def test_the_training_after_a_tuning_is_profiled(runner, tmp_path):
    run = tmp_path / "run"
    tune = ("loop=tune_lr", "loop.updates=5", "loop.then=train")
    window = ("trainer.profile.updates=3", "trainer.profile.after=2")
    done = runner.run(*SHORT, *tune, *window, f"hydra.run.dir={run}").check()
    assert f"profile of 3 updates: {run}/profile/rank-0.json" in done.text


def test_a_kernel_of_a_gpu_counts_once_and_long_names_are_cut():
    def event(name: str, kind: DeviceType, own_us: float) -> SimpleNamespace:
        return SimpleNamespace(key=name, device_type=kind, count=4, self_device_time_total=own_us)

    launched = [event("aten::mm", DeviceType.CPU, 3000.0), event("f" * 300, DeviceType.CPU, 1000.0)]
    events = [*launched, event("sm80_xmma_gemm", DeviceType.CUDA, 4000.0)]
    recorder = SimpleNamespace(key_averages=lambda: events)
    lines = operator_table(recorder, 2, on_device=True).lines()
    assert [line.split() for line in lines[1:]] == [
        ["aten::mm", "2.0", "1.500", "75.0%"],
        ["f" * 57 + "...", "2.0", "0.500", "25.0%"],
    ]
