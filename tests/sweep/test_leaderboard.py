"""The leaderboard at the end of a sweep, against numbers worked out by hand."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest
from rich.console import Console

from runner.config.settings import LauncherSettings
from runner.reporting.report.leaderboard import STATUSES, rank_runs, write_leaderboard
from runner.reporting.report.records import RunRecord
from runner.reporting.report.terminal import show_leaderboard
from runner.sweep.database import TryResult
from runner.sweep.live_view import LiveView
from runner.sweep.plan import SweepJob, SweepPlan
from runner.sweep.run_index import Outcome, outcome_from_result
from runner.sweep.sweep_state import make_leaderboard


def job(lr, seed):
    signature = f"{crc32(f'{lr} {seed}'.encode()):08x}"
    return SweepJob(f"{lr}{seed}", signature, (), {"lr": lr, "seed": str(seed)}, seed)


def result(lr, seed, best=None, status="completed", error=None, **tests):
    metrics = {f"test/{name}": value for name, value in tests.items()}
    outcome = Outcome(status, error, best, 3 if best else None, metrics, 10, 1.25)
    return job(lr, seed), Path(f"folder-{lr}-{seed}"), outcome


def plan(results, direction="max"):
    jobs = tuple(job for job, _, _ in results)
    varying = tuple(dict.fromkeys(key for job in jobs for key in job.varying))
    return SweepPlan(jobs, "s", varying, LauncherSettings(), "validation/auc", direction, False)


RESULTS = [
    result("0.1", 1, 0.70, auc=0.6, loss=0.5),
    result("0.1", 2, 0.72, auc=0.7, loss=0.4),
    result("0.2", 1, 0.80, auc=0.8, loss=0.3),
    result("0.2", 2, None, "failed", "RuntimeError: [boom] no[/red]"),
    result("0.3", 1, 0.99, "interrupted"),
    result("0.3", 2, None, "waiting"),
]


def board(results, direction="max"):
    return make_leaderboard(plan(results, direction), results)


def text_of(results, width=200):
    console = Console(file=io.StringIO(), width=width)
    show_leaderboard(console, board(results), with_errors=True)
    return console.file.getvalue()


def order(results, direction):
    return [(r.settings["lr"], r.seed) for r in board(results, direction).runs]


def test_completed_jobs_come_first_in_the_metrics_direction():
    behind = [("0.3", 1), ("0.3", 2), ("0.2", 2)]
    assert order(RESULTS[::-1], "max") == [("0.2", 1), ("0.1", 2), ("0.1", 1), *behind]
    assert order(RESULTS, "min") == [("0.1", 1), ("0.1", 2), ("0.2", 1), *behind]


def test_there_is_one_order_of_statuses_whatever_the_metric_says():
    runs = [
        RunRecord(Path(status), status, status, metrics={"test/auc": place / 10})
        for place, status in enumerate(STATUSES)
    ]
    unknown = RunRecord(Path("x"), "x", "exploded", metrics={"test/auc": 1.0})
    ranked = [r.status for r in rank_runs([unknown, *reversed(runs)], "test/auc", "max")]
    assert ranked == [
        *("completed", "pruned", "running", "interrupted", "incomplete", "waiting", "failed"),
        "exploded",
    ]


def test_a_job_of_the_pareto_front_precedes_a_job_with_a_better_value():
    results = [result("0.1", 1, 0.9), result("0.2", 1, 0.5)]
    found = make_leaderboard(plan(results), results, {results[1][0].key})
    assert [r.settings["lr"] for r in found.runs] == ["0.2", "0.1"]


def test_a_metric_that_is_an_objective_has_one_column(tmp_path):
    found = make_leaderboard(replace(plan(RESULTS), metric="test/loss"), RESULTS)
    write_leaderboard(tmp_path, found)
    columns = (tmp_path / "leaderboard.csv").read_text().splitlines()[0].split(",")
    assert columns.count("test/loss") == columns.count("test/auc") == 1
    assert columns.index("test/loss") == columns.index("status") + 1


def test_losses_of_tasks_are_shown_after_named_metrics():
    tests = {"loss/click": 0.5, "auc": 0.6, "auc/click": 0.7, "log_loss/click": 0.4}
    shown = board([result("0.1", 1, 0.7, **tests)]).metrics
    assert shown == ("validation/auc", "test/auc", "test/auc/click", "test/log_loss/click")


def test_without_a_validation_the_metric_of_the_test_split_ranks(tmp_path):
    results = [result("0.1", 1, auc=0.6), result("0.2", 1, auc=0.8), result("0.3", 1)]
    assert order(results, "max") == [("0.2", 1), ("0.1", 1), ("0.3", 1)]
    write_leaderboard(tmp_path, board(results))
    assert "status,test/auc,best_step" in (tmp_path / "leaderboard.csv").read_text()


def test_values_that_a_tuner_found_are_columns(tmp_path):
    found = {"status": "completed", "metrics": {"tune/factor": 0.5, "tune/dense_lr": 0.01}}
    jobs = [(job("0.1", 1), Path("a"), outcome_from_result(found, plan(RESULTS)))]
    assert "tune/factor" in text_of(jobs) and "0.50000" in text_of(jobs)
    assert "validation/auc" not in text_of(jobs)  # no job measures it
    write_leaderboard(tmp_path, board(jobs))
    [row] = csv.DictReader((tmp_path / "leaderboard.csv").read_text().splitlines())
    assert (row["tune/factor"], row["tune/dense_lr"]) == ("0.5", "0.01")


def test_the_file_has_a_column_for_everything_that_differs(tmp_path):
    write_leaderboard(tmp_path, board(RESULTS))
    with (tmp_path / "leaderboard.csv").open() as file:
        found = {(row["lr"], row["seed"]): row for row in csv.DictReader(file)}
    assert found["0.1", "1"] == {
        **{"lr": "0.1", "seed": "1", "status": "completed", "validation/auc": "0.7"},
        **{"best_step": "3", "test/auc": "0.6", "test/loss": "0.5", "step": "10"},
        **{
            "seconds": "1.25",
            "error": "",
            "folder": "folder-0.1-1",
            "signature": job("0.1", 1).signature,
        },
    }
    assert found["0.2", "2"]["error"] == "RuntimeError: [boom] no[/red]"
    assert found["0.2", "2"]["validation/auc"] == ""


@pytest.mark.parity("N3")
def test_mean_and_spread_over_seeds_are_those_of_completed_jobs():
    text = text_of(RESULTS)
    below = text[text.index("over seeds") :]
    # by hand: (0.70 + 0.72) / 2, and the deviation of two numbers is their difference / sqrt(2)
    assert "0.71000 ± 0.014" in below
    assert "0.65000 ± 0.071" in below
    first, second = (line.split() for line in below.splitlines() if line.strip()[:2] == "0.")
    assert first[:5] == ["0.2", "1", "of", "2", "0.80000"], "one seed has failed"
    assert second[:2] == ["0.1", "2"]
    assert "0.99" not in below


def test_a_mean_over_seeds_says_of_how_many_it_is():
    """A diverged seed neither vanishes nor makes the mean of the others NaN."""
    lost, nan = result("0.1", 3, None, "failed", "all losses are NaN"), float("nan")
    undefined = [result("0.4", seed, 0.5, auc=value) for seed, value in enumerate((0.5, nan))]
    never = [result("0.5", seed, 0.4, auc=nan) for seed in (1, 2)]
    text = text_of([*RESULTS, lost, *undefined, *never])
    rows = text[text.index("over seeds") :].splitlines()
    cells = {line.split()[0]: " ".join(line.split()[1:]) for line in rows if line.strip()}
    assert cells["0.1"].startswith("2 of 3 0.71000 ± 0.014 0.65000 ± 0.071")
    assert cells["0.4"].startswith("2 0.50000 ± 0 0.50000 (1 of 2)")
    assert cells["0.5"].startswith("2 0.40000 ± 0 nan (0 of 2)")


def test_brackets_in_errors_are_shown_as_they_are():
    assert "RuntimeError: [boom] no[/red]" in text_of(RESULTS)


def test_on_a_narrow_terminal_numbers_are_left_out_before_they_are_cut():
    text = text_of(RESULTS, width=80)
    assert "…" not in "\n".join(line for line in text.splitlines() if "boom" not in line)
    assert max(map(len, text.splitlines())) <= 80
    assert "0.80000" in text


def test_only_the_best_and_some_failed_of_many_jobs_are_shown():
    results = [result(str(n), 1, n / 1000) for n in range(1, 200)]
    results += [result("x", n, None, "failed", f"broke {n}") for n in range(50)]
    text = text_of(results)
    assert "0.19900" in text
    assert "broke 0" in text
    assert "209 of 249 jobs are only in leaderboard.csv" in text
    assert len(text.splitlines()) < 50


def test_nan_and_infinity_in_a_result_are_numbers_again():
    content = {
        "status": "completed",
        "step": 5,
        "best": {"step": 3, "value": "NaN"},
        "metrics": {"test/auc": "Infinity", "train/loss": 1.0},
    }
    found = outcome_from_result(content, plan(RESULTS))
    assert (found.best, found.column_metrics, found.step) == (None, {"test/auc": float("inf")}, 5)
    without = {"status": "completed", "metrics": {"validation/auc": 0.5}, "active_s": 2.0}
    found = outcome_from_result(without, plan(RESULTS))
    assert (found.best, found.seconds) == (0.5, 2.0)


def test_the_live_view_counts_and_knows_the_best_and_the_time_left():
    jobs = [job("0.1", n) for n in range(4)]
    terminal = {"force_terminal": True, "_environ": {"TERM": "xterm"}}
    console = Console(file=io.StringIO(), width=120, **terminal)
    before = [(job("0.1", 9), Outcome("completed"))]
    waiting = [(j, Path(), Outcome("waiting")) for j in jobs]
    with LiveView(console, plan(waiting), before) as view:
        view.started(jobs[1], None)
        view.ended(jobs[1], TryResult("completed", 10.0), Outcome("completed", best=0.75))
        view.started(jobs[2], None)
        view.ended(jobs[2], TryResult("failed", 20.0, 1, "broke"), Outcome("failed", "broke"))
        view.started(jobs[3], None)
        view.refresh()
    text = console.file.getvalue()
    assert "1 running, 2 done, 1 failed, 0 waiting" in text
    assert "best so far 0.75 (lr=0.1 seed=1)" in text
    assert "about 0:15 left" in text
    assert "[3/4] failed lr=0.1 seed=2  20.0 s  broke" in text


def with_many_settings(number: int, *, value: float) -> tuple[SweepJob, Path, Outcome]:
    keys = ("model.net.embedding_dropout", "model.net.embedding_dim", "optimizer.dense.lr")
    varying = {key: f"{value / (place + 3):.6f}" for place, key in enumerate(keys)}
    made = SweepJob(f"{number}" * 64, f"{number}" * 64, (), varying)
    return made, Path(f"folder-{number}"), Outcome("completed", best=value, step=10)


def test_on_a_narrow_terminal_settings_fold_between_words_under_whole_headings():
    results = [with_many_settings(n, value=0.7 + n / 100) for n in (1, 2)]
    text = text_of(results, width=80)
    assert max(map(len, text.splitlines())) <= 80
    words = text.split()
    assert words[:2] == ["settings", "status"]
    assert {"net.embedding_dropout=0.240000", "net.embedding_dim=0.180000"} <= set(words)
    assert "net.embedding_dropout" in text_of(results, width=160).split()


@pytest.mark.parametrize("width", [20, 40])
def test_on_a_terminal_of_few_columns_neither_numbers_nor_settings_are_cut(width):
    text = text_of(RESULTS[:3], width)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert {"settings", "lr=0.1", "validation/auc", "0.80000", "completed"} <= set(text.split())


@pytest.mark.parametrize("is_dumb_terminal", [False, True])
def test_lines_of_a_sweep_say_the_settings_of_a_job_once(is_dumb_terminal):
    results = [with_many_settings(n, value=0.7 + n / 100) for n in (1, 2)]
    terminal = {"force_terminal": is_dumb_terminal, "_environ": {"TERM": "dumb"}}
    console = Console(file=io.StringIO(), width=120, **terminal)
    with LiveView(console, plan(results)) as view:
        for made, folder, outcome in results:
            view.started(made, folder)
            view.ended(made, TryResult("completed", 10.0), outcome)
    lines = console.file.getvalue().splitlines()
    assert lines[2].startswith("[1/2] started 22222222: net.embedding_dropout=0.240000")
    assert lines[3] == (
        "[2/2] completed 22222222  validation/auc 0.72  10.0 s  best so far 0.72 (22222222)"
    )


def test_a_job_of_many_settings_names_each_once_below_the_end_of_its_folders_name():
    keys = [f"optimizer.dense.setting_{number}" for number in range(8)]
    jobs = []
    for number in range(6):
        continuous = {key: f"{0.01 * number + 0.001 * i:g}" for i, key in enumerate(keys)}
        values = {**continuous, keys[0]: "same" if number < 4 else "other"}
        values["norm"] = "null" if number < 3 else "batch"
        signature = f"{crc32(str(number).encode()):08x}"
        folder = Path("_".join(f"setting-{v}" for v in values.values()) + f"_{signature}")
        outcome = Outcome("completed", None, 0.7, 3, {}, 10, 1.25)
        jobs.append((SweepJob(str(number), signature, (), values, 0), folder, outcome))
    console = Console(file=io.StringIO(), width=160)
    show_leaderboard(console, board(jobs), with_errors=True)
    text = console.file.getvalue()
    for job, _, _ in jobs:
        assert f"_{job.signature} " in text
        # what only half of the jobs or fewer have stands in each row
        assert text.count(f"dense.setting_3={job.varying[keys[3]]} ") == 1
    assert (text.count("norm=null"), text.count("norm=batch")) == (3, 3)
    assert text.count("dense.setting_0=other") == 2
    last = text.splitlines()[-1]
    assert last == "unless its row says otherwise, a run has dense.setting_0=same"
