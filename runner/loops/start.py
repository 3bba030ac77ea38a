"""Where a training starts: afresh, from weights of another run, or from its newest checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.checkpoint import Saved, open_checkpoint, saved_steps, tensor_shapes
from runner.errors import ConfigError
from runner.job import Job
from runner.loops.told import start_trackers
from runner.state import TrainState, copy_in, restore, tensors, weights
from runner.step import total_steps


def start(job: Job) -> TrainState:
    """Resumes from the newest whole checkpoint; without one, begins at step 0."""
    if job.checkpointer is not None:
        job.checkpointer.prepare(tensors(job.context, job.train_metrics))
    saved = job.checkpointer.latest() if job.checkpointer else None
    if saved is not None and job.checkpointer is not None:
        state = restore(job, saved)
        job.callbacks.load_state(saved.values.get("callbacks", {}))
        job.checkpointer.discard_after(state.step)
        if job.run is not None:
            job.run.metrics.cut(saved.values["metrics_bytes"])
        start_trackers(job, state.step, saved.values["trackers"])
        job.view.note(f"resuming from step {state.step:,} ({state.examples:,} examples)")
        changed = job.run is not None and saved.values["signature"] != job.run.signature
        if state.stopped is not None and changed:  # by other settings it may not have ended
            job.view.note(f"it had stopped ({state.stopped}); it goes on with what was changed")
            state.stopped = None
        if state.growth > 1:
            job.view.lasts(total_steps(job, state))
        return state
    if job.run is not None:
        job.run.metrics.cut(0)
        if job.run.resumed:
            job.view.note("no checkpoint had been written: starting again at step 0")
    start_trackers(job)
    if job.checkpoint.init_from:
        job.view.note(warm_start(job, Path(job.checkpoint.init_from)))
        if job.context.average is not None:
            job.context.average.restart()
    return TrainState()


def warm_start(job: Job, source: Path) -> str:
    """Copies the weights that match by name and shape; step and optimizers stay at the start.

    Returns: the report of what matched. Raises: ConfigError if nothing does.
    """
    saved = find_checkpoint(source)
    ours = weights(job.context)
    theirs = tensor_shapes(saved)
    matched = {n: t for n, t in ours.items() if theirs.get(n) == tuple(t.shape)}
    reshaped = {n for n in ours if n in theirs and n not in matched}
    missing = [n for n in ours if n not in theirs]
    unused = [n for n in theirs if n.startswith(("tables/", "dense/")) and n not in ours]
    unused = [n for n in unused if n.startswith("dense/") or n.endswith("/weight")]
    if not any(t.dim() > 1 for t in matched.values()):  # a bias of one number matches by chance
        raise ConfigError(
            f"checkpoint.init_from={source}: no table and no matrix of it matches by name and "
            f"shape; here, for example, {_example(ours)}, there {_example(theirs)}"
        )
    copy_in(saved, matched)
    lines = [f"warm start from {saved.path}: {len(matched)} of {len(ours)} weights taken"]
    lines += [
        f"  shape differs: {n} ({theirs[n]} there, {tuple(ours[n].shape)} here)"
        for n in sorted(reshaped)
    ]
    lines += [f"  not there, initialised afresh: {n}" for n in missing]
    lines += [f"  there, not used: {n}" for n in unused]
    return "\n".join(lines)


def _example(shapes: Mapping[str, Any]) -> str:
    name = next(iter(sorted(shapes)))
    shape = shapes[name] if isinstance(shapes[name], tuple) else tuple(shapes[name].shape)
    return f"{name} {shape}"


def find_checkpoint(path: Path, step: int | str = "best") -> Saved:
    """A checkpoint folder itself, or the chosen checkpoint of a run directory.

    Args: step: `best`, `last`, or a number.
    Raises: ConfigError if there is none, naming those there are.
    """
    if (path / "manifest.json").exists():
        return open_checkpoint(path)
    folder = path / "checkpoints"
    steps = saved_steps(folder)
    if not steps:
        raise ConfigError(f"{path}: holds no whole checkpoint; needed is a run directory that does")
    if step == "last":
        return open_checkpoint(folder / f"step-{steps[-1]}")
    if step == "best":
        newest = open_checkpoint(folder / f"step-{steps[-1]}")
        best = newest.values["best"]
        step = best["step"] if best else steps[-1]
    if step not in steps:
        raise ConfigError(f"checkpoint.step={step}: {path} has {', '.join(map(str, steps))}")
    return open_checkpoint(folder / f"step-{step}")
