"""loop=debug with several tasks, with a custom step, and with a debugger in it."""

from __future__ import annotations

import re

from runner.config.background_work import disable_background_work
from tests.conftest import TINY

PAIRS_TASK = ("--allow", "tests", "task._target_=tests.training.loops.breakpoint_task.Pairs")


def test_nothing_reads_ahead_and_nothing_is_compiled():
    config = {
        "dataset": {"prefetch": 4, "workers": 2, "path": "x"},
        "trainer": {"compile": True, "batch_size": 8},
    }
    changed, notes = disable_background_work(config)
    assert changed["dataset"] == {"prefetch": 0, "workers": 0, "path": "x"}
    assert changed["trainer"] == {"compile": False, "batch_size": 8}
    assert notes == ["dataset.prefetch=0", "dataset.workers=0", "trainer.compile=false"]
    assert config["dataset"]["workers"] == 2
    assert disable_background_work({"dataset": {"workers": 0}, "trainer": {}})[1] == []
    unset = {"dataset": {"workers": None}}
    assert disable_background_work(unset) == ({"dataset": {"workers": 0}}, [])


def test_a_custom_step_stops_at_its_breakpoint_in_the_only_thread(runner):
    words = (*TINY, *PAIRS_TASK, "loop=debug", "loop.max_steps=2", "loop.statistics=true")
    ahead = ("dataset.prefetch=3", "dataset.workers=2", "loop.summary=true")
    env = {"PYTHONBREAKPOINT": "tests.training.loops.breakpoint_task.at_breakpoint"}
    done = runner.run(*words, *ahead, env=env).check()
    assert (
        "dataset.prefetch=0, dataset.workers=0, so that everything runs in one thread" in done.text
    )
    assert done.text.count("threads ['MainThread'] compiled False") == 2
    assert done.text.count("stopped in train_step, rows 32") == 2
    assert "step 2  loss" in done.text


def test_pdb_stops_in_the_step(runner):
    """The prompt gets no input here, so pdb quits as at Ctrl-D, after it has shown the line."""
    done = runner.run(*TINY, *PAIRS_TASK, "loop=debug", "loop.max_steps=2")
    assert "(Pdb)" in done.text
    assert re.search(r"breakpoint_task\.py\(\d+\)train_step\(\)", done.text)


def test_the_loss_of_each_task_is_shown_with_all_options_on(runner):
    words = (*TINY, "loop=debug", "dataset.num_tasks=2", "model=mmoe", "model.net.embedding_dim=4")
    words = tuple(w for w in words if not w.startswith(("model.net.bottom", "model.net.top")))
    words = (*words, "checkpoint.monitor={metric: validation/loss, direction: min}")
    options = ("loop.statistics=true", "loop.summary=true", "loop.anomaly=true")
    done = runner.run(*words, *options, "loop.overfit_one_batch=true", "loop.max_steps=3").check()
    assert re.search(r"step 3  loss [\d.]+ \(label [\d.]+, label_2 [\d.]+\)", done.text)
    assert "TableLookup" in done.text
