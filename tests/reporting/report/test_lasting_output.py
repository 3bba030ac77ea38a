"""What is shown of runs goes on without output once nobody reads it."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext

import pytest

from runner.reporting.report.terminal import make_console


def test_a_console_goes_on_when_its_reader_is_gone(monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as nobody:
        with pytest.raises(BrokenPipeError):
            os.write(write, b"a job has ended")
        monkeypatch.setattr(sys, "stdout", nobody)
        console = make_console()
        for _ in range(2):
            console.print("a job has ended")
    monkeypatch.undo()


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_full_disk_fails_only_what_does_nothing_but_show(is_asked, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        console = make_console(is_asked=is_asked)
        with pytest.raises(OSError, match="No space") if is_asked else nullcontext():
            console.print("two runs")
        if is_asked:  # closing must not fail on what could not be written
            os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
    monkeypatch.undo()
