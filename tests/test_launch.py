"""The command line around a run, with a job that only pretends to train."""

import json
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runner.config.compose import compose
from runner.distributed.launcher import ProcessResult
from runner.errors import DataError, UserError
from runner.launch import with_kept_transforms
from runner.rundir.find_run import find_run
from runner.rundir.json_files import read_json, write_json
from runner.rundir.run import write_result
from runner.rundir.run_files import read_meta, read_result
from tests.conftest import forget_config_record
from tests.fake_job import FakeResult


def fail(error):
    def loop(job):
        raise error

    return loop


def test_the_default_folder_is_name_date_time_signature_and_latest_points_there(command, tmp_path):
    code, _, _ = command("seed=3")
    assert code == 0
    folder = command.jobs.last.run.dir
    assert re.fullmatch(
        r"outputs/dlrm_synthetic/\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_[0-9a-f]{8}", str(folder)
    )
    assert folder.name.endswith(read_meta(folder)["signature"])
    assert (tmp_path / "outputs" / "latest").resolve() == folder.resolve()


def test_a_run_that_is_refused_while_it_is_built_is_not_the_latest(command, monkeypatch, tmp_path):
    command("seed=3")
    trained = command.jobs.last.run.dir.resolve()

    def refuse(config, run, **more):
        raise UserError("scheduler.warmup=100: is longer than the run of 8 updates")

    monkeypatch.setattr(sys.modules["runner.training.builder"], "build_job", refuse)
    assert command("seed=4")[0] == 2
    assert len(list(trained.parent.iterdir())) == 2, "its record is kept"
    assert (tmp_path / "outputs" / "latest").resolve() == trained
    assert find_run("outputs") == trained


def test_two_runs_in_the_same_second_get_two_folders(command, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda *_: "2030-01-01_00-00-00")
    folders = [command("seed=3") and command.jobs.last.run.dir for _ in range(3)]
    assert [f.name[-10:] for f in folders[1:]] == [f"{folders[0].name[-8:]}_{n}" for n in (2, 3)]


def test_the_record_is_whole_before_the_builder_is_called(command):
    def look(job):
        names = {p.name for p in job.run.dir.iterdir()}
        assert {"config.yaml", "meta.json", ".lock", "log.txt"} <= names
        assert "result.json" not in names
        return FakeResult()

    command.jobs.do = look
    assert command("hydra.run.dir=run")[0] == 0
    result = read_result(Path("run"))
    assert result["status"] == "completed"
    assert result["metrics"] == {"test/auc": 0.75}
    meta = read_meta(Path("run"))
    assert meta["versions"]["torch"]
    assert meta["seed"] == 0
    assert meta["overrides"] == ["hydra.run.dir=run"]
    assert {"commit", "patch", "untracked"} <= set(meta["git"] or {"commit", "patch", "untracked"})
    assert not list(Path("run").glob(".*.tmp"))
    assert not Path("run/.hydra").exists()


def test_the_same_command_again_says_that_it_is_done(command):
    command("hydra.run.dir=run", "seed=5")
    before = {p.name: p.read_bytes() for p in Path("run").iterdir()}
    code, _, err = command("hydra.run.dir=run", "seed=5", "trainer.log_every=7", "tracker=wandb")
    assert code == 0
    assert "done already" in err
    assert len(command.jobs.built) == 1
    assert {p.name: p.read_bytes() for p in Path("run").iterdir()} == before


def test_a_page_that_a_kill_has_taken_is_written_when_the_run_is_done_already(command):
    command("hydra.run.dir=run", "report=true")
    page = Path("run/report.html")
    page.unlink()
    code, _, err = command("resume", "run")
    assert code == 0 and "done already" in err
    assert page.stat().st_size > 1000
    os.utime(page, ns=(1, 1))  # of before the result
    command("resume", "run")
    assert page.stat().st_mtime_ns > Path("run/result.json").stat().st_mtime_ns
    page.unlink()
    command("resume", "run", "report=false")
    assert not page.exists()


