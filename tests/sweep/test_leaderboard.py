"""The tables at the end, against numbers worked out by hand."""

import csv
import io

from rich.console import Console

from runner.sweep.database import TryResult
from runner.sweep.leaderboard import (
    LeaderboardRow,
    format_mean_std,
    rank_rows,
    show_leaderboard,
    write_csv,
)
from runner.sweep.live_view import LiveView
from runner.sweep.plan import SweepJob, SweepPlan
from runner.sweep.run_index import Outcome, outcome_from_result
from runner.sweep.settings import LauncherSettings


def job(lr, seed):
    return SweepJob(f"{lr}{seed}", "0" * 8, (), {"lr": lr, "seed": str(seed)}, seed)


def row(lr, seed, best=None, status="completed", error=None, **tests):
    metrics = {f"test/{name}": value for name, value in tests.items()}
    outcome = Outcome(status, error, best, 3 if best else None, metrics, 10, 1.25)
    return LeaderboardRow(job(lr, seed), f"folder-{lr}-{seed}", outcome)


def plan(rows, direction="max"):
    jobs = tuple(r.job for r in rows)
    return SweepPlan(
        jobs, "s", ("lr", "seed"), LauncherSettings(), "validation/auc", direction, False
    )


ROWS = [
    row("0.1", 1, 0.70, auc=0.6, loss=0.5),
    row("0.1", 2, 0.72, auc=0.7, loss=0.4),
    row("0.2", 1, 0.80, auc=0.8, loss=0.3),
    row("0.2", 2, None, "failed", "RuntimeError: [boom] no[/red]"),
    row("0.3", 1, 0.99, "interrupted"),
    row("0.3", 2, None, "waiting"),
]


def text_of(rows, width=200, direction="max"):
    console = Console(file=io.StringIO(), width=width)
    show_leaderboard(console, rows, plan(rows, direction))
    return console.file.getvalue()


def test_completed_jobs_come_first_in_the_metrics_direction():
    order = [(r.job.varying["lr"], r.job.seed) for r in rank_rows(reversed(ROWS), "max")]
    assert order == [("0.2", 1), ("0.1", 2), ("0.1", 1), ("0.3", 1), ("0.3", 2), ("0.2", 2)]
    order = [(r.job.varying["lr"], r.job.seed) for r in rank_rows(ROWS, "min")]
    assert order == [("0.1", 1), ("0.1", 2), ("0.2", 1), ("0.3", 1), ("0.3", 2), ("0.2", 2)]


def test_the_file_has_a_column_for_everything_that_differs(tmp_path):
    write_csv(tmp_path / "l.csv", ROWS, plan(ROWS))
    with (tmp_path / "l.csv").open() as file:
        found = list(csv.DictReader(file))
    assert found[0] == {
        **{"lr": "0.1", "seed": "1", "status": "completed", "validation/auc": "0.7"},
        **{"best_step": "3", "test/auc": "0.6", "test/loss": "0.5", "step": "10"},
        **{"seconds": "1.25", "error": "", "folder": "folder-0.1-1", "signature": "00000000"},
    }
    assert found[3]["error"] == "RuntimeError: [boom] no[/red]"
    assert found[3]["validation/auc"] == ""


def test_mean_and_spread_over_seeds_are_those_of_completed_jobs():
    text = text_of(ROWS)
    below = text[text.index("over seeds") :]
    # by hand: (0.70 + 0.72) / 2, and the deviation of two numbers is their difference / sqrt(2)
    assert "0.71000 ± 0.014" in below
    assert "0.65000 ± 0.071" in below
    first, second = (line.split() for line in below.splitlines() if line.strip()[:2] == "0.")
    assert first[:3] == ["0.2", "1", "0.80000"]
    assert second[:2] == ["0.1", "2"]
    assert "0.99" not in below
    assert format_mean_std([]) == format_mean_std([None]) == ""


def test_brackets_in_errors_are_shown_as_they_are():
    assert "RuntimeError: [boom] no[/red]" in text_of(ROWS)


def test_on_a_narrow_terminal_numbers_are_left_out_before_they_are_cut():
    text = text_of(ROWS, width=80)
    assert "…" not in "\n".join(line for line in text.splitlines() if "boom" not in line)
    assert max(map(len, text.splitlines())) <= 80
    assert "0.80000" in text


def test_of_many_jobs_the_best_and_the_failed_are_shown():
    rows = [row(str(n), 1, n / 1000) for n in range(1, 200)]
    rows += [row("x", n, None, "failed", f"broke {n}") for n in range(50)]
    text = text_of(rank_rows(rows, "max"))
    assert "0.19900" in text
    assert "broke 0" in text
    assert "219 of 249 jobs are only in leaderboard.csv" in text
    assert len(text.splitlines()) < 50


def test_what_json_writes_as_text_is_a_number_again():
    result = {
        "status": "completed",
        "step": 5,
        "best": {"step": 3, "value": "NaN"},
        "metrics": {"test/auc": "Infinity", "train/loss": 1.0},
    }
    found = outcome_from_result(result, plan(ROWS))
    assert (found.best, found.metrics, found.step) == (None, {"test/auc": float("inf")}, 5)
    without = {"status": "completed", "metrics": {"validation/auc": 0.5}, "active_s": 2.0}
    found = outcome_from_result(without, plan(ROWS))
    assert (found.best, found.seconds) == (0.5, 2.0)


def test_the_live_view_counts_and_knows_the_best_and_the_time_left():
    jobs = [job("0.1", n) for n in range(4)]
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    before = [(job("0.1", 9), Outcome("completed"))]
    waiting = [LeaderboardRow(j, "", Outcome("waiting")) for j in jobs]
    with LiveView(console, plan(waiting), before) as board:
        board.started(jobs[1], None)
        board.ended(jobs[1], TryResult("completed", 10.0), Outcome("completed", best=0.75))
        board.started(jobs[2], None)
        board.ended(jobs[2], TryResult("failed", 20.0, 1, "broke"), Outcome("failed", "broke"))
        board.started(jobs[3], None)
        board.refresh()
    text = console.file.getvalue()
    assert "1 running, 2 done, 1 failed, 0 waiting" in text
    assert "best so far 0.75 (lr=0.1 seed=1)" in text
    assert "about 15 s left" in text
    assert "[3/4] failed lr=0.1 seed=2  20.0 s  broke" in text
