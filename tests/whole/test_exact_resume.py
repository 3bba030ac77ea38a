"""A run killed at any instant and resumed equals one never killed, bit for bit."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from tests.conftest import TINY, Zygote
from tests.devices import DEVICES
from tests.whole.compare_runs import (
    TRACED,
    differences,
    examples_by_cursor,
    fingerprint,
    newest_checkpoint,
    read_rows,
)

# intervals of TINY share no divisor: log 7, evaluate 11, save 5; shuffled, two micro-batches
SETTINGS = (*TINY, "trainer.accumulate=2", "trainer.max_steps=60", "model.net.dropout=0.1")


def train(runner: Zygote, folder: Path, *more: str, kill: str = ""):
    return runner.run(
        *TRACED,
        *SETTINGS,
        *more,
        f"hydra.run.dir={folder}",
        env={"TRACE_FILE": f"{folder}.trace", "TRACE_KILL": kill},
    )


@pytest.fixture(scope="module")
def untouched(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untouched") / "run"
    train(runner, folder).check()
    return folder


def assert_same(run: Path, untouched: Path) -> None:
    assert differences(run, untouched) == []
    ours = examples_by_cursor(Path(f"{run}.trace"))
    theirs = examples_by_cursor(Path(f"{untouched}.trace"))
    assert ours == theirs
    assert all(len(hashes) == 1 for hashes in ours.values())


@pytest.mark.long
def test_the_same_seed_gives_the_same_run_twice(runner, untouched, tmp_path):
    train(runner, tmp_path / "run").check()
    assert_same(tmp_path / "run", untouched)


@pytest.mark.long
def test_another_seed_gives_another_run(runner, untouched, tmp_path):
    train(runner, tmp_path / "run", "seed=1").check()
    assert "dense/top.0.weight" in differences(tmp_path / "run", untouched)


@pytest.mark.long
@pytest.mark.parametrize(
    "kills",
    [
        ("step:1",),
        ("step:23",),
        ("batch:17", "batch:9"),
        ("eval:2",),
        ("eval:20", "step:2"),
        ("fsync:3",),
        ("fsync:11", "fsync:14"),
        ("rename:2",),
        ("replace:2",),
        ("step:60",),
        ("eval:90",),
    ],
    ids="+".join,
)
@pytest.mark.parity("N1", "L11")
def test_a_run_killed_at_a_named_point_and_resumed_equals_one_never_killed(
    runner, untouched, tmp_path, kills
):
    run = tmp_path / "run"
    codes = [train(runner, run, kill=kill).code for kill in kills]
    assert -9 in codes or kills[0].startswith(("rename", "replace", "eval:90")), codes
    train(runner, run).check()
    assert_same(run, untouched)


@pytest.mark.long
def test_a_row_of_updates_before_a_resume_alone_has_the_parts_of_their_loss(runner, tmp_path):
    """The evaluation of step 11 comes before another update, and ends the training."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    asker = "{_target_: tests.training.callbacks.user_callbacks.Asker, step: 11, what: pause"
    own = ("trainer.early_stop.threshold=0.01", "trainer.penalties=[{pattern: top, l2: 0.001}]")
    own = (*own, f"+callbacks.asker={asker}, event: on_evaluation_start}}")
    train(runner, whole, *own, "callbacks.asker.step=99").check()
    assert "saving and leaving" in train(runner, run, *own).text
    runner.run(*TRACED[:2], "resume", str(run), "callbacks.asker.step=99").check()
    rows = read_rows(run)
    assert "loss/l2" in next(r for r in rows if (r["split"], r["step"]) == ("train", 11))
    assert differences(run, whole) == []


def untouched_and_resumed(runner: Zygote, folder: Path, own: tuple[str, ...]) -> tuple[Path, Path]:
    """Train without a kill, and with one and a resume; both must be the same."""
    whole, run = folder / "whole", folder / "run"
    train(runner, whole, *own).check()
    train(runner, run, *own, kill="step:17").check(-9)
    train(runner, run, *own).check()
    assert_same(run, whole)
    return whole, run


@pytest.mark.long
def test_twenty_labels_with_two_parts_of_the_loss_each_resume_exactly(runner, tmp_path):
    own = ("dataset.num_tasks=20", "model/loss=jrc", "trainer.max_steps=30")
    own = (*own, "trainer.accumulate=1")  # since the loss compares the rows of an update
    _, run = untouched_and_resumed(runner, tmp_path, own)
    [*_, last] = [row for row in read_rows(run) if row["split"] == "train"]
    parts = [value for name, value in last.items() if name.startswith("loss/")]
    assert len(parts) == 40
    assert last["loss"] == pytest.approx(sum(parts))


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
def test_deterministic_kernels_of_every_device_resume_exactly(runner, tmp_path, device):
    """The generator of a GPU is a part of the checkpoint, beside the host's."""
    own = (f"trainer.device={device.type}", "trainer.deterministic=true", "trainer.max_steps=30")
    _, run = untouched_and_resumed(runner, tmp_path, own)
    names = {name for name in fingerprint(newest_checkpoint(run)) if name.startswith("rng/")}
    assert names == {"rng/torch"} | ({"rng/cuda"} if device.type == "cuda" else set())


@pytest.mark.long
def test_rows_in_threads_of_their_own_resume_exactly(runner, tmp_path):
    own = ("model.net.dropout=0", "model.net.top=[1024,512]", "trainer.batch_size=128")
    own += ("optimizer=adam", "trainer.max_steps=30", "trainer.num_threads=2")
    whole, _ = untouched_and_resumed(runner, tmp_path, own)
    alone = tmp_path / "alone"
    train(runner, alone, *own, "trainer.num_threads=1").check()
    assert "dense/top.0.weight" in differences(alone, whole), "by rounding: it has two threads"


@pytest.mark.long
def test_threads_of_a_batch_norm_with_dropout_resume_exactly(runner, tmp_path):
    """Without a task of one's own, with which one thread has all rows."""
    words = (*TINY, "model.net.norm=batch", "model.net.dropout=0.1", "trainer.num_threads=2")
    words += ("model.net.top=[1024,512]", "trainer.batch_size=128", "trainer.max_steps=60")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    runner.run(*words, f"hydra.run.dir={whole}").check()
    process = runner.start(*words, f"hydra.run.dir={killed}")
    while not list(killed.glob("checkpoints/step-*")):
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    runner.run(*words, f"hydra.run.dir={killed}").check()
    assert differences(killed, whole) == []
    alone = tmp_path / "alone"
    runner.run(*words, "trainer.num_threads=1", f"hydra.run.dir={alone}").check()
    assert "dense/top.0.weight" in differences(alone, whole), "by rounding: it has two threads"


SEEDS = [pytest.param(s, marks=pytest.mark.slow) if s > 3 else s for s in range(40)]


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_killed_at_random_instants_and_resumed_equals_one_never_killed(
    runner, untouched, tmp_path, seed
):
    print(f"seed of the instants: {seed}")
    dice = random.Random(seed + 40 * int(os.environ.get("FAULT_SEED", 0)))
    run = tmp_path / "run"
    for _ in range(2):
        process = runner.start(
            *TRACED, *SETTINGS, f"hydra.run.dir={run}", env={"TRACE_FILE": f"{run}.trace"}
        )
        time.sleep(dice.uniform(0.2, 1.6))
        process.kill()
        process.wait()
    train(runner, run).check()
    assert_same(run, untouched)


FIRST = ("step:23", "batch:45", "eval:20", "fsync:9", "rename:3")
SECOND = ("step:1", "step:9", "batch:2", "eval:5", "fsync:2", "fsync:7")


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(pair, marks=() if number % 13 == 0 else pytest.mark.slow)
        for number, pair in enumerate(itertools.product(FIRST, SECOND))
    ],
    ids="+".join,
)
def test_a_run_killed_again_while_it_resumes_equals_one_never_killed(
    runner, untouched, tmp_path, kills
):
    run = tmp_path / "run"
    assert [train(runner, run, kill=kill).code for kill in kills] == [-9, -9]
    train(runner, run).check()
    assert_same(run, untouched)


