"""Completion: the candidates, and that real shells show them."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest

from runner.cli.completion import SCRIPTS, complete_words
from tests.conftest import ROOT


def offered(*words: str) -> list[str]:
    return sorted(set(complete_words(words)))


def test_groups_keys_and_verbs_are_offered():
    assert {"optimizer=", "seed=", "resume", "report", "trainer.", "trainer="} <= set(offered(""))
    assert offered("trainer.max_") == [f"trainer.max_{n}=" for n in ("epochs", "skipped", "steps")]
    assert offered("optimizer=partial") == [
        "optimizer=partial_rowwise_adam",
        "optimizer=partial_rowwise_lamb",
    ]


def test_keys_are_those_of_the_option_that_is_chosen():
    assert "model.net.num_layers=" not in offered("model.net.")
    assert "model.net.num_layers=" in offered("model=dcn", "model.net.")
    assert "model/loss=focal" in offered("model/loss=")


def test_a_list_of_a_sweep_goes_on_behind_its_comma():
    assert offered("-m", "optimizer=sgd,adamw") == ["optimizer=sgd,adamw"]


def test_values_of_switches_and_signs():
    assert offered("trainer.amp=") == ["trainer.amp=false", "trainer.amp=true"]
    assert offered("+optimizer=adagr") == ["+optimizer=adagrad"]


def test_after_a_verb_comes_what_it_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert offered("ls", "sched") == ["scheduler"]
    assert offered("ls", "scheduler=cosine_") == ["scheduler=cosine_restarts"]
    assert offered("report", "--s") == ["--sort"]
    assert offered("report", "out") == []  # the shell's own files
    assert offered("resume", "dir", "trainer.max_st") == ["trainer.max_steps="]
    for verb in ("predict", "export", "importance", "index", "serve", "apply", "histories"):
        assert offered(verb, "o") == []
    assert offered("export", "out", "checkpoint.st") == ["checkpoint.step="]
    assert offered("completion", "") == ["bash", "zsh"]


def test_folders_are_offered_where_a_key_takes_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs" / "one").mkdir(parents=True)
    (tmp_path / "outputs" / "x.txt").touch()
    assert offered("run=out") == ["run=outputs/"]
    assert offered("run=outputs/") == ["run=outputs/one/", "run=outputs/x.txt"]


def typed(shell: str, text: str, expected: str) -> str:
    """Return what an interactive shell with the script shows after a text was typed."""
    start = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}[shell]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.environ.update(
            PS1="> ", TERM="dumb", PATH=f"{os.path.dirname(sys.executable)}:" + os.environ["PATH"]
        )
        os.execvp(start[0], start)
    shown = b""
    try:
        os.write(
            terminal, f'eval "$(python -m runner completion {shell})"; echo rea""dy\n'.encode()
        )
        deadline, sent = time.monotonic() + 60, False
        while time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.2)[0]:
                try:
                    shown += os.read(terminal, 65536)
                except OSError:
                    break
            if not sent and b"ready" in shown:
                shown, sent = b"", True
                os.write(terminal, f"{text}\t".encode())
            if sent and expected.encode() in shown:
                break
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)
    return shown.decode(errors="replace")


@pytest.mark.parametrize("shell", SCRIPTS)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python -m runner optimizer=rowwise", "optimizer=rowwise_adagrad"),
        ("python -m runner trainer.max_st", "trainer.max_steps="),
        ("python -m runner repro", "reproduce"),
        ("python -m runner resume pyproject.to", "pyproject.toml"),
        ("python pyproject.to", "pyproject.toml"),  # all else is completed as before
    ],
)
def test_a_real_shell_completes(shell, text, expected):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    assert expected in typed(shell, text, expected)


def test_each_script_is_what_its_shell_can_read():
    for shell, script in SCRIPTS.items():
        if shutil.which(shell):
            subprocess.run([shell, "-n"], input=script, text=True, check=True)
