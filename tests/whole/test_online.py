"""loop=online: one pass equals `train` on the same rows; killed and resumed equals never killed."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import yaml

from runner.rundir.checkpoint import open_checkpoint, read_tensors
from tests.conftest import Zygote
from tests.data.streaming.files import SCHEMA, arrive, rows
from tests.whole.compare_runs import (
    TRACED,
    differences,
    examples_by_cursor,
    fingerprint,
    newest_checkpoint,
    read_result,
    read_rows,
)

MODEL = (
    "model=mlp",  # whose products are the same in an evaluation as in training, to the last bit
    "model.net.deep=[8]",
    "model.net.embedding_dim=4",
    "trainer.num_threads=1",
    "trainer.batch_size=32",
    "trainer.log_every=7",
    "checkpoint.save_every=5",
)
STREAM = ("loop=online", "dataset=folder", "dataset.poll_s=0.05", "dataset.idle_timeout_s=0.5")
NUM_ROWS = 1500


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A schema, and three files of rows, 1,500 together: 46 batches of 32 and one of 28."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "schema.yaml").write_text(yaml.safe_dump(SCHEMA))
    (folder / "files").mkdir()
    whole = rows(NUM_ROWS)
    for n in range(3):
        arrive(folder / "files", f"{n}.parquet", whole.slice(500 * n, 500))
    return folder


def words(data: Path, run: Path, path: Path | None = None) -> tuple[str, ...]:
    place = (f"dataset.path={path or data / 'files'}", f"dataset.schema={data / 'schema.yaml'}")
    return (*place, *MODEL, f"hydra.run.dir={run}")


def weights(run: Path) -> dict[str, str]:
    """With the optimizers' states."""
    return {
        k: v
        for k, v in fingerprint(newest_checkpoint(run)).items()
        if k.startswith(("tables/", "dense"))
    }


