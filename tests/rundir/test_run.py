import errno
import hashlib
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.cli.reproduce import list_drift
from runner.config.compose import compose
from runner.config.signature import hash_fields
from runner.errors import UserError
from runner.rundir import location
from runner.rundir.identity import signed_settings_at, why_not_done
from runner.rundir.location import check_writable, create_and_lock, unwritable
from runner.rundir.provenance import (
    changed_code_note,
    changed_own_code,
    collect_provenance,
    git_state,
    own_code,
)
from runner.rundir.run import RunSpec, open_run, reopen_run, write_result
from runner.rundir.run_files import read_config, read_meta, read_result
from runner.rundir.saved_config import unedited_config
from runner.serving.export.plan import ExportSettings, plan_export
from runner.sweep.run_index import RunDirectory
from runner.sweep.sweep_state import drop_runs_of_other_code


def run_spec(**changes):
    identity = {"seed": 0, **changes}
    return RunSpec(
        config={"seed": identity["seed"], "key": "${oc.env:KEY}"},
        signature_fields=identity,
        signature=hash_fields(identity),
        name="test",
        choices={"model": "dlrm"},
        command=["python", "-m", "runner"],
    )


def test_a_run_is_refused_while_it_is_open_and_free_when_closed(tmp_path):
    run = open_run(str(tmp_path / "run"), run_spec(), project=tmp_path)
    with pytest.raises(UserError, match="another run is writing here: process"):
        open_run(str(tmp_path / "run"), run_spec(), project=tmp_path)
    run.close()
    open_run(str(tmp_path / "run"), run_spec(), project=tmp_path).close()
    assert len(read_meta(tmp_path / "run")["resumes"]) == 1


def test_references_to_the_environment_stay_references(tmp_path):
    open_run(str(tmp_path / "run"), run_spec(), project=tmp_path).close()
    assert read_config(tmp_path / "run") == {"seed": 0, "key": "${oc.env:KEY}"}


def test_a_refusal_gives_the_lock_back(tmp_path):
    open_run(str(tmp_path / "run"), run_spec(), project=tmp_path).close()
    for _ in range(2):
        with pytest.raises(UserError, match="seed: 0 -> 1"):
            open_run(str(tmp_path / "run"), run_spec(seed=1), project=tmp_path)


@pytest.mark.parametrize("half", ["meta.json", "config.yaml"])
def test_an_incomplete_run_directory_is_refused_with_what_is_missing(tmp_path, half):
    open_run(str(tmp_path / "run"), run_spec(), project=tmp_path).close()
    (tmp_path / "run" / half).unlink()
    with pytest.raises(UserError, match=f"it has no {half}"):
        reopen_run(tmp_path / "run", run_spec())


@pytest.mark.parametrize("text", ['{"signature": "ab', "[]", "{}"])
def test_a_damaged_meta_is_an_error_that_names_it(tmp_path, text):
    open_run(str(tmp_path / "run"), run_spec(), project=tmp_path).close()
    (tmp_path / "run" / "meta.json").write_text(text)
    with pytest.raises(UserError, match=r"meta\.json"):
        open_run(str(tmp_path / "run"), run_spec(), project=tmp_path)
    assert (tmp_path / "run" / "meta.json").read_text() == text


def test_warnings_and_errors_reach_log_txt_and_stop_with_the_run(tmp_path):
    import logging

    run = open_run(str(tmp_path / "run"), run_spec(), project=tmp_path)
    logging.getLogger("somebody.else").warning("careful %d", 7)
    run.close()
    logging.getLogger("somebody.else").warning("after")
    text = (tmp_path / "run" / "log.txt").read_text()
    assert "WARNING somebody.else: careful 7" in text
    assert "after" not in text


def test_a_result_that_belongs_to_a_shorter_run_does_not_count_as_done(tmp_path):
    run = open_run(str(tmp_path / "run"), run_spec(max_steps=5), project=tmp_path)
    write_result(run, {"status": "completed", "step": 5})
    run.close()
    done = reopen_run(tmp_path / "run", run_spec(max_steps=5))
    assert done.finished_result["step"] == 5
    done.close()
    longer = reopen_run(tmp_path / "run", run_spec(max_steps=9))
    assert longer.finished_result is None
    assert not (tmp_path / "run" / "result.json").exists()
    longer.close()
    assert read_meta(tmp_path / "run")["resumes"][-1]["result_before"]["step"] == 5


def _edited(run: Path, **changes) -> None:
    """Give a run's record other values, and its configuration another seed."""
    meta = json.loads((run / "meta.json").read_text())
    (run / "meta.json").write_text(json.dumps({**meta, **changes}))
    (run / "config.yaml").write_text("seed: 5\nkey: x\n")


