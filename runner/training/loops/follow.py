"""loop=eval loop.follow=true: evaluates the checkpoints of a training in a second process.

It writes into the training's run directory, and only below `follow/`: one row for each checkpoint
in `follow/<split>.jsonl`. A row marks this checkpoint as done for this split, so that a follower
that was killed goes on where it was, and a follower of another split is not disturbed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.config.early_stopping import is_better
from runner.config.signature import hash_fields
from runner.data.prepare.fingerprint import fingerprint
from runner.errors import UserError
from runner.metrics.names import evaluation_name
from runner.reporting.trackers.tracker import TRACKERS_FILE
from runner.rundir.checkpoint import Checkpoint
from runner.rundir.json_files import JsonlFile, read_jsonl
from runner.rundir.lock import FolderLock
from runner.rundir.readers import read_optional_json
from runner.rundir.regular_files import check_run_files
from runner.rundir.run_files import read_config, read_meta, read_result
from runner.training.job import Job, Result
from runner.training.loops.evaluate_split import evaluate_split, select_splits
from runner.training.loops.pinned_checkpoints import PinnedCheckpoints
from runner.training.state import restore_weights
from runner.training.stop_signal import StopSignal, stop_on_signals

FOLLOW_FOLDER = "follow"
NON_METRIC_KEYS = ("split", "step", "examples", "signature", "evaluation")


@dataclass
class FollowState:
    """The state of following one training for one split. On rank 0 only."""

    run: Path
    split: str
    evaluation: str  # hash of everything else that metrics depend on: data, metrics, rows
    latest_only: bool
    pinned: PinnedCheckpoints
    log: JsonlFile
    lock: FolderLock
    rows: list[dict[str, Any]]  # of this evaluation, in the order in which they were written
    reported_status: str = ""  # of the training, as last shown

    @property
    def done(self) -> set[tuple[int, str]]:
        """Step and signature of the checkpoints that are evaluated."""
        return {(row["step"], row["signature"]) for row in self.rows}


def follow(job: Job) -> Result:
    """Evaluate each new checkpoint until the training's last, a timeout or a signal.

    Collective.

    Raises:
        UserError: if another process follows the same split.
    """
    [split] = select_splits(job)
    followed = open_follow_state(job, split) if job.context.ranks.is_main else None
    status = "failed"
    try:
        with stop_on_signals() as stop, job.view.evaluation(job.dataset.num_rows[split]):
            end = _evaluate_until_end(job, split, followed, stop)
        status = "interrupted" if stop.requested else "completed"
    finally:
        job.trackers.finish(status)
        if followed is not None:
            followed.log.close()
            followed.lock.release()
    rows = job.context.ranks.broadcast_object(followed.rows if followed else None)
    result = _make_result(job, split, rows, status, stop.signal)
    _report_end(job, split, rows, result, end)
    return result


def open_follow_state(job: Job, split: str) -> FollowState:
    """Take the lock of this split, read what is done, and join the training's tracker run."""
    run = Path(job.config["run"])
    folder = run / FOLLOW_FOLDER / split
    check_run_files(run / FOLLOW_FOLDER, (f"{split}.jsonl",), (split,))
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder)
    path = run / FOLLOW_FOLDER / f"{split}.jsonl"
    evaluation = evaluation_hash(job)
    rows = [row for row in read_jsonl(path) if row.get("evaluation") == evaluation]
    job.trackers.start(
        {
            "name": run.name,
            "dir": folder,
            "config": read_config(run),
            "job_type": str(read_meta(run)["kind"]),
            "shared": True,
            "step": rows[-1]["step"] if rows else 0,
        },
        read_optional_json(run / TRACKERS_FILE) or None,
    )
    return FollowState(
        run=run,
        split=split,
        evaluation=evaluation,
        latest_only=job.loop_settings["pick"] == "latest",
        pinned=PinnedCheckpoints(run / "checkpoints", folder, job.view.warn),
        log=JsonlFile(path),
        lock=lock,
        rows=rows,
    )


def evaluation_hash(job: Job) -> str:
    """Return a hash of all that the metrics of a checkpoint depend on, besides its tensors."""
    context, size = job.context, job.trainer.eval_batch_size
    averages = None if context.ema is None else context.ema.use_in_evaluation
    amp = None if context.amp_dtype is None else str(context.amp_dtype)
    chosen = {"eval_batch_size": size, "averages": averages, "amp": amp}
    return hash_fields(
        {
            "max_batches": job.loop_settings["max_batches"],
            **{key: value for key, value in chosen.items() if value is not None},
            "data": fingerprint(job.config["dataset"]),
            **{key: job.config[key] for key in ("metrics", "model", "task")},
        }
    )