def test_a_resume_that_is_refused_does_not_say_before_that_it_resumes(command):
    command("hydra.run.dir=run", "trainer.max_steps=5")
    for word in ("seed=3", "trainer.batch_size=8", "trainer.log_every=-1"):
        code, _, err = command("resume", "run", word)
        assert code == 2 and "resuming" not in err


def test_ctrl_c_while_the_result_is_written_does_not_lose_it(command, monkeypatch):
    def interrupt(run, result):
        monkeypatch.setattr("runner.worker.write_result", write_result)
        raise KeyboardInterrupt

    monkeypatch.setattr("runner.worker.write_result", interrupt)
    code, _, err = command("hydra.run.dir=run")
    assert code == 130 and "before it had begun" not in err
    result = read_result(Path("run"))
    assert (result["status"], result["metrics"]) == ("completed", {"test/auc": 0.75})


def test_sigterm_before_the_loop_has_begun_leaves_a_result(command):
    def be_told_to_end(job):
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL  # which would end the tests
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    command.jobs.do = be_told_to_end
    code, _, err = command("hydra.run.dir=run")
    assert code == 143 and "interrupted before it had begun" in err
    assert read_result(Path("run"))["status"] == "interrupted"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_ranks_that_a_signal_ended_at_once_leave_a_result(command, monkeypatch):
    ended = ProcessResult(143, "interrupted")  # what `run_on_ranks` says then
    monkeypatch.setattr("runner.launch.job.run_on_ranks", lambda *args, **more: ended)
    code, _, err = command("hydra.run.dir=run", "trainer.num_processes=2")
    assert code == 143 and "interrupted before it had begun" in err
    assert read_result(Path("run"))["status"] == "interrupted"


def test_another_run_in_the_same_folder_is_refused_and_what_differs_is_named(command):
    command("hydra.run.dir=run", "seed=5")
    before = {p.name: p.read_bytes() for p in Path("run").iterdir()}
    message = command.refused("hydra.run.dir=run", "seed=6", "optimizer.dense.lr=0.5")
    assert "seed: 5 -> 6" in message
    assert "optimizer.dense.lr: 0.001 -> 0.5" in message
    assert {p.name: p.read_bytes() for p in Path("run").iterdir()} == before


def test_other_data_settings_are_named_too(command):
    command("hydra.run.dir=run")
    assert "dataset.zipf: 1.05 -> 1.5" in command.refused("hydra.run.dir=run", "dataset.zipf=1.5")


def test_somebodys_folder_is_left_alone(command):
    Path("thesis").mkdir()
    Path("thesis/chapter.tex").write_text("precious")
    message = command.refused("hydra.run.dir=thesis")
    assert "not a run directory and not empty (chapter.tex)" in message
    assert [p.name for p in Path("thesis").iterdir()] == ["chapter.tex"]


def test_a_start_that_was_killed_early_is_begun_again(command):
    Path("run").mkdir()
    for name in (".lock", "config.yaml", ".meta.json.tmp"):
        (Path("run") / name).write_text("torn")
    assert command("hydra.run.dir=run", "seed=8")[0] == 0
    assert read_meta(Path("run"))["seed"] == 8


def test_resume_takes_the_runs_own_configuration_not_todays_defaults(command):
    command.jobs.do = lambda job: FakeResult("interrupted", signal=signal.SIGINT)
    assert command("hydra.run.dir=run", "trainer.batch_size=32", "optimizer=sgd")[0] == 130
    config = Path("run/config.yaml")
    config.write_text(config.read_text().replace("embedding_dim: 16", "embedding_dim: 7"))
    meta = read_meta(Path("run"))
    meta["identity"]["model.net.embedding_dim"] = 7  # as of a version with another default
    Path("run/meta.json").write_text(json.dumps(meta))
    forget_config_record(Path("run"))
    command.jobs.do = lambda job: FakeResult()
    assert command("resume", "run")[0] == 0
    now = command.jobs.last.config
    assert now["model"]["net"]["embedding_dim"] == 7
    assert now["trainer"]["batch_size"] == 32
    assert now["optimizer"]["dense"]["_target_"] == "torch.optim.SGD"
    assert command.jobs.last.run.resumed


