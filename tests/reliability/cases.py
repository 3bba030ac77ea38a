"""Which cases of a part of a row are run, and what came of each, kept line by line.

The matrix (`python -m tests.reliability`) starts each part as a process of its own, with what it is
to do in an environment variable. A case is known by its place among all and by its name, so that a
later process takes up what an earlier one has left, with the same share or with a larger one.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runner.distributed.parent_death import die_with_parent
from runner.rundir.json_files import read_jsonl

VARIABLE = "RELIABILITY_PART"


@dataclass(frozen=True)
class Assignment:
    """What one process is to do: a part of a row, with a share of its cases."""

    file: str
    row: int
    part: str
    share: float
    seed: int
    commit: str
    parent: int  # the process with which this one ends
    repetitions: int = 1  # of tests

    def as_environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self)), "FAULT_SEED": str(self.seed)}


@dataclass
class Cases:
    """The cases of an assignment."""

    of: Assignment
    offered: int = 0
    done: set[str] = field(default_factory=set)

    @classmethod
    def from_environment(cls) -> Cases | None:
        """Return the cases that the matrix wants of this process, or None if it wants nothing."""
        words = os.environ.pop(VARIABLE, None)
        if words is None:
            return None
        of = Assignment(**json.loads(words))
        die_with_parent(of.parent, signal.SIGKILL)
        rows = read_results(Path(of.file))
        mine = (r for r in rows if (r["row"], r["part"]) == (of.row, of.part) and "case" in r)
        return cls(of, done={row["case"] for row in mine})

    def next(self, name: str) -> str:
        """Return the key of the next case if it is to be run, else an empty text."""
        self.offered += 1
        share, number = self.of.share, self.offered
        is_chosen = math.ceil(number * share) > math.ceil((number - 1) * share)
        key = f"{number} {name}"
        return key if is_chosen and key not in self.done else ""

    def keep(self, case: str, outcome: str, *, failure: str = "", **more: Any) -> None:
        self._write({"case": case, "outcome": outcome, "failure": failure, **more})

    def end(self, skipped: str = "") -> None:
        """Note that all cases of the share have been judged."""
        self._write({"offered": self.offered, "share": self.of.share, "skipped": skipped})

    def _write(self, values: Mapping[str, Any]) -> None:
        of = self.of
        write_result(Path(of.file), {"row": of.row, "part": of.part, **values, "commit": of.commit})


def write_result(file: Path, values: Mapping[str, Any]) -> None:
    """Append a line in one write, so that a kill loses the line or nothing."""
    line = json.dumps({"day": time.strftime("%Y-%m-%d", time.gmtime()), **values})
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def read_results(file: Path) -> list[dict[str, Any]]:
    return read_jsonl(file) if file.exists() else []


def fault_seed() -> int:
    """Return the seed of a fault's random instants: FAULT_SEED, or one of the moment."""
    return int(os.environ.get("FAULT_SEED", int.from_bytes(os.urandom(4), "little")))