@pytest.mark.long
@pytest.mark.parity("T6", "L12")
def test_resume_by_verb_continues_and_a_finished_run_says_so(runner, untouched, tmp_path):
    run = tmp_path / "run"
    train(runner, run, kill="step:33").check(-9)
    env = {"TRACE_FILE": f"{run}.trace"}
    resumed = runner.run("--allow", "tests", "resume", str(run), env=env).check()
    assert re.search("resuming from step (25|30) ", resumed.text)  # 30 may not be whole yet
    assert_same(run, untouched)
    before = (run / "result.json").read_bytes()
    again = train(runner, run).check()
    assert "done" in again.text.lower()
    assert (run / "result.json").read_bytes() == before


@pytest.mark.long
def test_resume_before_the_first_checkpoint_starts_at_step_0(runner, untouched, tmp_path):
    run = tmp_path / "run"
    train(runner, run, kill="step:3").check(-9)
    assert not list((run / "checkpoints").glob("step-*"))
    train(runner, run).check()
    assert_same(run, untouched)


@pytest.mark.long
@pytest.mark.parity("T1", "E5")
def test_exactly_max_steps_updates_and_an_extension_goes_on(runner, untouched, tmp_path):
    lines = Path(f"{untouched}.trace").read_text().splitlines()
    assert len(lines) == 60
    run = tmp_path / "run"
    train(runner, run, "trainer.max_steps=20").check()
    env = {"TRACE_FILE": f"{run}.trace"}
    runner.run("--allow", "tests", "resume", str(run), "trainer.max_steps=60", env=env).check()
    assert json.loads((run / "result.json").read_text())["step"] == 60
    # the order and the weights go on as if it had been 60 from the start; the log has a row more
    ours, theirs = (examples_by_cursor(Path(f"{r}.trace")) for r in (run, untouched))
    assert ours == theirs
    assert not [d for d in differences(run, untouched) if d.startswith(("dense", "tables"))]


@pytest.mark.long
@pytest.mark.parity("L12")
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(runner, untouched, tmp_path):
    run = tmp_path / "run"
    train(runner, run, kill="step:33").check(-9)
    victim = next(newest_checkpoint(run).glob("*.safetensors"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    assert victim.parent.name in train(runner, run).check().text
    assert_same(run, untouched)