def test_resume_with_a_longer_run_extends_a_finished_one(command):
    command("hydra.run.dir=run", "trainer.max_steps=5", "scheduler=cosine")
    first = read_meta(Path("run"))["signature"]
    code, _, err = command("resume", "run", "trainer.max_steps=9")
    assert code == 0
    assert "trainer.max_steps: 5 -> 9" in err
    assert "the schedule (cosine)" in err
    assert command.jobs.last.config["trainer"]["max_steps"] == 9
    meta = read_meta(Path("run"))
    assert meta["signature"] != first
    (note,) = meta["resumes"]
    assert note["signature_before"] == first
    assert note["changed"] == [["trainer.max_steps", 5, 9]]
    assert note["result_before"]["status"] == "completed"
    code, _, err = command("resume", "run")
    assert "done already" in err
    assert len(command.jobs.built) == 2


def test_resume_with_epochs_displaces_the_updates_of_the_run(command):
    command("hydra.run.dir=run", "trainer.max_steps=5", "scheduler.warmup=1ep")
    code, _, err = command("resume", "run", "trainer.max_epochs=2")
    assert code == 0
    assert "the schedule" not in err  # the rates of so many epochs do not follow from the length
    assert "trainer.max_epochs from the command line displaces trainer.max_steps=5" in err
    assert command.jobs.last.config["trainer"]["max_steps"] is None


@pytest.mark.parametrize("change", ["seed=1", "dataset.zipf=2.0", "model.net.embedding_dim=8"])
def test_resume_refuses_what_would_be_another_run(command, change):
    command("hydra.run.dir=run")
    before = {p.name: p.read_bytes() for p in Path("run").iterdir()}
    message = command.refused("resume", "run", change)
    assert "checkpoint.init_from=run" in message
    assert f"{change.split('=')[0]}: " in message
    assert {p.name: p.read_bytes() for p in Path("run").iterdir()} == before


@pytest.mark.parametrize(
    "word",
    [
        *("loop=eval", "loop=debug", "run=x", "hydra.run.dir=elsewhere", "-m", "--cfg=job"),
        "checkpoint.step=2",
    ],
)
def test_resume_is_the_same_run_in_the_same_place(command, word):
    command("hydra.run.dir=run")
    before = {p.name: p.read_bytes() for p in Path("run").iterdir()}
    assert "resume" in command.refused("resume", "run", word)
    assert {p.name: p.read_bytes() for p in Path("run").iterdir()} == before


def test_resume_of_a_run_that_is_still_being_written_names_its_process(command):
    def resume_within(job):
        job.message = command.refused("resume", "run")
        return FakeResult()

    command.jobs.do = resume_within
    command("hydra.run.dir=run")
    assert f"process {os.getpid()} on " in command.jobs.last.message


def test_eval_takes_the_runs_configuration_lists_what_differs_and_writes_elsewhere(command):
    command("hydra.run.dir=run", "trainer.batch_size=32", "seed=4")
    before = {p.name: p.read_bytes() for p in Path("run").iterdir()}
    code, _, err = command("loop=eval", "run=run", "loop.split=validation", "metrics.eval=[auc]")
    assert code == 0
    job = command.jobs.last
    assert job.config["trainer"]["batch_size"] == 32
    assert job.config["seed"] == 4
    assert job.config["run"] == str(Path("run").absolute())
    assert job.config["loop"]["_target_"] == "runner.training.loops.evaluate.evaluate"
    assert job.config["loop"]["split"] == "validation"
    assert "metrics.eval: ['auc', " in err
    assert "-> ['auc']" in err
    assert "loop" not in err.split("differs")[1]
    assert job.run.dir.parts[:3] == ("outputs", "eval", "dlrm_synthetic")
    assert read_meta(job.run.dir)["source"]["signature"] == read_meta(Path("run"))["signature"]
    assert {p.name: p.read_bytes() for p in Path("run").iterdir()} == before


