"""The compiled dense half: names, numbers, refusals, and a resume that repeats it bit for bit."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from functools import partial

import pytest
import torch
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from runner.errors import ConfigError
from runner.models.autoint import AutoInt
from runner.models.din import DIN
from runner.models.dlrm import DLRM
from runner.models.losses import BCE
from runner.training.update import compilation
from runner.training.update.compilation import compile_dense, remove_torn_code
from runner.training.update.task import Supervised
from tests.conftest import TINY
from tests.models.sequence_models import make
from tests.models.sequence_scene import SCHEMA, batch_of
from tests.tiny import CPU, make_context, random_batch
from tests.tiny import SCHEMA as TINY_SCHEMA
from tests.whole.compare_runs import assert_resumes_exactly


def assert_same_updates(sizes: list[int], atol: float) -> None:
    plain, compiled = make_context("adagrad"), make_context("adagrad")
    compile_dense(compiled.model, CPU, 64)
    assert list(plain.model.state_dict()) == list(compiled.model.state_dict())
    torch._dynamo.utils.counters.clear()
    for seed, size in enumerate(sizes):
        for context in (plain, compiled):
            Supervised().train_step(context, iter([random_batch(size, seed)]))
            with torch.no_grad():
                context.model.eval()
                Supervised().eval_step(context, random_batch(size, seed))
                context.model.train()
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


@pytest.mark.parametrize("first", [33, 96])
def test_whatever_batch_comes_first_the_compiler_sees_full_ones(monkeypatch, first):
    """The sizes that it sees first decide how it cuts loops, and so the last bits of sums."""
    seen: list[set[int]] = []

    def backend(graph, inputs):
        seen.append({int(size) for x in inputs if isinstance(x, torch.Tensor) for size in x.shape})
        return graph.forward

    monkeypatch.setattr(compilation.torch, "compile", partial(torch.compile, backend=backend))
    context, untouched = make_context(), make_context()
    compile_dense(context.model, CPU, 64)
    before = torch.get_rng_state()
    for each in (context, untouched):
        torch.set_rng_state(before)
        Supervised().train_step(each, iter([random_batch(first)]))
    assert 64 in seen[0] and first not in seen[0]
    for ours, plain in zip(context.model.parameters(), untouched.model.parameters(), strict=True):
        assert torch.equal(ours, plain)


def count_graphs(monkeypatch):
    """Return a list that gets each graph which is compiled from now on, and run as it is."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(compilation.torch, "compile", partial(torch.compile, backend=backend))
    return graphs


@pytest.mark.parametrize("micro_batch_size", [64, 32])
def test_histories_and_micro_batches_have_the_graph_of_full_ones(monkeypatch, micro_batch_size):
    """Their look-ups are views, and code is bound to where in memory a view begins and goes on."""
    graphs = count_graphs(monkeypatch)
    model = DIN(SCHEMA, embedding_dim=4, attention=[8], top=[8])
    context = make_context(model=model, loss=BCE(SCHEMA), micro_batch_size=micro_batch_size)
    compile_dense(context.model, CPU, micro_batch_size)
    for seed, size in enumerate((45, 64, 40)):
        Supervised().train_step(context, iter([batch_of(size, seed)]))
    assert len(graphs) == 1


@pytest.mark.parametrize("width", [64, 8])
def test_batch_norms_equal_sizes_and_single_rows_have_no_graphs_of_their_own(monkeypatch, width):
    """A layer may be as wide as a batch has rows, and a batch's last micro-batch have one row."""
    graphs = count_graphs(monkeypatch)
    attention = {"num_layers": 1, "attention_dim": width, "num_heads": 2}
    stack = {"embedding_dim": width, "deep": [width, width], "norm": "batch"}
    context = make_context(model=AutoInt(TINY_SCHEMA, **attention, **stack))
    compile_dense(context.model, CPU, 64)
    found = []
    for seed, size in enumerate((64, 64, 33, 1, 50)):
        Supervised().train_step(context, iter([random_batch(size, seed)]))
        found.append(len(graphs))
    assert found == [2] * 5, "around the layers with norms"


def test_a_trace_takes_no_draws_of_dropout_that_is_run_as_it_is_written(monkeypatch):
    eager = partial(torch.compile, backend="eager")
    monkeypatch.setattr(compilation.torch, "compile", eager)
    contexts = []
    for _ in range(2):
        torch.manual_seed(0)
        stack = {"embedding_dim": 4, "bottom": [8], "top": [8], "norm": "batch", "dropout": 0.5}
        contexts.append(make_context(model=DLRM(TINY_SCHEMA, **stack)))
    compile_dense(contexts[0].model, CPU, 64)
    for context in contexts:
        torch.manual_seed(1)
        Supervised().train_step(context, iter([random_batch(33)]))
    for ours, plain in zip(*(c.model.parameters() for c in contexts), strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-6)