@pytest.mark.parametrize(
    ("damage", "read", "told"),
    [
        (
            lambda run: (run / "result.json").write_text("[1]"),
            read_result,
            "result.json: damaged: it is no mapping; after `rm {run}/result.json` a resume writes",
        ),
        (
            lambda run: _edited(run),
            lambda run: unedited_config(run, read_meta(run), read_config(run), ()),
            "on the command line, as in: resume {run} seed=5",
        ),
        (
            lambda run: _edited(run, config_sha256=3),
            lambda run: unedited_config(run, read_meta(run), read_config(run), ()),
            "meta.json: damaged: its config_sha256 is no text",
        ),
        (
            lambda run: _edited(run, config=None),
            lambda run: unedited_config(run, read_meta(run), read_config(run), ()),
            "meta.json: damaged: it holds no configuration",
        ),
        (
            lambda run: None,
            lambda run: compose([], from_run=run),
            "config.yaml: damaged: it has no model",
        ),
        (
            lambda run: None,
            lambda run: plan_export(str(run), str(run / "out"), ExportSettings(), (), ()),
            "config.yaml: damaged: it has no dataset",
        ),
        (
            lambda run: None,
            lambda run: why_not_done(run, {"checkpoint": {"step": 7}}),
            "to train again from the start: rm {run}/result.json, and the same command",
        ),
        (
            lambda run: (run / "meta.json").rename(run / "thesis.tex"),
            lambda run: create_and_lock(str(run), name="n", signature="s"),
            "not a run directory and not empty (thesis.tex); nothing was changed. hydra.run.dir=DI",
        ),
        (
            lambda run: (
                [run.with_name(f"n_{n}").mkdir() for n in range(2, 4)]
                + [run.rename(run.with_name("n"))]
            ),
            lambda run: create_and_lock(str(run.with_name("{name}")), name="n", signature="s"),
            "4 runs of this name exist already; `python -m runner clean` shows what can",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_directory_that_is_damaged_or_no_ones_is_told_with_what_to_do(
    tmp_path, monkeypatch, damage, read, told
):
    monkeypatch.setattr(location, "MOST_RUNS_OF_A_NAME", 4)
    run = tmp_path / "run"
    open_run(str(run), run_spec(), project=tmp_path).close()
    damage(run)
    with pytest.raises(UserError) as refused:
        read(run)
    assert told.format(run=run) in str(refused.value)


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path, monkeypatch):
    def read_only(self, **_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(UserError, match="Read-only file system"):
        open_run(str(tmp_path / "run"), run_spec(), project=tmp_path)


def test_a_folder_that_cannot_be_written_is_reported_before_anything_is_created(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(location.os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(UserError, match="Permission denied"):
        check_writable(str(tmp_path / "outputs" / "{name}" / "{time}"))
    read_only = SimpleNamespace(f_flag=os.ST_RDONLY)
    monkeypatch.setattr(location.os, "statvfs", lambda path: read_only)
    with pytest.raises(UserError, match="Read-only file system"):
        check_writable(str(tmp_path / "outputs" / "{name}" / "{time}"))
    assert list(tmp_path.iterdir()) == []


def git(folder, *words):
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def test_commit_patch_and_untracked_files_of_the_project_are_kept(tmp_path):
    assert git_state(tmp_path) is None
    git(tmp_path, "init")
    (tmp_path / "a.py").write_text("one\n")
    assert git_state(tmp_path) == {"commit": None, "patch": "", "untracked": ["a.py"]}
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=n", "-c", "user.email=e", "commit", "-m", "first")
    (tmp_path / "a.py").write_text("two\n")
    (tmp_path / "b.py").write_text("new\n")
    state = git_state(tmp_path)
    assert len(state["commit"]) == 40
    assert "-one\n+two\n" in state["patch"]
    assert state["untracked"] == ["b.py"]


def test_provenance_is_json_and_names_versions_without_importing_them(tmp_path):
    found = json.loads(json.dumps(collect_provenance(tmp_path, ["python"])))
    assert found["versions"]["hydra-core"].startswith("1.3")
    assert found["command"] == ["python"]
    assert {"host", "python", "created", "cwd", "pid"} <= set(found)


@pytest.mark.parametrize("name", ["config.yaml", "meta.json"])
def test_a_full_disk_at_the_first_files_is_told_in_one_line(tmp_path, monkeypatch, name):
    def fsync(descriptor: int) -> None:
        if name in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(UserError, match="No space left on device; hydra"):
            open_run(str(tmp_path / "run"), run_spec(), project=tmp_path)
    open_run(str(tmp_path / "run"), run_spec(seed=1), project=tmp_path).close()


def fail(run, **result):
    write_result(run, {"status": "failed", "step": None, "error": "a mistake", **result})
    run.close()


def test_a_run_that_failed_before_its_first_update_makes_room_for_the_corrected_one(tmp_path):
    run = open_run(str(tmp_path / "run"), run_spec(), project=tmp_path)
    (run.dir / "data").mkdir()
    (run.dir / "data" / "learnt.json").write_text("{}")  # of data that was not the right one
    fail(run)
    again = open_run(str(tmp_path / "run"), run_spec(seed=1), project=tmp_path)
    assert not again.resumed and again.meta["resumes"] == []
    assert not (again.dir / "data").exists() and not (again.dir / "result.json").exists()
    again.close()
    assert read_config(again.dir)["seed"] == 1


@pytest.mark.parametrize("kept", ["metrics", "checkpoint", "step", "status"])
def test_a_run_that_has_anything_to_keep_is_not_replaced(tmp_path, kept):
    run = open_run(str(tmp_path / "run"), run_spec(), project=tmp_path)
    if kept == "metrics":
        run.metrics.append({"step": 1})
    if kept == "checkpoint":
        (run.dir / "checkpoints" / "step-1").mkdir(parents=True)
    more = {"step": {"step": 3}, "status": {"status": "interrupted"}}.get(kept, {})
    fail(run, **more)
    with pytest.raises(UserError, match="holds another run"):
        open_run(str(tmp_path / "run"), run_spec(seed=1), project=tmp_path)


def test_the_settings_of_an_earlier_signature_are_those_before_the_later_resumes():
    changed = [["rate", 1, 2]]
    meta = {
        "signature": "c",
        "identity": {"rate": 3, "added": 7},
        "resumes": [
            {"signature_before": "a", "changed": changed},
            {"command": []},  # with the same settings
            {"signature_before": "b", "changed": [["rate", 2, 3], ["added", None, 7]]},
            {"signature_before": "c", "changed": [["rate", 3, 9]], "refused": "does not fit"},
        ],
    }
    assert signed_settings_at(meta, "c") == {"rate": 3, "added": 7}
    assert signed_settings_at(meta, "b") == {"rate": 2, "added": None}
    assert signed_settings_at(meta, "a") == {"rate": 1, "added": None}


def test_code_of_the_users_own_is_recorded_and_a_resume_with_other_code_says_so(
    tmp_path, monkeypatch
):
    package = tmp_path / "code" / "ownmodels"
    package.mkdir(parents=True)
    for name in ("__init__.py", "net.py"):
        (package / name).write_text("one = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "code")
    spec = replace(run_spec(), own_packages=("ownmodels", "not_there"))
    open_run(str(tmp_path / "run"), spec, project=tmp_path).close()
    recorded = read_meta(tmp_path / "run")["own_code"]
    assert list(recorded) == ["ownmodels/__init__.py", "ownmodels/net.py"]
    assert recorded["ownmodels/net.py"] == hashlib.sha256(b"one = 1\n").hexdigest()[:12]
    assert changed_own_code(recorded) == []
    reopen_run(tmp_path / "run", spec).close()
    (package / "net.py").write_text("one = 2\n")
    (package / "more.py").write_text("")
    drift = list_drift(read_meta(tmp_path / "run"), {})
    assert "your code: ownmodels/more.py, ownmodels/net.py changed since" in drift
    done = RunDirectory("run", "0", frozenset(), None, {"status": "completed"}, own_code=recorded)
    unknown = replace(done, own_code={})
    assert drop_runs_of_other_code([done, unknown]) == [unknown]
    [note] = changed_code_note(read_meta(tmp_path / "run"))
    assert note.endswith("had before: ownmodels/more.py, ownmodels/net.py changed")
    run = reopen_run(tmp_path / "run", spec)
    assert [note.get("code_changed") for note in run.meta["resumes"]] == [
        None,
        ["ownmodels/more.py", "ownmodels/net.py"],
    ]
    assert changed_own_code(run.meta["own_code"]) == []
    assert changed_code_note(run.meta) == ()


def test_names_of_a_run_directory_import_nothing(tmp_path, monkeypatch):
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap" / "__init__.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert changed_own_code({"trap.inner/x.py": "0"}) == ["trap.inner/x.py"]
    assert list(own_code(["trap"])) == ["trap/__init__.py"]


def test_a_run_that_cannot_be_written_any_more_goes_on_as_a_copy(tmp_path):
    error = OSError(errno.EROFS, "Read-only file system")
    assert unwritable(tmp_path, error).endswith("hydra.run.dir=DIR puts it elsewhere")
    (tmp_path / "meta.json").write_text("{}")
    message = unwritable(tmp_path, error)
    assert message.endswith("system; a copy of the folder elsewhere can be resumed")


def test_a_name_that_no_folder_may_have_is_told(tmp_path):
    with pytest.raises(UserError, match="cannot write the run directory: File name too long"):
        check_writable(str(tmp_path / ("x" * 300)))


def test_commands_of_messages_take_folders_with_spaces(command):
    sweep = Path("a sweep ü")
    sweep.mkdir()
    (sweep / "study.db").touch()
    assert "`python -m runner resume 'a sweep ü'`" in command.refused("diff", str(sweep), "b")
    assert command("trainer.max_steps=3", "hydra.run.dir='a/ü run'")[0] == 0
    quoted = """loop=eval "run='a/ü run'"""
    assert f'{quoted}".' in command.refused("run='a/ü run'")
    assert f'{quoted}"`' in command.refused("resume", "a/ü run", "loop=eval")
    other = """checkpoint.init_from='a/ü run/checkpoints/step-N'"""
    assert f'"{other}"' in command.refused("resume", "a/ü run", "checkpoint.step=3")
    said = command.refused("trainer.max_steps=3", "seed=9", "hydra.run.dir='a/ü run'")
    assert "`python -m runner resume 'a/ü run' ...`" in said
