"""`report`: the runs that it finds, what it says of broken ones, and its speed."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from runner.reporting.report import records
from runner.reporting.report.diff import compare_runs
from runner.reporting.report.find import find_runs
from runner.reporting.report.leaderboard import Leaderboard, rank_runs, write_leaderboard
from runner.reporting.report.overview import make_overview
from runner.reporting.report.records import read_run
from runner.rundir.lock import FolderLock
from tests.conftest import python
from tests.reporting.report.run_directories import forbid_reading, make_grid, make_run


def test_a_sweeps_page_stands_in_its_folder_and_shows_every_run(command, tmp_path):
    (make_grid(tmp_path / "grid") / "study.db").touch()
    code, out, _ = command("report", "grid")
    assert code == 0
    assert "12 runs: 12 completed" in out
    assert "0.71200 ± 0.001" in out
    page = (tmp_path / "grid" / "report.html").read_text()
    assert all(
        f"{o}-{r}-{s}" in page for o in ("adam", "sgd") for r in (0.001, 0.1) for s in (1, 2)
    )
    assert "http://" not in page.split("<script>")[0]  # nothing is loaded from elsewhere
    assert "<script src" not in page


def test_several_folders_make_a_page_only_where_it_is_asked_for(command, tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    assert "--html FILE" in command("report", "a", "b")[1]
    assert not list(tmp_path.rglob("*.html"))
    code, _, _ = command("report", "a", "b", "--html", "deep/both.html")
    assert code == 0
    assert (tmp_path / "deep" / "both.html").exists()


def test_a_page_replaces_no_pipe_device_or_link(command, tmp_path):
    make_run(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out").symlink_to("/proc/self/fd/1")  # as /dev/stdout
    before = {path: path.lstat().st_ino for path in tmp_path.iterdir()}
    for name, kind in (("pipe", "a pipe"), ("out", "a link"), ("a", "a directory")):
        code, out, err = command("report", "a", "--html", name)
        assert code == 2 and not out
        assert f"error: --html {name}: is {kind}, not a regular file; name another file" in err
    assert {path: path.lstat().st_ino for path in tmp_path.iterdir()} == before


def test_a_run_given_twice_is_one_run(command, tmp_path):
    make_run(tmp_path / "runs" / "a")
    make_run(tmp_path / "runs" / "b")
    (tmp_path / "runs" / "latest").symlink_to("a")
    assert "2 runs" in command("report", "runs", "runs/a")[1]


def test_a_long_metrics_name_stands_apart_from_its_value(command, tmp_path):
    identity = {"checkpoint.monitor.metric": "validation/normalized_entropy"}
    run = make_run(tmp_path / "run", identity=identity)
    result = json.loads((run / "result.json").read_text())
    result["metrics"]["validation/normalized_entropy"] = 0.75
    (run / "result.json").write_text(json.dumps(result))
    _, out, _ = command("report", "run")
    [line] = [line for line in out.splitlines() if line.startswith("validation/norm")]
    assert line.split() == ["validation/normalized_entropy", "0.75000"]
    [status] = [line for line in out.splitlines() if line.startswith("status")]
    assert status.index("completed") == line.index("0.75")


def test_a_narrow_terminal_cuts_no_word_of_a_setting_and_shows_no_null(
    command, tmp_path, monkeypatch
):
    for name, value in (("a", "validation/normalized_entropy"), ("b", "validation/log_loss")):
        identity = {"checkpoint.monitor.metric": value, "trainer.batch_size": len(value)}
        more = {"trainer.max_steps": None if name == "a" else 7}
        more |= {f"optimizer.dense.setting_{number}": len(value) for number in range(6)}
        make_run(tmp_path / "runs" / name, identity={**identity, **more})
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = command("report", "runs")
    words = {word for line in out.splitlines() for word in line.split()}
    assert {"monitor.metric=", "validation/normalized_entropy", "trainer.max_steps=7"} <= words
    assert "null" not in out and max(map(len, out.splitlines()[1:])) <= 80


def test_many_settings_are_told_once_and_each_run_by_its_folder_with_what_it_has_of_its_own(
    command, tmp_path
):
    for number in range(9):
        identity = {f"trainer.setting_{i}": i + (number == i) for i in range(9)}
        make_run(tmp_path / "runs" / f"run_{number}", identity=identity)
    _, out, _ = command("report", "runs")
    lines = [line.rstrip() for line in out.splitlines()]
    place = next(i for i, line in enumerate(lines) if line.startswith(" run_1 "))
    assert lines[place + 1] == "   trainer.setting_1=2"
    [told] = [line for line in lines if line.startswith("unless its row says otherwise")]
    assert "trainer.setting_0=0 trainer.setting_1=1" in told


def leaderboard(sweep: Path, *rows: str) -> None:
    sweep.mkdir()
    (sweep / "leaderboard.csv").write_text("\n".join(("folder,step", *rows)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "no such run directory"),
        (lambda p: p.write_text("x"), "is a file"),
        (lambda p: p.mkdir(), "no run directory, and none below it: it is empty"),
        (lambda p: (p.mkdir(), (p / "notes.txt").touch()), "it holds notes.txt"),
        (lambda p: (p.mkdir(), (p / "config.yaml").touch()), "ended before it had begun"),
        (lambda p: (p.mkdir(), (p / "study.db").touch()), "a sweep in which no job has begun"),
        (lambda p: leaderboard(p, "a,9", "b,9", "c,"), "folders are gone; the metrics of 2 are in"),
        (lambda p: (p.mkdir(), (p / "manifest.json").touch()), "is a checkpoint"),
        (lambda p: (p.mkdir(), (p / "meta.json").write_text("{")), "cannot be read"),
        (lambda p: (p.mkdir(), (p / "meta.json").write_text("{}")), "holds no signature"),
    ],
)
def test_what_is_no_run_is_named_in_the_error(command, tmp_path, make, message):
    make(tmp_path / "x")
    code, _, err = command("report", "x")
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_runs_are_shown_even_if_another_folder_holds_none(command, tmp_path):
    make_run(tmp_path / "good")
    code, out, _ = command("report", "good", "nowhere")
    assert code == 0
    assert "nowhere: no such run directory" in out
    assert "0.70000" in out


def test_runs_are_shown_even_if_a_folder_beside_them_cannot_be_read(command, tmp_path, monkeypatch):
    make_run(tmp_path / "runs" / "good")
    forbid_reading(monkeypatch, tmp_path / "runs" / "locked")
    code, out, _ = command("report", "runs")
    assert code == 0
    assert "runs/locked: cannot be read: Permission denied" in out
    assert "0.70000" in out


def write_rows(run: Path, rows: list[dict]) -> None:
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


LOG_LINE = "2026-11-23 17:43:30,740 {} runner.reporting.console: {}\n"
TRACEBACK = """Traceback (most recent call last):
  File "x.py", line 1, in f