def _evaluate_until_end(
    job: Job, split: str, followed: FollowState | None, stop: StopSignal
) -> str:
    """Collective. Evaluate until the end; return the reason for it, for people."""
    settings, ranks = job.loop_settings, job.context.ranks
    quiet_since = time.monotonic()
    while not stop.sync_ranks():
        # rank 0 looks, and the others wait for its answer or error
        answer = ranks.broadcast_object(_look_for_next(job, followed) if followed else None)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return answer
        if answer is not None:
            _evaluate_one(job, split, answer, followed, stop)
            quiet_since = time.monotonic()
        elif ranks.all_reduce_max(time.monotonic() - quiet_since) > settings["timeout_s"]:
            return f"no new checkpoint for {settings['timeout_s']:g} s"
        else:
            _sleep(settings["poll_s"], stop)
    return "interrupted"


def _look_for_next(job: Job, followed: FollowState) -> Checkpoint | str | Exception | None:
    try:
        return next_checkpoint(job, followed)
    except (UserError, OSError) as error:
        return error


def next_checkpoint(job: Job, followed: FollowState) -> Checkpoint | str | None:
    """Return the checkpoint to evaluate next, or a reason to end, or None for nothing yet."""
    # read before pinning, so that all checkpoints of a training that has ended are pinned
    result = read_result(followed.run)
    followed.pinned.pin_new()
    steps = followed.pinned.steps()
    if followed.latest_only:
        for step in steps[:-1]:
            followed.pinned.release(step)
        steps = steps[-1:]
    for step in steps:
        saved = followed.pinned.open(step)
        if saved is None:
            continue
        if (step, saved.values["signature"]) not in followed.done:
            return saved
        followed.pinned.release(step)
    if followed.rows and is_last(followed.run, followed.rows[-1]):
        return "the training's last step"
    status = (result or {}).get("status")
    if status == "completed":
        return "the training is completed"
    if status and status != followed.reported_status:
        job.view.note(f"the training {status}; waiting for it to go on")
    followed.reported_status = status or ""
    return None


def is_last(run: Path, row: Mapping[str, Any]) -> bool:
    """Return whether the training ends at this row's step by its present configuration."""
    max_steps = read_config(run)["trainer"]["max_steps"]
    return max_steps is not None and row["step"] >= max_steps


def _evaluate_one(
    job: Job, split: str, saved: Checkpoint, followed: FollowState | None, stop: StopSignal
) -> None:
    """Collective. Evaluates a pinned checkpoint and writes its row, which marks it as done."""
    restore_weights(job.context, saved)
    metrics = evaluate_split(job, split, max_batches=job.loop_settings["max_batches"], stop=stop)
    if metrics is None or followed is None:
        return
    name = evaluation_name(split)
    row = {
        "split": name,
        "step": saved.step,
        "examples": saved.values["examples"],
        "signature": saved.values["signature"],
        "evaluation": followed.evaluation,
    }
    followed.log.append({**row, **metrics})
    followed.log.sync()
    followed.rows.append({**row, **metrics})
    followed.pinned.release(saved.step)
    job.trackers.log(f"{FOLLOW_FOLDER}/{name}", saved.step, metrics)
    is_best = _best_row(job, followed.rows) is followed.rows[-1]
    job.view.log_evaluation(name, saved.step, metrics, best=is_best)


def _best_row(job: Job, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the best row by the monitored metric, here of any split; None if it is missing."""
    name = job.checkpoint.monitor.metric.partition("/")[2]
    best: dict[str, Any] | None = None
    for row in rows:
        value = float(row.get(name, math.nan))
        before = None if best is None else float(best[name])
        if is_better(value, before, job.checkpoint.monitor.direction):
            best = row
    return best


def _make_result(
    job: Job, split: str, rows: list[dict[str, Any]], status: str, signal: int | None
) -> Result:
    if not rows:
        return Result(status, 0, 0, signal=signal)
    last, best = rows[-1], _best_row(job, rows)
    prefix = evaluation_name(split)
    metrics = {f"{prefix}/{k}": float(v) for k, v in last.items() if k not in NON_METRIC_KEYS}
    name = job.checkpoint.monitor.metric.partition("/")[2]
    return Result(
        status,
        last["step"],
        last["examples"],
        metrics=metrics,
        best=None if best is None else {"step": best["step"], "value": float(best[name])},
        signal=signal,
        notes={"evaluated": len(rows)},
    )


def _report_end(job: Job, split: str, rows: list[dict[str, Any]], result: Result, end: str) -> None:
    job.view.show_result(
        result.metrics,
        status=result.status,
        step=result.step,
        best=result.best,
        reachable=job.dataset.reachable,
    )
    path = Path(job.config["run"]) / FOLLOW_FOLDER / f"{split}.jsonl"
    checkpoints = "1 checkpoint" if len(rows) == 1 else f"{len(rows)} checkpoints"
    job.view.note(f"{end}: {checkpoints} evaluated on {split}, in {path}")


def _sleep(seconds: float, stop: StopSignal) -> None:
    """Sleep, or return early on a signal to this process; ranks agree on it at the next look."""
    until = time.monotonic() + seconds
    while stop.local_signal is None and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.2))
