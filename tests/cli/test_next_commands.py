"""Mistakes of a newcomer name a command that can be pasted, and that is right."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from runner.errors import already_exists, shell_path
from tests.fake_job import fake_command
from tests.reporting.report.run_directories import make_run


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    make_run(tmp_path / "outputs" / "dlrm")
    return fake_command(monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["model=dcm"], "ls model"),
        (["trainer.batchsize=32"], "explain trainer.batch_size"),
        (["zzz.qqqq=1"], "ls"),
        (["explain", "trainer.batchsize"], "ls"),
        (["loop=eval"], "loop=eval run=outputs/latest"),
        (["resume"], "resume --help"),
        (["diff", "outputs/dlrm"], "diff --help"),
        (["export", "outputs/dlrm"], "export --help"),
        (["resume", "outputs/dlmr"], "report outputs"),
        (["loop=eval", "run=elsewhere/x"], "report outputs"),
    ],
)
def test_a_mistake_leads_on_to_a_command(command, words, expected):
    [shown] = re.findall(r"`python -m runner ([^`]+)`", command.refused(*words))
    assert shown == expected


@pytest.mark.parametrize(
    "words", ["ls model", "ls", "explain trainer.batch_size", "resume --help", "report outputs"]
)
def test_the_command_works(command, words):
    assert command(*shlex.split(words))[0] == 0


def test_a_path_with_a_dash_in_front_is_no_flag_in_a_printed_command():
    assert shell_path("-a/run 1") == "'./-a/run 1'" and shell_path("a-b") == "a-b"
    assert already_exists("--out", "-a").endswith("rm -r ./-a")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resume", "-a/run"], "-a/run: no such flag; a path that begins with a dash is ./-a/run"),
        (["report", "-there"], "-there: no such flag; a path that begins with a dash is ./-there"),
        (["export", "r", "--out", "-a/x"], "--out: needs a value; one that begins with a dash is"),
        (["export", "r", "--out", "-a/x"], "joined: --out=-a/x"),
    ],
)
def test_a_given_path_with_a_dash_in_front_is_refused_with_its_spelling(command, words, said):
    Path("-there").mkdir()
    assert said in command.refused(*words)
    assert "joined" not in command.refused("export", "r", "--out", "--wandb")