def test_eval_of_an_unchanged_run_lists_nothing(command):
    command("hydra.run.dir=run")
    _, _, err = command("loop=eval", "run=run", "checkpoint.step=last")
    assert "differs" not in err


def test_a_group_override_on_a_run_composes_that_option_and_replaces_the_node(command):
    command("hydra.run.dir=run", "optimizer=sgd", "optimizer.dense.momentum=0.5")
    command("loop=eval", "run=run", "optimizer=adam", "optimizer.sparse.lr=0.25")
    expected = compose(["optimizer=adam"]).config["optimizer"]
    expected["sparse"]["lr"] = 0.25
    assert command.jobs.last.config["optimizer"] == expected
    assert "momentum" not in expected["dense"]
    assert "nearest: 'adam'" in command.refused("loop=eval", "run=run", "optimizer=adm")
    message = command.refused("loop=eval", "run=run", "experiments=x")
    assert "experiments=x: is for a new run" in message
    assert "recipe=bars: is for a new run" in command.refused("loop=eval", "run=run", "recipe=bars")


def test_an_evaluation_can_be_neither_evaluated_nor_resumed(command):
    command("hydra.run.dir=run")
    command("loop=eval", "run=run", "hydra.run.dir=seen")
    assert "is itself an evaluation of" in command.refused("loop=eval", "run=seen")
    assert "nothing to resume" in command.refused("resume", "seen")


def test_checkpoint_path_finds_the_run_around_it(command):
    command("hydra.run.dir=run", "seed=9")
    checkpoint = Path("run/checkpoints/step-3")
    checkpoint.mkdir(parents=True)
    assert command("loop=eval", f"checkpoint.path={checkpoint}")[0] == 0
    assert command.jobs.last.config["seed"] == 9
    assert command.jobs.last.config["checkpoint"]["path"] == str(checkpoint.absolute())
    message = command.refused("loop=eval", f"run={checkpoint}")
    assert "this is a checkpoint, its run is run" in message


def test_a_checkpoint_that_lies_alone_is_evaluated_with_the_configuration_given(command):
    Path("step-3").mkdir()
    assert command("loop=eval", "checkpoint.path=step-3", "seed=2")[0] == 0
    assert command.jobs.last.config["seed"] == 2


def test_debug_writes_nothing(command, tmp_path):
    assert command("loop=debug")[0] == 0
    assert command.jobs.last.run is None
    assert list(tmp_path.iterdir()) == []


def test_a_failure_while_running_exits_with_1_and_leaves_its_traceback_in_the_log(command):
    command.jobs.do = fail(RuntimeError("the loss exploded\nsecond line"))
    code, _, err = command("hydra.run.dir=run")
    assert code == 1
    assert "Traceback" not in err
    assert "RuntimeError: the loss exploded" in err
    assert "log.txt" in err
    log = Path("run/log.txt").read_text()
    assert "Traceback" in log
    assert "second line" in log
    result = read_result(Path("run"))
    assert (result["status"], result["error"]) == ("failed", "RuntimeError: the loss exploded")
    code, _, err = command("resume", "run", "trainer.traceback=true")
    assert code == 1
    assert "Traceback" in err


def test_a_failure_whose_run_was_removed_shows_its_traceback(command):
    def loop(job):
        shutil.rmtree("run")
        raise RuntimeError("nowhere to write")

    command.jobs.do = loop
    code, _, err = command("hydra.run.dir=run")
    assert code == 1 and "Traceback" in err and "log.txt" not in err


@pytest.mark.long
def test_a_failure_says_how_far_the_run_had_come(command):
    def loop(job):
        job.run.metrics.append({"split": "train", "step": 12, "examples": 384})
        raise RuntimeError("late")

    command.jobs.do = loop
    command("hydra.run.dir=run")
    result = read_result(Path("run"))
    assert (result["step"], result["examples"]) == (12, 384)


