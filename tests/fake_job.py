"""`runner.training.builder` without torch, for tests of what stands before it."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

import runner.reporting.console as real_view
from runner.__main__ import main


@dataclass(frozen=True)
class FakeResult:
    status: str = "completed"
    step: int = 3
    examples: int = 96
    metrics: dict[str, float] = field(default_factory=lambda: {"test/auc": 0.75})
    best: dict[str, float] | None = None
    error: str | None = None
    signal: int | None = None
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Jobs:
    """What was built, and what its loop is to do."""

    built: list[Any] = field(default_factory=list)
    do: Callable[[Any], FakeResult] = lambda job: FakeResult()

    def build(self, config: Mapping[str, Any], run: Any, **more: Any) -> Any:
        more["own_directions"] = {}
        job = types.SimpleNamespace(config=config, run=run, loop=self.do, **more)
        self.built.append(job)
        return job

    @property
    def last(self) -> Any:
        return self.built[-1]


@dataclass
class Command:
    """Runs command lines in this process: exit code, stdout, stderr."""

    jobs: Jobs
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        code = main(list(words))
        out, err = self.capsys.readouterr()
        return code, out, err

    def refused(self, *words: str) -> str:
        """The message of a command that must end with exit code 2, without a traceback."""
        before = len(self.jobs.built)
        code, _, err = self(*words)
        assert code == 2, err
        assert "Traceback" not in err
        assert len(self.jobs.built) == before
        return err


def fake_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Any
) -> Command:
    """Commands typed in `folder`, with a job that only pretends to train."""
    jobs = Jobs()
    build, view = (
        types.ModuleType("runner.training.builder"),
        types.ModuleType("runner.reporting.console"),
    )
    build.check_parts = lambda config, allowed: None  # type: ignore[attr-defined]
    build.check_patterns = lambda config, allowed: None  # type: ignore[attr-defined]
    build.check_source_weights = lambda config, source, allowed: None  # type: ignore[attr-defined]
    build.build_job = lambda config, run, **more: jobs.build(config, run, **more)  # type: ignore[attr-defined]
    view.View = lambda: None  # type: ignore[attr-defined]
    view.__path__ = list(real_view.__path__)  # its other modules stay what they are
    monkeypatch.setitem(sys.modules, "runner.training.builder", build)
    monkeypatch.setitem(sys.modules, "runner.reporting.console", view)
    # what only pretends to train saves no checkpoint
    monkeypatch.setattr("runner.config.rules.loops.why_not_found", lambda path, step: None)
    monkeypatch.chdir(folder)
    return Command(jobs, capsys)