def test_an_evaluation_over_the_catalogue_changes_no_compiled_code(monkeypatch):
    graphs = count_graphs(monkeypatch)
    context = make("two_tower")
    compile_dense(context.model, CPU, 16)
    Supervised().train_step(context, iter([batch_of(16)]))
    before = len(graphs)
    context.model.open_catalogue(leave_history_out=True)
    context.model.close_catalogue()
    Supervised().train_step(context, iter([batch_of(16)]))
    assert len(graphs) == before


@pytest.mark.long
def test_code_is_kept_apart_by_what_it_depends_on(monkeypatch, tmp_path):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())  # as torch's imports do
    folders = set()
    for processor, rows in (("one", 64), ("one", 32), ("other", 64), ("one", 64)):
        monkeypatch.setattr(compilation, "cpu_name", lambda processor=processor: processor)
        compile_dense(make_context().model, CPU, rows)
        folders.add(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert len(folders) == 3 and all(f.startswith(f"{tmp_path}/compiled/") for f in folders)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/users/own")
    compile_dense(make_context().model, CPU, 64)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/users/own"


def test_what_a_kill_has_cut_short_is_compiled_again(tmp_path):
    head = struct.pack("<4s36xQ10x2H2x", b"\x7fELF", 300, 64, 5)  # five sections' entries at 300
    whole = head + bytes(300 + 5 * 64 - len(head))
    sizes = {"whole": len(whole), "empty": 0, "head": 64, "half": len(whole) // 2, "busy": 100}
    sizes["last"] = len(whole) - 1
    folder = tmp_path / "ab"
    folder.mkdir()
    for name, size in sizes.items():
        (folder / f"{name}.main.so").write_bytes(whole[:size])
    (folder / "text.py").touch()  # renamed into place before its content was on the disk
    (tmp_path / "locks").mkdir()
    with open(tmp_path / "locks" / "busy.lock", "w") as lock:  # another process writes it
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_torn_code(tmp_path)
    assert {path.name for path in folder.iterdir()} == {"whole.main.so", "busy.main.so"}


@pytest.mark.slow
def test_compiled_kernels_give_the_results_of_eager_to_rounding():
    assert_same_updates([64, 33, 64, 40], atol=1e-6)


def test_without_a_compiler_it_is_refused(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compilation.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"trainer.compile=true: needs a C\+\+ compiler"):
        compile_dense(make_context().model, CPU, 64)
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    with pytest.raises(ConfigError, match=r"trainer.compile=true: needs Triton on CUDA: pip inst"):
        compile_dense(make_context().model, torch.device("cuda"), 64)


def test_a_cache_that_cannot_be_written_is_told_and_another_may_be_chosen(monkeypatch, tmp_path):
    (tmp_path / "compiled").touch()
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/users/own")
    compile_dense(make_context().model, CPU, 64)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    with pytest.raises(ConfigError, match=r"compiled in .*: Not a directory; RUNNER_CACHE names"):
        compile_dense(make_context().model, CPU, 64)


def test_a_compiler_that_fails_on_the_way_is_told_with_the_way_around_it(monkeypatch):
    def backend(graph, inputs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(compilation.torch, "compile", partial(torch.compile, backend=backend))
    context = make_context()
    compile_dense(context.model, CPU, 64)
    with pytest.raises(RuntimeError, match=r"No space left.*trainer.compile=false compiles noth"):
        Supervised().train_step(context, iter([random_batch(64)]))


def test_a_chosen_cache_that_cannot_be_made_is_told(runner, tmp_path):
    (tmp_path / "file").touch()
    env = {"TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/file/cache"}
    run = f"hydra.run.dir={tmp_path}/run"
    refused = runner.run(*TINY, "trainer.compile=true", run, env=env).check(2).text
    assert "file/cache: Not a directory; TORCHINDUCTOR_CACHE_DIR names another" in refused


def test_a_debug_run_observes_modules_and_is_eager(runner):
    done = runner.run(*TINY, "loop=debug", "trainer.compile=true", "loop.statistics=true").check()
    assert "top.0" in done.text, "statistics of the modules inside"


def test_an_evaluation_of_a_compiled_run_needs_no_compiler(runner, tmp_path):
    run, none = tmp_path / "run", {"CXX": "/no/compiler"}
    runner.run(*TINY, "trainer.max_steps=1", f"hydra.run.dir={run}").check()
    words = ("loop=eval", f"run={run}", "trainer.compile=true", f"hydra.run.dir={tmp_path}/eval")
    runner.run(*words, env=none).check()
    refused = runner.run(
        "resume", str(run), "trainer.compile=true", "trainer.max_steps=2", env=none
    )
    assert "needs a C++ compiler" in refused.check(2).text


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("trainer.amp=true", "model.net.norm=batch")])
def test_a_compiled_run_killed_and_resumed_equals_one_never_killed(runner, tmp_path, more):
    """It goes on at the short batch of an epoch's end, whose 13 rows would make other kernels."""
    words = (*TINY, "trainer.compile=true", "trainer.ema.decay=0.9", "model.net.dropout=0.1", *more)
    data = ("dataset.rows={train: 1005, validation: 100, test: 100}", "checkpoint.save_every=31")
    assert_resumes_exactly(runner, (*words, *data), tmp_path / "run", tmp_path / "quiet", "step:34")