def test_a_full_disk_at_the_very_end_is_an_error_not_a_success(command, monkeypatch):
    def full(run, result):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("runner.launch.job.write_result", full)
    monkeypatch.setattr("runner.worker.write_result", full)
    code, _, err = command("hydra.run.dir=run")
    assert code == 1
    assert "No space left on device" in err
    assert "Traceback" not in err


def test_wrong_data_found_while_running_exits_with_2_and_is_recorded(command):
    command.jobs.do = fail(DataError("column C7, row 12: label 2"))
    code, _, err = command("hydra.run.dir=run")
    assert code == 2
    assert err.endswith("error: column C7, row 12: label 2\n")
    assert read_result(Path("run"))["error"] == "column C7, row 12: label 2"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    ],
)
def test_out_of_memory_is_said_as_such_and_what_helps(command, error):
    command.jobs.do = fail(error)
    code, _, err = command("hydra.run.dir=run")
    assert code == 1
    assert "out of memory" in err
    assert "trainer.accumulate" in err
    assert "out of memory" in read_result(Path("run"))["error"]


def test_out_of_memory_before_the_first_batch_names_what_makes_the_model_smaller(
    command, monkeypatch
):
    def build(*args, **more):
        raise MemoryError

    monkeypatch.setattr(sys.modules["runner.training.builder"], "build_job", build)
    code, _, err = command("hydra.run.dir=run")
    told = read_result(Path("run"))["error"]
    assert code == 1 and told.startswith("out of memory: MemoryError; no batch was there yet")
    assert "model.net.embedding_dim" in told and "trainer.batch_size" not in told + err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_loop_gives_the_signals_exit_code(command, number, code):
    command.jobs.do = lambda job: FakeResult("interrupted", signal=int(number))
    assert command("hydra.run.dir=run")[0] == code
    assert read_result(Path("run"))["status"] == "interrupted"


@pytest.mark.parametrize("rows", ["", '{"split": "train", "step": 3, "loss": 0.5}\n'])
def test_ctrl_c_before_the_loop_has_begun_exits_with_130_and_reports_only_what_there_is(
    command, rows
):
    def interrupt(job):
        job.run.metrics.path.write_text(rows)
        raise KeyboardInterrupt

    command.jobs.do = interrupt
    assert command("hydra.run.dir=run")[0] == 130
    assert read_result(Path("run"))["status"] == "interrupted"
    assert Path("run/report.html").exists() == bool(rows)


def test_missing_data_is_told_before_a_folder_is_made(command, tmp_path, monkeypatch):
    import runner.data.prepare.fingerprint as data

    def gone(dataset):
        raise FileNotFoundError(2, "No such file or directory", "/data/part-3.parquet")

    monkeypatch.setattr(data, "fingerprint", gone)
    assert "/data/part-3.parquet: No such file" in command.refused("dataset.data_seed=123")
    assert list(tmp_path.iterdir()) == []


CANARY = "sk-canary-5b1f0e"


