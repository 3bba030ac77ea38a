"""When two runs are the same: every tensor, every example, every row of metrics."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from runner.rundir.checkpoint import open_checkpoint, read_tensors, tensor_shapes
from tests.conftest import Zygote

TRACED = ("--allow", "tests", "task._target_=tests.whole.traced.Traced")
IGNORED_KEYS = ("active_s",)  # time


def read_result(run: Path) -> dict:
    return json.loads((run / "result.json").read_text())


def read_rows(run: Path, split: str | None = None) -> list[dict]:
    """Return the rows of `metrics.jsonl`, of all splits or of one."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if split in (None, row["split"])]


def newest_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*"), key=lambda p: int(p.name[5:]))


def fingerprint(checkpoint: Path) -> dict[str, str]:
    """sha256 of each tensor, and the JSON values but for times and the recorder's identity."""
    saved = open_checkpoint(checkpoint)
    tensors = read_tensors(saved, list(tensor_shapes(saved)))
    hashes = {
        name: hashlib.sha256(
            t.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        ).hexdigest()
        for name, t in tensors.items()
    }
    values = {
        f"values: {k}": json.dumps(v, sort_keys=True)
        for k, v in saved.values.items()
        if k not in IGNORED_KEYS
    }
    return hashes | values


def differences(a: Path, b: Path) -> list[str]:
    """What differs between the newest checkpoints, metric logs and results of two runs."""
    found = []
    one, two = fingerprint(newest_checkpoint(a)), fingerprint(newest_checkpoint(b))
    found += [name for name in sorted(one.keys() | two.keys()) if one.get(name) != two.get(name)]
    if (a / "metrics.jsonl").read_bytes() != (b / "metrics.jsonl").read_bytes():
        found.append("metrics.jsonl")
    results = [json.loads((run / "result.json").read_text()) for run in (a, b)]
    for key in ("status", "step", "examples", "metrics", "best"):
        if results[0][key] != results[1][key]:
            found.append(f"result.json: {key}")
    return found


def assert_resumes_exactly(
    runner: Zygote, words: Sequence[str], killed: Path, whole: Path, *kills: str
) -> None:
    """Train twice, once killed at each of these points and resumed: the two runs are the same."""
    for run, kill in ((whole, ""), *((killed, kill) for kill in (*kills, ""))):
        env = {"TRACE_FILE": f"{run}.trace", "TRACE_KILL": kill}
        done = runner.run(*TRACED, *words, f"hydra.run.dir={run}", env=env)
        assert done.code == (-9 if kill else 0), done.text
    assert differences(killed, whole) == []


def examples_by_cursor(trace: Path) -> dict[tuple[int, int], set[str]]:
    """Position -> hashes of the examples learnt there; more than one hash means another order."""
    seen: dict[tuple[int, int], set[str]] = {}
    for line in trace.read_text().splitlines():
        row = json.loads(line)
        seen.setdefault(tuple(row["cursor"]), set()).add(row["rows"])
    return seen
