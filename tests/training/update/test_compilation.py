"""The compiled dense half: names, numbers, refusals, and a resume that repeats it bit for bit."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from runner.errors import ConfigError
from runner.training.update import compilation
from runner.training.update.compilation import compile_dense
from runner.training.update.task import Supervised
from tests.conftest import TINY
from tests.tiny import CPU, make_context, random_batch
from tests.whole.compare_runs import differences


def assert_same_updates(sizes: list[int], atol: float) -> None:
    plain, compiled = make_context("adagrad"), make_context("adagrad")
    compile_dense(compiled.model, CPU)
    assert list(plain.model.state_dict()) == list(compiled.model.state_dict())
    torch._dynamo.utils.counters.clear()
    for seed, size in enumerate(sizes):
        for context in (plain, compiled):
            Supervised().train_step(context, iter([random_batch(size, seed)]))
    theirs = dict(compiled.model.named_parameters())
    for name, parameter in plain.model.named_parameters():
        torch.testing.assert_close(theirs[name], parameter, rtol=0, atol=atol)
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == 1, "one graph for all sizes of a batch"
    assert not counters["graph_break"]


@pytest.mark.parity("L17")
def test_one_graph_serves_all_batch_sizes_with_the_results_of_eager(monkeypatch):
    """Traced as usual, but without the compiler, which is slow."""
    eager = partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(compilation.torch, "compile", eager)
    assert_same_updates([64, 64, 33], atol=0)


@pytest.mark.slow
def test_compiled_kernels_give_the_results_of_eager_to_rounding():
    assert_same_updates([64, 33, 64, 40], atol=1e-6)


def test_without_a_compiler_it_is_refused(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compilation.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"trainer.compile=true: needs a C\+\+ compiler"):
        compile_dense(make_context().model, CPU)


def test_a_debug_run_observes_modules_and_is_eager(runner):
    done = runner.run(*TINY, "loop=debug", "trainer.compile=true", "loop.statistics=true")
    assert done.code == 0, done.text
    assert "top.0" in done.text, "statistics of the modules inside"


@pytest.mark.slow
def test_a_compiled_run_killed_and_resumed_equals_one_never_killed(runner, tmp_path):
    run, quiet = tmp_path / "run", tmp_path / "quiet"
    words = (*TINY, "trainer.compile=true", "trainer.ema.decay=0.9", "model.net.dropout=0.1")
    traced = ("--allow", "tests", "task._target_=tests.whole.traced.Traced")
    data = "dataset.rows={train: 1011, validation: 100, test: 100}"  # a short batch ends each epoch
    for folder, kill in ((quiet, ""), (run, "step:34"), (run, "")):
        env = {"TRACE_FILE": f"{folder}.trace", "TRACE_KILL": kill}
        done = runner.run(*traced, *words, data, f"hydra.run.dir={folder}", env=env)
        assert done.code == (-9 if kill else 0), done.text
    assert differences(run, quiet) == []