@pytest.mark.long
def test_no_secret_of_the_environment_reaches_a_file(command, monkeypatch, tmp_path):
    """Nor one taken through other interpolations, nor in a run that fails or is evaluated."""
    monkeypatch.setenv("CANARY_KEY", CANARY)
    own = tmp_path / "own" / "tracker"
    own.mkdir(parents=True)
    (own / "secret.yaml").write_text(
        "first: {_target_: runner.reporting.trackers.x, "
        "key: '${oc.env:CANARY_KEY}', again: '${.key}'}\n"
        "url: 'https://${oc.env:CANARY_KEY}@host/${oc.env:NOT_SET,none}'\n"
        "all: ${tracker.first}\n"
        "plain: ${seed}\n"
    )
    words = ("--config-dir", "own", "tracker=secret")
    command.jobs.do = fail(RuntimeError("failed"))
    assert command(*words, "hydra.run.dir=outputs/a")[0] == 1
    tracker = command.jobs.last.config["tracker"]
    assert tracker["first"]["again"] == CANARY
    assert tracker["url"] == f"https://{CANARY}@host/none"
    command.jobs.do = lambda job: FakeResult()
    assert command("resume", "outputs/a")[0] == 0
    assert command.jobs.last.config["tracker"]["all"]["key"] == CANARY
    assert command("loop=eval", "run=outputs/a")[0] == 0
    assert command.jobs.last.run.config["tracker"]["plain"] == 0
    files = [p for p in (tmp_path / "outputs").rglob("*") if p.is_file()]
    assert len(files) >= 8
    assert [str(p) for p in files if CANARY in p.read_text(errors="replace")] == []
    assert "${oc.env:CANARY_KEY}" in Path("outputs/a/config.yaml").read_text()


def test_a_value_of_the_environment_makes_another_signature_without_being_written(
    command, monkeypatch
):
    monkeypatch.setenv("RATE", "0.2519")
    words = ('optimizer.dense.lr="${oc.decode:${oc.env:RATE}}"', "hydra.run.dir=run")
    assert command(*words)[0] == 0
    assert command.jobs.last.config["optimizer"]["dense"]["lr"] == 0.2519
    assert "0.2519" not in Path("run/meta.json").read_text()
    monkeypatch.setenv("RATE", "0.5")
    assert "values from the environment" in command.refused(*words)


def test_paths_are_written_so_that_they_hold_from_anywhere(command, monkeypatch, tmp_path):
    Path("first").mkdir()
    Path("first/manifest.json").touch()  # a checkpoint at first sight
    command("hydra.run.dir=run", "checkpoint.init_from=first")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    command.jobs.do = lambda job: FakeResult()
    code, _, err = command("resume", "../run", "trainer.max_epochs=3")
    assert code == 0, err
    assert command.jobs.last.config["checkpoint"]["init_from"] == str(tmp_path / "first")


def test_allowed_packages_come_from_flags_and_the_environment_only(command, monkeypatch, tmp_path):
    own = tmp_path / "own" / "model"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text(
        "net: {_target_: mypackage.Net, width: 3}\nloss: {_target_: runner.models.losses.BCE}\n"
    )
    words = ("--config-dir", "own", "model=mine", "hydra.run.dir=run")
    assert "--allow mypackage" in command.refused(*words)
    assert command("--allow", "mypackage", *words)[0] == 0
    assert "mypackage" in command.jobs.last.allowed
    assert "--allow mypackage" in command.refused("resume", "run", "trainer.max_epochs=2")
    monkeypatch.setenv("RUNNER_ALLOW", "mypackage")
    assert command("resume", "run", "trainer.max_epochs=2")[0] == 0


def test_result_json_is_strict_json(command):
    command.jobs.do = lambda job: FakeResult(metrics={"test/auc": float("nan")})
    command("hydra.run.dir=run")
    assert read_json(Path("run/result.json"))["metrics"] == {"test/auc": "NaN"}


def test_transforms_of_a_folder_that_is_there_are_read_also_by_a_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("SOURCE", str(tmp_path))
    schema = tmp_path / "schema.yaml"
    schema.write_text("labels: [click]\nnumeric: [price]\n")
    composed = compose(
        ["dataset=parquet", f"dataset.schema={schema}", "dataset.learnt=${oc.env:SOURCE}/data"]
    )
    run = tmp_path / "run"
    for folder in (run / "data", tmp_path / "data"):
        folder.mkdir(parents=True)
        (folder / "learnt.json").write_text("{}")
    write_json(run / "config.yaml", composed.saved_config)  # JSON is YAML
    continued = replace(composed, source_run=run)
    assert with_kept_transforms(continued) is continued
    shutil.rmtree(tmp_path / "data")
    assert with_kept_transforms(continued).config["dataset"]["learnt"] == str(run / "data")