RuntimeError: no luck
"""


def test_a_killed_run_is_shown_as_far_as_it_came(command, tmp_path):
    run = make_run(tmp_path / "half", status=None)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"split": "train", "st')  # torn by a kill
    (run / "log.txt").write_text(LOG_LINE.format("INFO", "validation  auc 0.7"))
    code, out, _ = command("report", "half")
    assert code == 0
    assert "incomplete" in out
    assert "INFO" not in out
    assert "it was killed: there is no result; `python -m runner resume half` goes on" in out
    assert "0.70000" in out  # of its last evaluation
    assert "0.50000" in out  # the loss of its last train row
    assert "train/lr" not in out


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (LOG_LINE.format("INFO", "on") + LOG_LINE.format("ERROR", "no disk"), "no disk"),
        (LOG_LINE.format("ERROR", "failed") + TRACEBACK, "RuntimeError: no luck"),
        (TRACEBACK + "Compile with this\nand that\n", "RuntimeError: no luck"),
        ("validation  auc 0.7\n\x1b[31merror: no disk\x1b[0m\n", "no disk"),
        (TRACEBACK + LOG_LINE.format("INFO", "resumed"), None),
        (LOG_LINE.format("WARNING", "slow") + "of two lines\n", None),
        ("validation  auc 0.7\n", None),
    ],
)
def test_a_killed_run_has_the_error_with_which_its_log_ends(tmp_path, log, error):
    run = make_run(tmp_path / "r", status=None)
    (run / "log.txt").write_text(log)
    found = read_run(run, "r").error
    assert found == error or (error is None and found.startswith("it was killed"))


@pytest.mark.parametrize(("direction", "best"), [("max", 20), ("min", 10)])
def test_a_run_without_a_result_has_its_best_validation_and_the_last_row_of_others(
    tmp_path, direction, best
):
    monitor = {
        "checkpoint.monitor.metric": "validation/x",
        "checkpoint.monitor.direction": direction,
    }
    run = make_run(tmp_path / "r", status=None, identity=monitor)
    values = {5: "NaN", 10: 0.3, 20: 0.6, 30: 0.4, 40: "NaN"}
    rows = [{"split": "validation", "step": n, "x": x, "loss": n} for n, x in values.items()]
    rows += [{"split": "train", "step": n, "examples": 2 * n, "loss": n} for n in (30, 50)]
    rows.insert(-1, {"split": "weights", "step": 50, "norm": 1.0})  # of a callback
    write_rows(run, rows)
    found = read_run(run, "r")
    expected = {"validation/x": values[best], "validation/loss": best, "train/loss": 50}
    assert (found.metrics, found.best_step, found.step) == (expected, best, 50)
    assert found.examples == 100


def test_a_failed_run_has_the_validation_that_its_result_lacks(command, tmp_path):
    """One that ended with an error has no metrics, one after NaNs those of the training only."""
    for name, metrics in (("error", {}), ("nan", {"train/loss": "NaN"})):
        run = make_run(tmp_path / name, status="failed", error="RuntimeError: no luck")
        result = json.loads((run / "result.json").read_text())
        (run / "result.json").write_text(
            json.dumps({**result, "metrics": metrics, "best": metrics and {"step": 20}})
        )
        rows = [{"split": "train", "step": 40, "loss": 0.25}]
        for step, auc in ((20, 0.61), (40, "NaN")):
            rows.append({"split": "validation", "step": step, "auc": auc, "loss": 0.5})
        write_rows(run, rows)
        out = command("report", name)[1]
        assert "no metrics" not in out
        assert re.search("validation/auc +0.61000\nbest at update +20\n", out)
    assert read_run(tmp_path / "error", "error").metrics["train/loss"] == 0.25
    assert str(read_run(run, name).metrics["train/loss"]) == "nan"


def test_only_runs_without_a_result_read_their_whole_log(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(records, "read_logged_metrics", lambda *given: read.append(given))
    for status in ("completed", "interrupted", "pruned"):
        read_run(make_run(tmp_path / status, status=status), status)
    assert not read


def test_a_run_that_is_being_written_is_running(tmp_path):
    run = make_run(tmp_path / "r", status=None)
    lock = FolderLock(run)
    try:
        assert find_runs([run]).runs[0].status == "running"
    finally:
        lock.release()
    assert find_runs([run]).runs[0].status == "incomplete"


def test_unfinished_and_failed_runs_are_shown_without_a_finished_one(command, tmp_path):
    make_run(tmp_path / "runs" / "a", status="failed", error="x\nRuntimeError: no luck", auc=None)
    make_run(tmp_path / "runs" / "b", status=None)
    code, out, _ = command("report", "runs", "--html", "x.html")
    assert code == 0
    assert "no run is finished" in out
    assert "failed: a: RuntimeError: no luck" in out
    assert "RuntimeError: no luck" in (tmp_path / "x.html").read_text()


def test_a_damaged_result_is_reported_and_the_rest_is_shown(command, tmp_path):
    run = make_run(tmp_path / "r")
    (run / "result.json").write_text('{"status": "comp')
    code, out, _ = command("report", "r")
    assert code == 0
    assert "result.json: cannot be read" in out


def test_the_leaderboard_gives_the_error_of_a_job_that_could_not_record_it(command, tmp_path):
    sweep = tmp_path / "sweep"
    make_run(sweep / "good")
    make_run(sweep / "killed", status=None)
    (sweep / "early").mkdir()
    (sweep / "early" / "job.log").write_text("no column 'label'\n")
    with (sweep / "leaderboard.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["folder", "status", "error"])
        out.writerow(["killed", "failed", "killed by signal 9: out of memory"])
    code, text, _ = command("report", "sweep")
    assert code == 0
    assert "killed by signal 9: out of memory" in text
    assert "early: no column 'label'" in text
    assert "1 completed, 2 failed" in text


def test_a_completed_job_whose_files_are_gone_is_not_called_completed(command, tmp_path):
    make_run(tmp_path / "sweep" / "whole")
    for name in ("emptied", "debug"):
        (tmp_path / "sweep" / name).mkdir()
        (tmp_path / "sweep" / name / "job.log").touch()
    (tmp_path / "sweep" / "leaderboard.csv").write_text(
        "lr,seed,status,validation/auc,step,folder\n0.1,1,completed,0.7,40,whole\n"
        "0.2,1,completed,0.8,40,emptied\n0.2,2,completed,,,debug\n"
    )
    _, out, _ = command("report", "sweep")
    assert "emptied: its files are gone; `python -m runner resume sweep` runs it again" in out
    assert "3 runs: 2 completed, 1 incomplete" in out
    groups = make_overview(find_runs([tmp_path / "sweep"]), "x").board.seed_groups
    assert [[run.label for run in group.runs] for group in groups] == [["whole"]]


def test_a_search_is_judged_by_its_own_objective_and_pruned_jobs_are_no_failures(command, tmp_path):
    sweep = tmp_path / "sweep"
    make_run(sweep / "a", auc=0.7)
    make_run(sweep / "b", auc=0.8)
    make_run(sweep / "c", auc=0.6, status="interrupted", error="stopped")
    (sweep / "leaderboard.csv").write_text(
        "lr,seed,status,test/auc,step,error,folder\n1,0,pruned,,10,stopped,c\n"
    )
    out = command("report", "sweep")[1]
    assert "2 completed, 1 pruned" in out
    assert "pruned: c" not in out
    assert "judged by test/auc" in (sweep / "report.html").read_text()


def test_runs_without_rows_and_checkpoints_are_not_called_identical(tmp_path):
    folders = [make_run(tmp_path / name, status=None, num_rows=0) for name in ("a", "b")]
    comparison = compare_runs(*folders)
    assert not comparison.is_identical
    assert comparison.different == (
        "neither has a row of metrics or a checkpoint that could be compared",
    )


def test_rows_of_callbacks_hide_no_difference_between_runs_that_were_made_longer(tmp_path):
    folders = [make_run(tmp_path / name, num_rows=0) for name in ("a", "b")]
    for folder, loss in zip(folders, (0.5, 0.6)):
        meta = json.loads((folder / "meta.json").read_text())
        meta["resumes"] = [{"changed": {"trainer.max_steps": [10, 20]}}]
        (folder / "meta.json").write_text(json.dumps(meta))
        of_split = {"split": "validation", "step": 10}
        rows = [of_split | {"loss": loss}, of_split | {"coverage": 0.9}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    comparison = compare_runs(*folders)
    assert comparison.different == (
        "metrics.jsonl: differs first at step 10 (validation/loss: 0.5 and 0.6)",
    )


@pytest.mark.parametrize(("direction", "best"), [("max", "b"), ("min", "a")])
def test_a_search_for_a_metric_of_ones_own_is_ranked_in_the_direction_of_the_search(
    command, tmp_path, direction, best
):
    for name, value in (("a", 0.1), ("b", 0.9), ("c", 0.5)):
        run = make_run(tmp_path / "sweep" / name, identity={"lr": value})
        text = (run / "result.json").read_text()
        (run / "result.json").write_text(text.replace('"train/loss": 0.5', f'"test/own": {value}'))
    runs = find_runs([tmp_path / "sweep"]).runs
    ranked, monitor = tuple(rank_runs(runs, "test/own", direction)), ("test/own", direction)
    write_leaderboard(tmp_path / "sweep", Leaderboard(ranked, (), {}, monitor, ()))
    overview = make_overview(find_runs([tmp_path / "sweep"]), "sweep")
    assert overview.board.monitor == ("test/own", direction)
    assert overview.board.runs[0].label == best


def test_links_lead_to_runs_whatever_their_names(command, tmp_path):
    names = ("a", "50% #1?", "12:30")
    for name in names:
        make_run(tmp_path / "runs" / name, status="failed", error="x")
        (tmp_path / "runs" / name / "log.txt").touch()
    assert command("report", "runs", "--html", "all.html")[0] == 0
    links = re.findall(r'<td[^>]*><a href="([^"]+)"', (tmp_path / "all.html").read_text())
    leads = {urlsplit(urljoin(f"{tmp_path.as_uri()}/all.html", link)) for link in links}
    assert {Path(unquote(url.path)) for url in leads} == {
        tmp_path / "runs" / name / file for name in names for file in ("", "log.txt")
    }
    assert not any(url.query or url.fragment for url in leads)


def test_markup_in_errors_and_overrides_stays_text(command, tmp_path):
    error = "</script><b>[bold]x \x1b]0;title\x07"
    make_run(tmp_path / "r" / "a", status="failed", error=error, auc=None)
    make_run(tmp_path / "r" / "b", overrides=["+x=</script><img>"])
    _, out, _ = command("report", "r", "--html", "x.html")
    assert "[bold]x" in out and "\x1b" not in out and "?]0;title" in out
    page = (tmp_path / "x.html").read_text()
    assert "<img>" not in page
    assert "<b>[bold]" not in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report"], "report DIR..."),
        (["report", "r", "--htm", "x"], "--htm: no such flag; nearest: '--html'"),
        (["report", "r", "--sort"], "--sort: needs a value"),
        (["report", "r", "s", "--sort", "test/auk"], "nearest: 'test/auc'"),
        (["report", "r", "s", "--sort", "auc"], "nearest: 'test/auc', 'validation/auc'"),
        (["report", "r", "s", "--sort", "nope"], "such as validation/auc, a setting, or status,"),
    ],
)
def test_mistakes_in_the_command_are_reported(command, tmp_path, words, message):
    make_run(tmp_path / "r")
    make_run(tmp_path / "s")
    assert message in command.refused(*words)


@pytest.mark.parametrize("left_out", ["split", "rows", "name"])
def test_an_importance_without_all_its_values_is_none(command, tmp_path, left_out):
    make_run(tmp_path / "r")
    feature = {"name": "a", "kind": "number", "permuted": 0.1}
    facts = {"features": [feature], "metric": "auc", "split": "test", "rows": 9}
    for node in (facts, feature):
        node.pop(left_out, None)
    (tmp_path / "r" / "importance.json").write_text(json.dumps(facts))
    assert command("report", "r")[0] == 0


def test_a_folder_that_is_named_twice_counts_once(command, tmp_path):
    make_run(tmp_path / "r")
    _, out, err = command("report", "r", "r/")
    assert "note" not in out + err


def test_one_run_is_told_in_the_singular(command, tmp_path):
    sweep = tmp_path / "sweep"
    make_run(sweep / "a", status="interrupted")
    (sweep / "leaderboard.csv").write_text("lr,seed,status,test/auc,step,error,folder\n")
    assert command("report", "sweep")[1].splitlines()[-2] == "1 run: 1 interrupted"
    (sweep / "early").mkdir()
    (sweep / "early" / "job.log").write_text("no column 'label'\n")
    out = command("report", "sweep")[1]
    assert "1 ended before it had begun: it has no meta.json" in out
    assert "2 runs: 1 interrupted, 1 failed" in out


def test_a_page_that_cannot_be_written_is_reported(command, tmp_path):
    make_run(tmp_path / "r")
    (tmp_path / "file").touch()
    code, _, err = command("report", "r", "--html", "file/x.html")
    assert code == 2
    assert "cannot be written" in err and "--html FILE names another place" in err


@pytest.mark.long
def test_a_thousand_runs_take_seconds_and_no_torch(tmp_path):
    for number in range(1000):
        run = make_run(
            tmp_path / "runs" / f"r{number:04}",
            identity={"optimizer.dense.lr": 10.0 ** -(number % 5), "width": number % 7},
            seed=number % 3,
            auc=0.5 + (number * 37 % 100) / 250,
            num_rows=100,
        )
        result = json.loads((run / "result.json").read_text())
        result["metrics"] |= {f"test/m{n}": number / (n + 3) for n in range(20)}
        (run / "result.json").write_text(json.dumps(result))
    program = (
        "import sys; from runner.__main__ import main; "
        "code = main(sys.argv[1:]); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = python("-c", program, "report", "runs", "--html", "x.html", cwd=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert "1,000 runs: 1,000 completed" in done.stdout
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert seconds < 5  # of the processor, which others may share; about 1
    assert (tmp_path / "x.html").stat().st_size < 6_000_000
    assert "further metrics are in the result.json" in (tmp_path / "x.html").read_text()


def test_a_finished_run_has_its_page_unless_it_wants_none(command, tmp_path):
    assert command("trainer.max_steps=3", "hydra.run.dir=with")[0] == 0
    assert "made" not in os.listdir(tmp_path)
    assert (tmp_path / "with" / "report.html").exists()
    assert command("trainer.max_steps=4", "report=false", "hydra.run.dir=without")[0] == 0
    assert not (tmp_path / "without" / "report.html").exists()
    metas = [json.loads((tmp_path / r / "meta.json").read_text()) for r in ("with", "without")]
    assert "report" not in metas[0]["identity"]


def test_a_job_of_a_sweep_leaves_the_page_to_the_sweep(command, tmp_path, monkeypatch):
    monkeypatch.setenv("RUNNER_SWEEP", "some")
    assert command("trainer.max_steps=3", "hydra.run.dir=job")[0] == 0
    assert not (tmp_path / "job" / "report.html").exists()
