"""What is shown of runs goes on without output once nobody reads it."""

from __future__ import annotations

import os
import sys

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