@pytest.fixture(scope="module")
def trained(runner: Zygote, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One pass of `train` in file order."""
    run = tmp_path_factory.mktemp("trained") / "run"
    own = ("--allow", "tests", "dataset=parquet", "dataset._target_=tests.whole.in_order.in_order")
    runner.run(*own, *words(data, run)).check()
    assert read_result(run)["step"] == 47
    return run


@pytest.mark.long
@pytest.mark.parametrize("score", ["auto", "before"])
@pytest.mark.parity("L14")
def test_one_pass_over_given_files_equals_one_pass_of_train(runner, data, trained, tmp_path, score):
    run = tmp_path / "run"
    online = ("loop=online", "dataset=parquet", "dataset.mix=false", f"loop.score={score}")
    runner.run(*online, *words(data, run)).check()
    assert (read_result(run)["step"], read_result(run)["examples"]) == (47, NUM_ROWS)
    assert weights(run) == weights(trained)
    # scored by the forward of the update, or by one before it: the same, and what train measures
    ours, theirs = read_rows(run, "progressive"), read_rows(trained, "train")
    assert [{**row, "split": "train"} for row in ours] == theirs


@pytest.mark.long
def test_a_stream_of_files_equals_one_pass_of_train_up_to_its_last_whole_batch(
    runner, data, trained, tmp_path
):
    run = tmp_path / "run"
    done = runner.run(*STREAM, *words(data, run)).check()
    assert "no new file" in done.text
    assert "progressive loss over 6 windows" in done.text
    found = read_result(run)
    assert (found["status"], found["step"], found["stream_goes_on"]) == ("completed", 46, True)
    place = {"file": "2.parquet", "row": 472, "rows": 500, "files": 3}
    assert {k: v for k, v in found["stream_place"].items() if k != "xxh3"} == place
    shorter = tmp_path / "shorter"
    own = ("--allow", "tests", "dataset=parquet", "dataset._target_=tests.whole.in_order.in_order")
    length = ("trainer.max_epochs=null", "trainer.max_steps=46")
    runner.run(*own, *words(data, shorter), *length).check()
    assert weights(run) == weights(shorter)
    assert [r["loss"] for r in read_rows(run, "progressive")] == [
        r["loss"] for r in read_rows(trained, "train")[:6]
    ]


def stream(runner, data, run, path, *more, kill=""):
    env = {"TRACE_FILE": f"{run}.trace", "TRACE_KILL": kill}
    return runner.start(*TRACED, *STREAM, *words(data, run, path), *more, env=env)


@pytest.fixture(scope="module")
def untouched(runner: Zygote, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untouched")
    run = folder / "run"
    process = stream(runner, data, run, data / "files", "model.net.dropout=0.2")
    assert process.wait() == 0, process.text
    return run


@pytest.mark.long
@pytest.mark.parametrize(
    "kills", [("step:3",), ("step:17", "step:9"), ("batch:30",), ("fsync:9",)], ids="+".join
)
@pytest.mark.parity("L14")
def test_killed_and_resumed_it_equals_one_never_killed(runner, data, untouched, tmp_path, kills):
    run = tmp_path / "run"
    files = data / "files"
    for kill in kills:
        process = stream(runner, data, run, files, "model.net.dropout=0.2", kill=kill)
        assert process.wait() == -9, process.text
    process = stream(runner, data, run, files, "model.net.dropout=0.2")
    assert process.wait() == 0, process.text
    assert differences(run, untouched) == []
    ours = examples_by_cursor(Path(f"{run}.trace"))
    assert ours == examples_by_cursor(Path(f"{untouched}.trace"))
    assert all(len(hashes) == 1 for hashes in ours.values())


@pytest.mark.long
def test_a_stream_that_ended_goes_on_with_the_same_command_when_more_has_come(
    runner, data, untouched, tmp_path
):
    files, run = tmp_path / "files", tmp_path / "run"
    files.mkdir()
    whole = rows(NUM_ROWS)
    arrive(files, "0.parquet", whole.slice(0, 500))
    assert stream(runner, data, run, files, "model.net.dropout=0.2").wait() == 0
    assert read_result(run)["step"] == 15
    arrive(files, "1.parquet", whole.slice(500, 500))
    arrive(files, "2.parquet", whole.slice(1000, 500))
    process = stream(runner, data, run, files, "model.net.dropout=0.2")
    assert process.wait() == 0, process.text
    assert "resuming from step 15" in process.text
    assert weights(run) == weights(untouched)
    assert read_rows(run, "progressive") == read_rows(untouched, "progressive")


@pytest.mark.long
def test_a_stream_that_ends_before_its_window_is_full_shows_the_metrics_so_far(
    runner, data, tmp_path
):
    results = []
    for log_every in (46, 1000):
        run = tmp_path / f"every-{log_every}"
        done = runner.run(*STREAM, *words(data, run), f"trainer.log_every={log_every}").check()
        assert ("updates of a window that is not full" in done.text) == (log_every == 1000)
        results.append(read_result(run)["metrics"])
    assert not (run / "metrics.jsonl").exists()  # the next start fills the window
    assert results[0]["progressive/loss"] == results[1]["progressive/loss"] > 0


@pytest.mark.long
def test_an_endless_stream_ends_by_signal_while_it_waits_and_by_max_steps(runner, data, tmp_path):
    run = tmp_path / "run"
    process = runner.start(*STREAM, *words(data, run), "dataset.idle_timeout_s=null")
    for _ in range(600):
        if len(read_rows(run, "progressive") if (run / "metrics.jsonl").exists() else []) >= 6:
            break
        time.sleep(0.05)
    time.sleep(0.5)
    process.kill(signal.SIGINT)
    assert process.wait() == 130, process.text
    assert (read_result(run)["status"], read_result(run)["step"]) == ("interrupted", 46)
    short = tmp_path / "short"
    length = ("trainer.max_epochs=null", "trainer.max_steps=10", "dataset.idle_timeout_s=null")
    runner.run(*STREAM, *words(data, short), *length).check()
    assert (read_result(short)["status"], read_result(short)["step"]) == ("completed", 10)
    again = runner.run(*STREAM, *words(data, short), *length)
    assert "is done already" in again.text


@pytest.mark.long
def test_with_dropout_it_is_scored_without(runner, data, tmp_path):
    """By hand: the weights of step k, in evaluation, on the rows of update k + 1."""
    run = tmp_path / "run"
    every = ("trainer.log_every=1", "checkpoint.save_every=1", "checkpoint.keep=99")
    every = (*every, "model.net.dropout=0.5", "trainer.max_epochs=null", "trainer.max_steps=6")
    runner.run(*STREAM, *words(data, run), *every).check()
    [scored] = [r for r in read_rows(run, "progressive") if r["step"] == 6]
    part = tmp_path / "part"
    part.mkdir()
    arrive(part, "x.parquet", rows(NUM_ROWS).slice(32 * 5, 32))
    step = run / "checkpoints" / "step-5"
    assert read_tensors(open_checkpoint(step), ["dense/deep.0.weight"])
    evaluation = ("loop=eval", f"checkpoint.path={step}", "dataset=parquet", "loop.split=train")
    evaluation = (*evaluation, f"dataset.path={part}", f"dataset.schema={data / 'schema.yaml'}")
    own = tmp_path / "eval"
    runner.run(*evaluation, "dataset.mix=false", f"hydra.run.dir={own}").check()
    assert read_result(own)["metrics"]["train_eval/loss"] == pytest.approx(scored["loss"], rel=1e-6)


@pytest.mark.long
def test_a_stream_file_that_stays_cut_short_fails_the_run_which_can_be_resumed(
    runner, data, tmp_path
):
    files, run = tmp_path / "files", tmp_path / "run"
    files.mkdir()
    arrive(files, "0.parquet", rows(500))
    whole = arrive(files, "1.parquet", rows(500, seed=1)).read_bytes()
    (files / "1.parquet").write_bytes(whole[:-50])
    cut = (*STREAM, *words(data, run, files), "dataset.incomplete_timeout_s=0.3")
    assert "1.parquet: not a readable Parquet file" in runner.run(*cut).check(2).text
    (files / "1.parquet").write_bytes(whole)
    runner.run(*cut).check()
    assert read_result(run)["examples"] == 31 * 32


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("dataset=folder", "dataset.path=."), "is a stream, which has no epochs"),
        (("loop=online", "trainer.max_epochs=2"), "learns from each row once"),
        (("loop=online", "dataset=parquet"), "dataset.mix=true: stores train rows in random"),
        (("loop=online", "loop.score=after"), "one of auto, before"),
        (("loop=online", "dataset=folder", "dataset.path=nowhere"), "nowhere: no such folder"),
        (
            ("loop=online", "dataset=folder", "dataset.path=.", "scheduler=cosine"),
            "the length of the run",
        ),
    ],
)
def test_what_cannot_be_streamed_is_told(runner, data, tmp_path, more, message):
    schema = (f"dataset.schema={data / 'schema.yaml'}",) if "dataset=synthetic" not in more else ()
    needs = any(word.startswith("dataset=") for word in more)
    done = runner.run(*more, *(schema if needs else ()), cwd=tmp_path).check(2)
    assert message in done.text
    assert "Traceback" not in done.text


@pytest.mark.long
def test_a_killed_run_on_kafka_equals_one_never_killed_and_learns_each_message_once(
    runner, data, tmp_path
):
    pytest.importorskip("confluent_kafka", reason="the extra `kafka` is not installed")
    from tests.data.streaming.test_kafka import Broker

    broker, topic = Broker(), f"clicks-{time.time_ns()}"
    broker.send(topic, rows(640).to_pylist())

    def run_one(run: Path, kill: str = "") -> int:
        words_ = (
            *TRACED,
            *MODEL,
            "loop=online",
            "dataset=kafka",
            f"dataset.servers='{broker.servers}'",
            f"dataset.topic={topic}",
            f"dataset.schema={data / 'schema.yaml'}",
            "dataset.idle_timeout_s=2",
            "model.net.dropout=0.2",
            f"hydra.run.dir={run}",
        )
        env = {"TRACE_FILE": f"{run}.trace", "TRACE_KILL": kill}
        process = runner.start(*words_, env=env)
        code = process.wait()
        assert code == (-9 if kill else 0), process.text
        return code

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_one(whole)
    for kill in ("step:9", "step:7", ""):
        run_one(killed, kill)
    assert read_result(whole)["stream_place"] == {"offsets": dict.fromkeys("0123", 160)}
    assert differences(killed, whole) == []
    ours, theirs = (examples_by_cursor(Path(f"{r}.trace")) for r in (killed, whole))
    assert ours == theirs
    assert len(theirs) == 20
