"""Trackers as a user would write them, for tests."""

from __future__ import annotations

import json
from typing import Any


class Lines:
    """Writes a line for each call into a file of the run directory."""

    def __init__(self, *, file: str = "lines.jsonl") -> None:
        self.file = file

    def start(self, run: Any, state: Any) -> None:
        self.path = run["dir"] / self.file

    def log(self, split: str, step: int, metrics: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([split, step, dict(metrics)]) + "\n")

    def state(self) -> dict[str, Any]:
        return {}

    def finish(self, status: str) -> None:
        self.log(status, 0, {})

    def messages(self) -> list[str]:
        return []


class Half:
    """Is no tracker yet."""

    start, log = Lines.start, Lines.log


class Wrong(Lines):
    """Takes other arguments than it is given."""

    def log(self, metrics: Any) -> None:  # type: ignore[override]
        raise AssertionError("never called")
