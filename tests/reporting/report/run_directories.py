"""Writes run directories as a run writes them, thousands in a second."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32


def make_run(
    folder: Path,
    *,
    identity: Mapping[str, Any] | None = None,
    choices: Mapping[str, str] | None = None,
    seed: int = 0,
    auc: float | str | None = 0.7,
    status: str | None = "completed",
    error: str | None = None,
    num_rows: int = 4,
    **meta: Any,
) -> Path:
    """Write a run directory.

    Args:
        folder: of the run.
        identity: further keys of its identity.
        choices: further options of groups.
        seed: of the run.
        auc: of the validation split; that of the test split is 0.01 lower.
        status: of the result; None: there is no result.
        error: of the result.
        num_rows: of `metrics.jsonl`, for each split.
        meta: further keys of `meta.json`.
    """
    folder.mkdir(parents=True)
    chosen = {"model": "dlrm", "optimizer": "adam", **(choices or {})}
    content = {
        "kind": "train",
        "name": "made",
        "signature": f"{crc32(folder.name.encode()):08x}",
        "seed": seed,
        "identity": {
            "seed": seed,
            "checkpoint.monitor.metric": "validation/auc",
            "checkpoint.monitor.direction": "max",
            "data": "f00",
            **(identity or {}),
        },
        "choices": chosen,
        "overrides": [],
        "created": "2026-01-01T00:00:00+0000",
        "command": ["python", "-m", "runner"],
        "python": "3.11",
        "versions": {"torch": "2.13.0"},
        "git": {"commit": "abcdef0123", "patch": ""},
        "resumes": [],
    }
    (folder / "meta.json").write_text(json.dumps({**content, **meta}))
    (folder / "config.yaml").write_text(f"seed: {seed}\n")
    rows = []
    for number in range(num_rows):
        step, part = 10 * (number + 1), (number + 1) / num_rows
        rows.append({"split": "train", "step": step, "loss": 1 - part / 2, "lr/dense": 0.001})
        if isinstance(auc, float):
            rows.append({"split": "validation", "step": step, "auc": auc * part, "loss": 0.5})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    if status is not None:
        metrics = {} if auc is None else {"validation/auc": auc, "train/loss": 0.5}
        if isinstance(auc, float):
            metrics["test/auc"] = auc - 0.01
        result = {
            "status": status,
            "step": 10 * num_rows,
            "examples": 320 * num_rows,
            "metrics": metrics,
            "best": {"step": 10 * num_rows, "value": auc},
            "error": error,
            "active_s": 3.5,
            "signature": content["signature"],
        }
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def forbid_reading(monkeypatch, folder: Path) -> None:
    """Make a folder as one of another user, which root could read all the same."""
    scandir = os.scandir

    def refuse(path=".") -> Any:
        if not isinstance(path, int) and Path(path).resolve() == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    folder.mkdir(parents=True)
    monkeypatch.setattr(os, "scandir", refuse)


def make_grid(folder: Path) -> Path:
    """Write runs of two options, two rates and three seeds, in which the rate matters most."""
    for option in ("adam", "sgd"):
        for rate in (0.001, 0.1):
            for seed in (1, 2, 3):
                auc = 0.6 + 0.1 * (rate == 0.1) + 0.01 * (option == "adam") + 0.001 * seed
                make_run(
                    folder / f"{option}-{rate}-{seed}",
                    identity={"optimizer.dense.lr": rate, "optimizer.dense.kind": option},
                    choices={"optimizer": option},
                    seed=seed,
                    auc=auc,
                )
    return folder
