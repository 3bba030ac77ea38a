"""`reproduce` and `diff` on real runs, and what a run keeps for its report."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from runner.cli.reproduce import list_stream_drift
from runner.data.core.file_hashes import hash_file_anew as hash_file
from runner.reporting.report.diff import compare_runs
from tests.conftest import TINY, Zygote


@pytest.fixture(scope="module")
def trained(runner: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    runner.run(*TINY, "trainer.max_steps=25", f"hydra.run.dir={folder}").check()
    return folder


def copied(run: Path, to: Path, **changes) -> Path:
    """The same run with other words in its meta.json."""
    shutil.copytree(run, to)
    meta = json.loads((to / "meta.json").read_text())
    (to / "meta.json").write_text(json.dumps({**meta, **changes}))
    return to


@pytest.mark.long
@pytest.mark.parity("N6")
def test_the_same_comes_out_bit_for_bit(runner, trained, tmp_path):
    before = {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()}
    done = runner.run("reproduce", str(trained), f"hydra.run.dir={tmp_path / 'again'}").check()
    assert "identical, bit for bit" in done.text
    assert "drift" not in done.text
    logs = [(folder / "metrics.jsonl").read_bytes() for folder in (trained, tmp_path / "again")]
    assert logs[0] == logs[1]
    assert {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()} == before


@pytest.mark.long
def test_without_a_place_it_gets_a_directory_of_its_own_under_outputs(runner, trained, tmp_path):
    runner.run("reproduce", str(trained), cwd=tmp_path).check()
    [again] = tmp_path.glob("outputs/dlrm_synthetic/*/result.json")
    assert json.loads(again.read_text())["status"] == "completed"


def test_drift_is_told_before_it_runs(runner, trained, tmp_path):
    meta = json.loads((trained / "meta.json").read_text())
    other = copied(
        trained,
        tmp_path / "other",
        git={"commit": "0123456789abcdef", "patch": "diff"},
        versions={**meta["versions"], "torch": "1.0"},
        identity={**meta["identity"], "data": "otherwise"},
        cpus=999,
    )
    done = runner.run("reproduce", str(other), f"hydra.run.dir={tmp_path / 'again'}")
    assert "note: the code: commit 0123456789ab then" in done.text
    assert "uncommitted changes then" in done.text
    assert "note: torch: 1.0 then" in done.text
    assert "note: the data: fingerprint otherwise then" in done.text
    assert "note: the machine: 999 CPUs then" in done.text
    assert done.code == 0  # nothing has really changed


@pytest.mark.parity("N6")
def test_what_differs_is_named_and_the_exit_code_says_so(runner, trained, tmp_path):
    other = copied(trained, tmp_path / "outputs" / "other")
    link = tmp_path / "outputs" / "latest"  # which the repetition moves to itself
    link.symlink_to("other")
    rows = (other / "metrics.jsonl").read_text().splitlines()
    row = json.loads(rows[1])
    name = next(k for k in row if k not in ("split", "step", "examples"))
    rows[1] = json.dumps({**row, name: 0.123})
    (other / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    result = json.loads((other / "result.json").read_text())
    result["metrics"]["test/auc"] = 0.25
    (other / "result.json").write_text(json.dumps(result))
    done = runner.run("reproduce", "outputs/latest", cwd=tmp_path).check(1)
    assert link.resolve() != other
    assert "not the same" in done.text
    assert f"differs first at step {row['step']}" in done.text
    assert "most test/auc: 0.25 and" in done.text


@pytest.mark.long
def test_a_run_that_was_made_longer_is_repeated_but_for_what_its_first_end_wrote(
    runner, trained, tmp_path
):
    longer = copied(trained, tmp_path / "longer")
    runner.run("resume", str(longer), "trainer.max_steps=30", "trainer.log_every=100").check()
    done = runner.run("reproduce", str(longer), f"hydra.run.dir={tmp_path / 'again'}").check()
    assert "identical, bit for bit" in done.text
    text = " ".join(done.text.split())
    # the evaluations at 11, 22 and 30 and the test; not those of train at 7, 14, 21, 25 and 30 and
    # of validation at 25, nor the only one of train in the repetition, over all its updates
    assert "4 rows of the same split, step and updates; 7 others were left out" in text
    rows = (longer / "metrics.jsonl").read_text()
    (longer / "metrics.jsonl").write_text(rows.replace('"auc": 0.', '"auc": 0.1'))
    done = runner.run("reproduce", str(longer), f"hydra.run.dir={tmp_path / 'third'}").check(1)
    assert "differs first at step 11 (validation/auc: 0.1" in " ".join(done.text.split())


def test_rows_of_other_evaluations_are_told_as_such(trained, tmp_path):
    other = copied(trained, tmp_path / "other")
    rows = (other / "metrics.jsonl").read_text().splitlines(keepends=True)
    (other / "metrics.jsonl").write_text("".join([rows[0], *rows[2:]]))
    [told] = compare_runs(trained, other).different
    assert told == (
        "metrics.jsonl: their rows are of other evaluations or updates from row 2 on: of "
        "validation at step 11 and of train at step 14"
    )


def test_a_repetition_neither_mirrors_nor_delivers(command):
    delivering = ["delivery.every=5", "delivery.to=site", "dataset.rows.test=64"]
    assert command("hydra.run.dir=run", *delivering)[0] == 0
    assert command.jobs.last.config["delivery"]["every"] == 5
    command("reproduce", "run", "hydra.run.dir=again")
    assert set(command.jobs.last.config["delivery"].values()) == {None}


def test_data_and_a_schema_that_have_moved_are_read_where_they_are_now(command, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    (old / "x.csv").write_text("click,age\n" + "0,1\n1,2\n" * 10)
    (old / "s.yaml").write_text("{labels: {click: {}}, numeric: {age: {}}, split: {}}")
    words = ["dataset=csv", f"dataset.path={old / 'x.csv'}", f"dataset.schema={old / 's.yaml'}"]
    assert command(*words, "model=mlp", "trainer.max_steps=3", "hydra.run.dir=run")[0] == 0
    old.rename(new)
    assert f"{old}" in command.refused("reproduce", "run")
    moved = [f"dataset.path={new / 'x.csv'}", f"dataset.schema={new / 's.yaml'}"]
    _, _, said = command("reproduce", "run", *moved, "hydra.run.dir=again")
    assert "would be another run" not in said and command.jobs.last.run.dir == Path("again"), said
    assert "  seed: 0 -> 5\n" in command.refused("reproduce", "run", *moved, "seed=5") + "\n"
    other = tmp_path / "other.csv"
    other.write_text("click,age\n" + "0,1\n1,3\n" * 10)
    assert "  data: " in command.refused("reproduce", "run", *moved, f"dataset.path={other}")


def test_another_run_is_refused(runner, trained, tmp_path):
    done = runner.run("reproduce", str(trained), "seed=5", cwd=tmp_path).check(2)
    assert "seed: 0 -> 5" in done.text
    done = runner.run("reproduce", str(trained), f"hydra.run.dir={trained}").check(2)
    assert "exists already" in done.text
    assert "no run directory" in runner.run("reproduce", str(tmp_path)).check(2).text


@pytest.mark.parametrize("verb", ["resume", "reproduce"])
def test_flags_that_only_list_are_refused_by_verbs_that_train(runner, trained, verb):
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    flags = ["-m", "--cfg", "job", "--dry-run", "--rerun", "changed"]
    done = runner.run(verb, str(trained), *flags).check(2)
    for flag in ("-m", "--cfg", "--dry-run", "--rerun"):
        assert f"{flag}: " in done.text
    assert "--info, --hydra-help" in runner.run(verb, str(trained), "--info").text
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


@pytest.mark.long
def test_an_evaluation_is_repeated_too(runner, trained, tmp_path):
    runner.run("loop=eval", f"run={trained}", f"hydra.run.dir={tmp_path / 'eval'}").check()
    done = runner.run(
        "reproduce", str(tmp_path / "eval"), f"hydra.run.dir={tmp_path / 'again'}"
    ).check()
    assert "identical, bit for bit" in done.text


def test_an_evaluation_is_repeated_at_its_step_though_its_run_has_gone_on(
    runner, trained, tmp_path
):
    run, old = copied(trained, tmp_path / "run"), tmp_path / "old"
    runner.run("loop=eval", f"run={run}", "checkpoint.step=last", f"hydra.run.dir={old}").check()
    runner.run("resume", str(run), "trainer.max_steps=30", "checkpoint.keep=5").check()
    again = runner.run("reproduce", str(old), f"hydra.run.dir={tmp_path / 'again'}").check()
    assert "identical, bit for bit" in again.text and "no longer has" not in again.text
    shutil.rmtree(run / "checkpoints" / "step-25")
    done = runner.run("reproduce", str(old), f"hydra.run.dir={tmp_path / 'third'}").check(1)
    assert f"note: {run} no longer has the checkpoint of step 25" in done.text


def test_a_step_for_a_training_is_refused(command):
    assert command("hydra.run.dir=run", "dataset.rows.test=64")[0] == 0
    refused = command.refused("reproduce", "run", "checkpoint.step=7")
    assert "a training that is repeated reads none" in refused


@pytest.mark.long
def test_diff_shows_what_differs_and_only_that(runner, trained, tmp_path):
    other = tmp_path / "other"
    more = ("trainer.max_steps=25", "optimizer=adam", "optimizer.dense.lr=0.1")
    runner.run(*TINY, *more, f"hydra.run.dir={other}").check()
    done = runner.run("diff", str(trained), str(other)).check()
    lines = {line.split()[0]: line.split() for line in done.text.splitlines() if line.split()}
    assert lines["optimizer.dense.lr"][1:] == ["0.001", "0.1"]
    assert "optimizer.sparse.kind" in lines
    assert "trainer.max_steps" not in lines
    assert "data: the same" in done.text
    results = [json.loads((r / "result.json").read_text())["metrics"] for r in (trained, other)]
    expected = [f"{m['test/auc']:.5f}" for m in results]
    assert lines["test/auc"][1:3] == expected
    runner.run("diff", str(trained)).check(2)


def test_a_run_keeps_its_calibration_and_facts_of_its_data(runner, trained):
    data = json.loads((trained / "data.json").read_text())
    assert data["num_rows"] == {"train": 3000, "validation": 500, "test": 500}
    assert len(data["dense"]) == 13
    assert len(data["sparse"]) == 26
    kept = json.loads((trained / "calibration.json").read_text())
    result = json.loads((trained / "result.json").read_text())
    assert kept["validation"]["step"] == kept["test"]["step"] == result["best"]["step"]
    for split in ("validation", "test"):
        [bins] = kept[split]["tasks"].values()
        total = sum(bins["weight"])
        assert total == 500
        pairs = [
            sum(v * w for v, w in zip(bins[k], bins["weight"])) for k in ("predicted", "observed")
        ]
        # the ratio of the means is the metric of that name
        calibration = result["metrics"][f"{split}/calibration"]
        assert pairs[0] / pairs[1] == pytest.approx(calibration, rel=1e-3)


def test_files_of_a_stream_that_were_replaced_or_are_gone_are_told(tmp_path):
    stream, run = tmp_path / "stream", tmp_path / "run"
    for folder in (stream, run):
        folder.mkdir()
    for name in "abcd":
        (stream / f"{name}.parquet").write_text(name)
    place = {"file": "c.parquet", "files": 3, "xxh3": hash_file(stream / "c.parquet")}
    (run / "result.json").touch()

    def drift() -> list[str]:
        return list(list_stream_drift({"stream_place": place}, run, {"path": str(stream)}))

    def write_later(name: str, seconds: int) -> None:
        (stream / name).write_text("other")
        ended = (run / "result.json").stat().st_mtime
        os.utime(stream / name, (ended + seconds, ended + seconds))

    assert drift() == []
    write_later("d.parquet", 60)  # which the run had not come to
    assert drift() == []
    write_later("c.parquet", -60)  # with an old time, and told by its content
    assert drift() == ["the stream: c.parquet changed after the run had read it"]
    write_later("a.parquet", 60)
    assert drift() == ["the stream: a.parquet, c.parquet changed after the run had read it"]
    (stream / "c.parquet").unlink()
    assert drift() == [
        "the stream: had 3 files up to c.parquet, and has 2 now",
        "the stream: a.parquet changed after the run had read it",
    ]
    assert list(list_stream_drift({}, run, {"path": str(stream)})) == []
