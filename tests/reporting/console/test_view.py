"""The view on a terminal, in a file, and after its reader has gone."""

from __future__ import annotations

import io
import logging
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.errors import wrap_words
from runner.reporting.console import View
from runner.reporting.console.format import (
    TextTable,
    fit_to_width,
    format_duration,
    format_number,
    format_speed,
    result_table,
    result_tables,
)
from runner.reporting.console.view import REFRESH_EVERY_S

EVALUATION = {
    "loss": 0.48213,
    "auc": 0.78123,
    "log_loss": 0.48213,
    "normalized_entropy": 0.8651,
    "calibration": 1.0002,
    "pr_auc": 0.67452,
    "accuracy": 0.78451,
}
SPEED = {"examples_per_s": 98123.4, "updates_per_s": 20.0}


def terminal_output(use: Callable[[View], None], monkeypatch, columns: int = 80) -> str:
    """Return everything that a terminal of so many columns receives."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    master, slave = os.openpty()
    with os.fdopen(slave, "w", encoding="utf-8") as stream:
        reader = subprocess.Popen(["cat"], stdin=master, stdout=subprocess.PIPE, stderr=-3)
        use(View(stream))
    os.close(master)
    return reader.communicate(timeout=20)[0].decode().replace("\r\n", "\n")


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n")


def plain_output(use: Callable[[View], None]) -> str:
    stream = io.StringIO()
    use(View(stream))
    return stream.getvalue()


def a_short_training(view: View) -> None:
    with view.training(820):
        for step in range(301, 401):
            view.step(step)
        view.log(400, {"loss": 0.48213, "auc": 0.78123}, SPEED)
        view.log_evaluation("validation", 400, EVALUATION, best=True)


def test_a_notebook_has_one_bar_that_is_redrawn_above_its_evaluations(monkeypatch):
    shown: list[tuple[dict[str, str], str, bool]] = []
    kernel = SimpleNamespace(OutStream=type("OutStream", (io.StringIO,), {}))
    display = SimpleNamespace(
        publish_display_data=lambda data, transient, update: shown.append(
            (data, transient["display_id"], update)
        )
    )
    monkeypatch.setitem(sys.modules, "ipykernel.iostream", kernel)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    stream = kernel.OutStream()
    a_short_training(View(stream))
    assert [update for _, _, update in shown] == [False] + [True] * (len(shown) - 1)
    assert len({display_id for _, display_id, _ in shown}) == 1
    assert 'value="301" max="820"' in shown[0][0]["text/html"]
    assert shown[-2][0]["text/plain"] == "train  400/820  loss 0.48213  98,123 ex/s  0:21 left"
    assert shown[-1][0] == {"text/plain": "", "text/html": ""}
    lines = stream.getvalue().splitlines()
    assert lines[0] == "validation at step 400 (best so far)"
    assert len(lines) <= 4
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in stream.getvalue()


def test_without_a_terminal_each_log_point_and_evaluation_is_a_plain_line():
    lines = plain_output(a_short_training).splitlines()
    assert lines == [
        "train  step 400/820  loss 0.48213  auc 0.78123  98,123 ex/s  20.0 updates/s  0:21 left",
        "validation  step 400/820  loss 0.48213  auc 0.78123  log_loss 0.48213  "
        "normalized_entropy 0.86510  calibration 1.00020  pr_auc 0.67452  accuracy 0.78451 "
        "(best so far)",
    ]


def test_what_takes_a_while_after_the_last_evaluation_is_said(monkeypatch):
    assert plain_output(lambda view: view.wait_for("logistic regression")) == (
        "logistic regression ...\n"
    )
    shown = without_colours(
        terminal_output(lambda view: view.wait_for("logistic regression"), monkeypatch)
    )
    assert "logistic regression ━" in shown


def test_several_tasks_are_a_table_in_a_pipe_too_and_log_txt_has_every_number(caplog):
    tasks = {f"{k}/{t}": v for t in ("click", "buy") for k, v in EVALUATION.items()}

    def use(view: View) -> None:
        view.set_total_steps(820)
        view.log(400, {"loss": 0.48213, "loss/click": 0.25, "loss/buy": 0.23})
        view.log_evaluation("validation", 400, tasks | EVALUATION, best=True)

    with caplog.at_level(logging.INFO):
        lines = plain_output(use).splitlines()
    assert lines[0] == "train  step 400/820  loss 0.48213"
    assert lines[1] == "validation at step 400 (best so far)"
    assert [line.split()[0] for line in lines[2:]] == ["loss", "all", "click", "buy"]
    assert max(map(len, lines)) <= 100
    assert "loss/click 0.25000" in caplog.messages[0]
    assert "auc/buy 0.78123" in caplog.messages[1]


def test_the_result_of_several_tasks_has_a_row_for_each_with_what_it_is_compared_to():
    tables = result_tables(
        {"test/auc": 0.65, "test/auc/click": 0.7, "test/auc/buy": 0.6, "train/loss": 0.1},
        {"test": {"auc/click": 0.9}},
        {"name": "the mean", "metrics": {"test/auc": 0.5, "test/auc/buy": 0.5}},
    )
    assert tables["train"].rows == [["", "0.10000"]]
    assert tables["test"].header == ["", "auc"]
    assert tables["test"].rows == [
        ["all", "0.65000"],
        ["  the mean", "0.50000"],
        ["click", "0.70000"],
        ["  reachable", "0.90000"],
        ["buy", "0.60000"],
        ["  the mean", "0.50000"],
    ]


def test_a_terminal_shows_a_bar_with_loss_speed_and_time_left(monkeypatch):
    text = without_colours(terminal_output(a_short_training, monkeypatch))
    bars = [line for line in text.splitlines() if "━" in line]
    assert any(
        line.rstrip().endswith("400/820  loss 0.48213  98,123 ex/s  0:21 left")
        and line.startswith("train ━")
        for line in bars
    )


@pytest.mark.parametrize("columns", [56, 80, 120])
def test_no_line_on_a_terminal_is_wider_than_it(monkeypatch, columns):
    def use(view: View) -> None:
        a_short_training(view)
        view.log_evaluation(
            "test", 820, EVALUATION | {f"{k}/buy": v for k, v in EVALUATION.items()}
        )
        finish(view)

    lines = without_colours(terminal_output(use, monkeypatch, columns)).splitlines()
    assert max(map(len, lines)) <= columns
    assert all(format_number(value) in "\n".join(lines) for value in EVALUATION.values())


def finish(view: View, status: str = "completed") -> None:
    view.show_result(
        {f"{split}/{k}": v for split in ("train", "test") for k, v in EVALUATION.items()},
        status=status,
        step=820,
        active_s=58.2,
        best={"step": 800, "value": 0.78},
        evaluated_step=800,
        reachable={split: {"auc": 0.8, "log_loss": 0.47} for split in ("train", "test")},
    )


def test_a_terminal_gets_its_cursor_back_even_if_the_run_is_killed_later(monkeypatch):
    text = terminal_output(a_short_training, monkeypatch)
    before_the_end = text[: text.index("400/820  loss")]
    assert before_the_end.rindex("\x1b[?25h") > before_the_end.rindex("\x1b[?25l")


def test_the_result_shows_the_reachable_values_and_the_share_of_the_gain():
    lines = plain_output(finish).splitlines()
    assert lines[0] == "completed at step 820 in 0:58; best at step 800"
    assert lines[-1] == "evaluated with the weights of step 800, the best"
    cells = {line[2:20].strip(): line[20:].split() for line in lines[1:-1]}
    assert cells["metric"] == ["train", "test", "reachable"]
    assert cells["auc"] == ["0.78123", "0.78123", "0.80000"]
    assert cells["auc gain reached"] == ["93.7%"]  # 0.28123 / 0.3
    assert cells["log_loss"] == ["0.48213", "0.48213", "0.47000"]
    assert cells["accuracy"] == ["0.78451", "0.78451"]


def test_an_interrupted_run_says_how_to_resume_it():
    def use(view: View) -> None:
        view.show_result({}, status="interrupted", step=7, directory=Path("outputs/a b"))

    assert plain_output(use).splitlines() == [
        "interrupted at step 7",
        "run directory: outputs/a b",
        "go on with: python -m runner resume 'outputs/a b'",
    ]


def test_a_narrow_table_folds_its_headers_or_is_transposed():
    table = TextTable(["", "auc", "log_loss"], [["click", "0.1", "0.2"], ["buy", "0.3", "0.4"]])
    assert fit_to_width(table, 80).lines() == [
        "       auc  log_loss",
        "click  0.1       0.2",
        "buy    0.3       0.4",
    ]
    assert fit_to_width(table, 17).lines() == [
        "             log",
        "       auc  loss",
        "click  0.1   0.2",
        "buy    0.3   0.4",
    ]
    wide = TextTable(["", *(f"m{i}" for i in range(9))], [["", *"123456789"]])
    assert fit_to_width(wide, 8).lines()[1] == "m0  1"


def test_gain_is_shown_per_task_and_only_where_it_is_known():
    table = result_table(
        {"test/auc/click": 0.7, "test/auc/buy": 0.6, "test/loss": 0.1}, {"test": {"auc/click": 0.9}}
    )
    assert table.rows[1] == ["auc/click gain reached", "50.0%", ""]
    undefined = {"test/auc/click": math.nan, "test/loss": 0.1}  # of labels that are all alike
    rows = result_table(undefined, {"test": {"auc/click": 0.9}}).rows
    assert [row[0] for row in rows] == ["auc/click", "loss"]
    assert [row[0] for row in table.rows] == [
        "auc/click",
        "auc/click gain reached",
        "auc/buy",
        "loss",
    ]


def test_a_train_loss_of_another_scale_has_a_row_of_its_own():
    metrics = {"train/loss": 481.0, "validation/loss": 5.25, "test/loss": 5.5, "test/mrr": 0.25}
    assert result_table(metrics, {}).rows == [
        ["loss", "", "5.25000", "5.50000"],
        ["loss of the train rows", "481.00000", "", ""],
        ["mrr", "", "", "0.25000"],
    ]
    overfitted = {"train/loss": 0.01, "validation/loss": 0.5, "test/loss": 0.5}
    assert [row[0] for row in result_table(overfitted, {}).rows] == ["loss"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.781234, "0.78123"),
        (0.0, "0.00000"),
        (0.00012345, "1.2345e-04"),
        (12.5, "12.50000"),
        (12345.678, "12,345.68"),
        (-0.5, "-0.50000"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0:00"), (0.42, "0.4 s"), (1, "0:01"), (34.4, "0:34")),
        *((725, "12:05"), (3723, "1:02:03"), (176523, "2d 1:02:03")),
    ],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("speed", "text"),
    [
        ((6883.4, 6883.4, 1.68049), "6,883 ex/s  1.68 updates/s"),
        ((2421.0, 1210.5, 40.35), "2,421 ex/s (1,210 a rank)  40.4 updates/s"),
        ((64.0, 32.0, 0.0123), "64 ex/s (32 a rank)  0.0123 updates/s"),
        ((1e6, 1e6, 1234.56), "1,000,000 ex/s  1,234.6 updates/s"),
    ],
)
def test_speeds(speed, text):
    names = ("examples_per_s", "examples_per_s_per_rank", "updates_per_s")
    assert format_speed(dict(zip(names, speed))) == text


def test_warnings_reach_the_error_stream_and_the_log_once(caplog):
    errors = io.StringIO()
    with redirect_stderr(errors), caplog.at_level(logging.INFO):
        output = plain_output(lambda view: (view.warn("disk nearly full"), view.note("resuming")))
    assert errors.getvalue() == "warning: disk nearly full\n"
    assert output == "resuming\n"
    assert [r.message for r in caplog.records] == ["disk nearly full", "resuming"]


def test_text_is_never_taken_for_markup(monkeypatch):
    message = "parts[1].pattern '[red]' matches no parameter"
    assert message in without_colours(terminal_output(lambda view: view.warn(message), monkeypatch))


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_a_reader_that_goes_away_does_not_end_the_run(kind, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    reading, writing = os.openpty() if kind == "terminal" else os.pipe()
    with os.fdopen(writing, "w") as stream:
        view = View(stream)
        os.close(reading)
        with pytest.raises(OSError):  # so what the view writes does not arrive
            os.write(writing, b"lost")
        a_short_training(view)
        finish(view)
        assert os.readlink(f"/proc/self/fd/{writing}") == os.devnull


def test_the_bar_is_drawn_by_time_and_not_at_every_step(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) * REFRESH_EVERY_S / 10)
    drawings = []

    def use(view: View) -> None:
        draw = view._surface.draw_progress
        monkeypatch.setattr(
            view._surface, "draw_progress", lambda *a: (drawings.append(a), draw(*a))
        )
        with view.training(1000):
            for step in range(1, 1001):
                view.step(step)

    plain_output(use)
    assert 80 <= len(drawings) <= 130  # every tenth step


def test_a_long_evaluation_shows_its_progress_in_plain_lines_too(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def use(view: View) -> None:
        with view.evaluation(1000):
            for _ in range(10):
                view.advance_evaluation("test", 100)
                now[0] += 10

    assert plain_output(use).splitlines() == [
        "test  400/1,000 rows",
        "test  700/1,000 rows",
        "test  1,000/1,000 rows",
    ]


def test_a_view_imports_neither_torch_nor_rich_where_there_is_no_terminal():
    code = (
        "import sys; from runner.reporting.console import View; View().note('x');"
        "sys.exit(bool({'torch', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"x\n")


def test_words_are_wrapped_below_their_line_and_commands_stay_whole():
    text = "error: 1 mistake\n  1. lr: no key; `python -m runner explain lr` says what that is"
    assert wrap_words(text, 34, indent=3).split("\n") == [
        "error: 1 mistake",
        "  1. lr: no key;",
        "     `python -m runner explain lr`",
        "     says what that is",
    ]
    assert wrap_words("", 10) == "" and wrap_words("a\n\nb c", 1) == "a\n\nb\nc"
