"""Early stopping, plateaus and callbacks in whole runs: resumed anywhere, they decide the same."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from runner.rundir.checkpoint import open_checkpoint
from tests.conftest import TINY, Zygote
from tests.whole.compare_runs import differences, examples_by_cursor, newest_checkpoint, read_rows

ALLOW = ("--allow", "tests")
TRACED = (*ALLOW, "task._target_=tests.whole.traced.Traced")
# Of the calibration, which falls from 2 to 1, the first one stays the largest, so that all that
# follows is known by hand. Evaluations at 2 (the best), 4, 6: rates and updates change; 8, 10:
# again; 12: the 5th in a row
SETTINGS = (
    *TINY,
    "trainer.max_steps=null",
    "trainer.max_epochs=1",
    "scheduler=cosine",
    "trainer.accumulate=2",
    "model.net.dropout=0.1",
    "trainer.log_every=3",
    "trainer.eval_every=2",
    "checkpoint.save_every=1",
    "checkpoint.monitor={metric: validation/calibration, direction: max}",
    "trainer.early_stop.patience=5",
    "trainer.early_stop.min_delta=0.5",
    "trainer.lr_on_plateau.patience=2",
    "trainer.lr_on_plateau.min_delta=0.5",
    "trainer.lr_on_plateau.max_times=2",
    "trainer.batch_on_plateau.patience=2",
    "trainer.batch_on_plateau.min_delta=0.5",
    "trainer.batch_on_plateau.max_rows=192",
)
AVERAGED = (
    "+callbacks.averager={_target_: tests.training.callbacks.user_callbacks.Averager, pull: 0.1}"
)


def train(runner: Zygote, folder: Path, *more: str, kill: str = "", number: int = 9):
    return runner.run(
        *TRACED,
        *SETTINGS,
        AVERAGED,
        *more,
        f"hydra.run.dir={folder}",
        env={"TRACE_FILE": f"{folder}.trace", "TRACE_KILL": kill, "TRACE_SIGNAL": str(number)},
    )


@pytest.fixture(scope="module")
def untouched(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untouched") / "run"
    train(runner, folder).check()
    return folder


@pytest.mark.long
@pytest.mark.parity("L9", "L10")
def test_the_run_decides_as_was_worked_out_by_hand(untouched):
    result = json.loads((untouched / "result.json").read_text())
    assert (result["status"], result["step"]) == ("completed", 12)
    assert "early_stop: validation/calibration has not improved" in result["stopped"]
    # 64 rows for 6 updates, 128 for 4, then 192, the cap, for 2
    assert result["examples"] == 6 * 64 + 4 * 128 + 2 * 192
    train_rows = {row["step"]: row for row in read_rows(untouched, "train")}
    assert [row["update_rows"] for row in train_rows.values()] == [64, 64, 128, 192]
    # of 3,000 rows: 47 updates of 64; after 6 of them 2,616 are left: 21 of 128; then 2,104: 11
    assert [row["total_steps"] for row in train_rows.values()] == [47, 47, 27, 21]
    assert list(train_rows) == [3, 6, 9, 12]
    state = open_checkpoint(newest_checkpoint(untouched)).values
    assert (state["growth"], state["lr_scale"]) == (3, 0.25)
    assert state["waits"]["early_stop"]["since"] == 5
    said = (untouched / "log.txt").read_text()
    assert "128 rows an update from here on (were 64); 27 updates in all (were 47)" in said
    assert "learning rates are 0.25 of the schedule's from here on (were 0.5)" in said


@pytest.mark.parity("L8")
def test_the_test_split_is_evaluated_with_the_best_weights(runner, untouched, tmp_path):
    result = json.loads((untouched / "result.json").read_text())
    runner.run(
        *ALLOW,
        "loop=eval",
        f"run={untouched}",
        "checkpoint.step=best",
        "loop.split=test",
        "task._target_=runner.training.update.task.Supervised",
        f"hydra.run.dir={tmp_path / 'eval'}",
    ).check()
    evaluated = json.loads((tmp_path / "eval" / "result.json").read_text())
    assert result["metrics"]["test/auc"] == evaluated["metrics"]["test/auc"]
    assert evaluated["step"] == result["best"]["step"] < result["step"]


# the points that matter most: before and after each decision, and at the end
SHORT = ("step:7", "eval:91")
POINTS = [f"step:{k}" for k in range(1, 13)] + [f"eval:{k}" for k in range(1, 110, 8)]
POINTS = list(dict.fromkeys([*SHORT, *POINTS]))


def assert_same(run: Path, untouched: Path) -> None:
    assert differences(run, untouched) == []
    ours = examples_by_cursor(Path(f"{run}.trace"))
    assert ours == examples_by_cursor(Path(f"{untouched}.trace"))
    assert all(len(hashes) == 1 for hashes in ours.values())


@pytest.mark.parametrize(
    "kill", [pytest.param(p, marks=() if p in SHORT else pytest.mark.slow) for p in POINTS]
)
@pytest.mark.parity("L9", "L11")
def test_killed_anywhere_and_resumed_it_decides_the_same(runner, untouched, tmp_path, kill):
    run = tmp_path / "run"
    train(runner, run, kill=kill).check(-9)
    train(runner, run).check()
    assert_same(run, untouched)


EVALUATIONS = [
    # 16 batches an evaluation: in the 3rd, which decides; in the 6th, which ends the run
    "eval:40",
    pytest.param("eval:17", marks=pytest.mark.slow),
    pytest.param("eval:70", marks=pytest.mark.slow),
    "eval:90",
    pytest.param("step:6", marks=pytest.mark.slow),
    pytest.param("step:12", marks=pytest.mark.slow),
]


@pytest.mark.long
@pytest.mark.parametrize("point", EVALUATIONS)
def test_a_signal_that_puts_an_evaluation_off_puts_its_decision_off_too(
    runner, untouched, tmp_path, point
):
    run = tmp_path / "run"
    train(runner, run, kill=point, number=signal.SIGTERM).check(143)
    train(runner, run).check()
    assert_same(run, untouched)


@pytest.mark.long
def test_a_run_that_stopped_goes_on_if_it_is_asked_to_be_more_patient(runner, untouched, tmp_path):
    run = tmp_path / "run"
    train(runner, run, "trainer.early_stop.patience=2").check()
    assert json.loads((run / "result.json").read_text())["step"] == 6
    done = runner.run(
        *ALLOW,
        "resume",
        str(run),
        "checkpoint.monitor={metric: validation/calibration, direction: max}",
        "trainer.early_stop.patience=5",
        env={"TRACE_FILE": f"{run}.trace"},
    ).check()
    assert "it had stopped (early_stop: " in done.text
    assert json.loads((run / "result.json").read_text())["step"] == 12
    ours, theirs = (examples_by_cursor(Path(f"{r}.trace")) for r in (run, untouched))
    # the update was about to grow when it stopped: it does so one evaluation later
    assert list(ours)[:6] == list(theirs)[:6]


def callback(name: str, **settings: object) -> str:
    keys = ", ".join(f"{key}: {value}" for key, value in settings.items())
    target = f"tests.training.callbacks.user_callbacks.{name}"
    return f"+callbacks.{name.lower()}={{_target_: {target}, {keys}}}"


def own(runner: Zygote, folder: Path, *callbacks: str, **env: str):
    short = ("trainer.max_steps=8", "checkpoint.save_every=3", "trainer.eval_every=4")
    return runner.run(*ALLOW, *TINY, *short, *callbacks, f"hydra.run.dir={folder}", env=env)


@pytest.mark.long
def test_one_that_raises_leaves_a_training_that_can_go_on(runner, tmp_path):
    run, clean = tmp_path / "run", tmp_path / "clean"
    failed = own(runner, run, callback("Asker", step=4, what="raise")).check(1)
    said = "callbacks.asker (Asker) at on_update, step 4: raised ValueError: out of ideas"
    assert said in failed.text
    assert "the training is saved at step 4" in failed.text
    assert json.loads((run / "result.json").read_text())["status"] == "failed"
    assert "in _at" in (run / "log.txt").read_text()  # the traceback leads into it
    assert open_checkpoint(newest_checkpoint(run)).step == 4
    runner.run(*ALLOW, "resume", str(run), "callbacks.asker.step=99").check()
    own(runner, clean, callback("Asker", step=99, what="raise")).check()
    assert differences(run, clean) == []


@pytest.mark.long
def test_our_callbacks_change_neither_the_result_nor_the_signature(runner, tmp_path):
    watched, alone = tmp_path / "watched", tmp_path / "alone"
    watch = ("callbacks=[throughput,memory,time_limit]", "callbacks.throughput.every=3")
    own(runner, watched, *watch, "callbacks.memory.every=3").check()
    own(runner, alone).check()
    assert differences(watched, alone) == []
    perf = [json.loads(line) for line in (watched / "perf.jsonl").read_text().splitlines()]
    assert [r["step"] for r in perf if "throughput/examples_per_s" in r] == [3, 6]
    assert [r["step"] for r in perf if "memory/peak_bytes" in r] == [3, 6]
    again = own(runner, watched, *watch)
    assert "done already" in again.text


@pytest.mark.long
def test_statistics_of_weights_are_rows_of_the_log_and_survive_a_kill(runner, tmp_path):
    def weighed(folder: Path, kill: str = ""):
        return runner.run(
            *TRACED,
            *TINY,
            "trainer.max_steps=20",
            "callbacks=weights",
            "callbacks.weights.every=4",
            f"hydra.run.dir={folder}",
            env={"TRACE_FILE": f"{folder}.trace", "TRACE_KILL": kill},
        )

    run, clean = tmp_path / "run", tmp_path / "clean"
    weighed(run, kill="step:15").check(-9)
    weighed(run).check()
    weighed(clean).check()
    assert differences(run, clean) == []
    found = read_rows(run, "weights")
    assert [row["step"] for row in found] == [4, 8, 12, 16, 20]
    assert found[0]["tables/C1/row_norm_mean"] > 0


@pytest.mark.long
def test_a_time_limit_saves_leaves_and_the_resumed_run_equals_one_without(runner, tmp_path):
    run, clean = tmp_path / "run", tmp_path / "clean"
    slow = callback("Sleeper", seconds=0.3)  # a second is left beside the margin
    limit = ("callbacks=time_limit", "callbacks.time_limit.limit=3601s")
    first = own(runner, run, slow, *limit, "callbacks.time_limit.margin=1h").check(143)
    assert "s of 3601s are left: saving and leaving" in first.text
    assert json.loads((run / "result.json").read_text())["status"] == "interrupted"
    assert 0 < open_checkpoint(newest_checkpoint(run)).step < 8
    own(runner, run, slow).check()
    own(runner, clean, slow).check()
    assert differences(run, clean) == []


@pytest.mark.long
def test_every_loop_takes_the_same_configuration(runner, untouched, tmp_path):
    extra = ("callbacks=[loss_guard,throughput,memory,weights]", "trainer.early_stop.patience=3")
    runner.run(*ALLOW, *TINY, *extra, "loop=debug", "loop.max_steps=2").check()
    runner.run(
        *ALLOW,
        "loop=eval",
        f"run={untouched}",
        "task._target_=runner.training.update.task.Supervised",
        *extra,
        f"hydra.run.dir={tmp_path / 'eval'}",
    ).check()


def test_a_start_that_reaches_the_threshold_ends_the_run_without_a_train_row(tmp_path, runner):
    """As a regression that is right in every row of validation."""
    rows = "".join(f"{n % 7},{int(n % 7 > 3)}\n" for n in range(700))
    (tmp_path / "x.csv").write_text(f"x,y\n{rows}")
    split = "split: {random: {train: 0.8, validation: 0.2}}"
    (tmp_path / "s.yaml").write_text(f"labels: [y]\ncategorical: [x]\n{split}\n")
    shown = runner.run(
        *("dataset=csv", f"dataset.path={tmp_path}/x.csv", f"dataset.schema={tmp_path}/s.yaml"),
        *("model=wide_and_deep", "checkpoint.init_linear=true", "trainer.max_epochs=1"),
        *("checkpoint.monitor={metric: validation/log_loss, direction: min}",),
        *("trainer.early_stop.threshold=0.5", f"hydra.run.dir={tmp_path}/run"),
    ).text
    assert "step 0: stopping early: validation/log_loss has reached 0.5" in shown
    assert "completed at step 0" in shown and "nan" not in shown
