"""Runs one job, from a composed configuration to an exit code.

The order is: check everything, fingerprint the data, sign, open the run directory, and only then
import torch. So a mistake is reported in a fraction of a second, and nothing has been written.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.config.background_work import disable_background_work
from runner.config.compose import ComposedConfig
from runner.config.composed_checks import check_composed, with_row_count
from runner.config.locations import PROJECT
from runner.config.proposed_length import automatic_keys
from runner.config.rules import get_key
from runner.config.rules.data_fit import find_data_problems
from runner.config.rules.resume import check_resumable
from runner.config.settings import DEBUG_LOOP, EVALUATE_LOOP
from runner.config.signature import hash_fields, signature_fields
from runner.distributed.launcher import ProcessResult, run_on_ranks
from runner.distributed.torchrun import run_under_torchrun
from runner.distributed.world_size import launched_rank, launched_world_size
from runner.errors import ConfigError, DataError, UserError, raise_combined
from runner.machine import set_thread_environment, usable_cores
from runner.rundir.checkpoint.folder import step_folders
from runner.rundir.json_files import dumps, read_jsonl
from runner.rundir.location import DEFAULT_RUN_DIR, check_writable
from runner.rundir.run import Run, RunSpec, open_run, reopen_run, write_result
from runner.rundir.run_files import read_meta
from runner.worker import judge_parts, release_ranks, run_job

log = logging.getLogger("runner")
_fingerprints: dict[str, str] = {}


@contextmanager
def _own_log() -> Iterator[None]:
    """Keep what we log from the root's handlers: a library's would print it a second time.

    FBGEMM logs when it is imported, which gives the root a handler that prints on stderr.
    """
    before, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.propagate = before


@_own_log()
def launch(
    composed: ComposedConfig,
    *,
    allowed: Sequence[str],
    command: Sequence[str],
    resume: Path | None = None,
) -> int:
    """Run one job; return its exit code, see `launch_run`."""
    return launch_run(composed, allowed=allowed, command=command, resume=resume)[0]


def launch_run(
    composed: ComposedConfig,
    *,
    allowed: Sequence[str],
    command: Sequence[str],
    resume: Path | None = None,
) -> tuple[int, Path | None]:
    """Run one job.

    Args:
        composed: the configuration, not yet checked.
        allowed: packages that a `_target_` may lie in.
        command: the words of the command line, for the run's record.
        resume: the run directory to continue.

    Returns:
        Its exit code, and its run directory; None on ranks that do not open it, and for jobs that
        have none.

    Raises:
        UserError: for mistakes, before the job starts.
    """
    check_composed(with_row_count(composed), allowed)
    if launched_rank() > 0:  # rank 0 counts the rows, and sends what follows from them
        return _execute(composed, None, allowed), None
    try:
        composed = resolve_automatic(composed, allowed)
    except UserError:
        release_ranks(composed, 2)
        raise
    for note in composed.notes:
        print_status(note)
    loop = get_key(composed.config, "loop._target_")
    if loop == DEBUG_LOOP:
        config, off = disable_background_work(composed.config)
        if off:
            print_status(f"loop=debug: {', '.join(off)}, for one thread of control")
        return _execute(replace(composed, config=config), None, allowed), None
    if is_follow_evaluation(composed):
        return _execute(composed, None, allowed), None
    try:
        check_parts(composed, allowed)
        run = _open_run_dir(composed, command, resume, loop)
    except UserError:
        release_ranks(composed, 2)
        raise
    try:
        if run.finished_result is not None:
            print_status(f"{run.dir} is done already: {_summarize(run.finished_result)}")
            release_ranks(composed, 0)
            return 0, run.dir
        if run.not_done is not None:
            print_status(f"{run.dir} is not done: {run.not_done}; it goes on from what is whole")
        code = _execute(composed, run, allowed)
        # A job of a sweep has no page of its own: each has 5 MB of plotly.js.
        if get_key(composed.config, "report") is not False and "RUNNER_SWEEP" not in os.environ:
            _write_report(run.dir)
        return code, run.dir
    finally:
        run.close()


def is_follow_evaluation(composed: ComposedConfig) -> bool:
    """Return whether the job follows a training, in whose run directory it writes its rows.

    Raises:
        UserError: if it was given a run directory of its own.
    """
    if not get_key(composed.config, "loop.follow"):
        return False
    if composed.run_dir != DEFAULT_RUN_DIR:
        raise UserError(
            f"hydra.run.dir={composed.run_dir}: with loop.follow=true the results lie beside the "
            f"training's, in {composed.config['run']}/follow"
        )
    return True


def _write_report(folder: Path) -> None:
    """Write `report.html` of a run that has ended; a failure here is not one of the run."""
    from runner.reporting.report.write import write_report

    try:
        write_report(folder)
    except Exception as error:
        log.warning("no report.html: %s", error, exc_info=not isinstance(error, UserError))
        again = f"`python -m runner report {folder}` tries again"
        print_status(f"report.html could not be written: {error}; {again}")


def _open_run_dir(
    composed: ComposedConfig, command: Sequence[str], resume: Path | None, loop: str
) -> Run:
    """Make a run directory, or open the one that exists.

    Raises:
        UserError: if that is not possible; nothing was changed then.
    """
    template = _run_dir_template(composed, loop)
    if resume is None:
        check_writable(template)
    spec = run_spec(composed, command)
    check_fits_dataset(composed.config)
    if resume is not None:
        check_resumable(resume, spec)
        return reopen_run(resume, spec)
    return open_run(template, spec, project=PROJECT)


def resolve_automatic(
    composed: ComposedConfig, allowed: Sequence[str], *, in_own_process: bool = False
) -> ComposedConfig:
    """Return a configuration with a number in place of each `auto`; the rows are counted for it.

    Args:
        composed: checked, see `with_row_count`.
        allowed: packages that a `_target_` may lie in.
        in_own_process: see `check_parts`.

    Raises:
        ConfigError: for data that do not tell how many rows they have, and where the configuration
            is wrong with the numbers.
        UserError: for data that cannot be found or read.
    """
    keys = automatic_keys(composed.config)
    if not keys:
        return composed
    from runner.data.prepare.count_rows import count_train_rows

    check_parts(composed, allowed, in_own_process=in_own_process)
    check_fits_dataset(composed.config)
    rows = count_train_rows(composed.config["dataset"])
    if rows is None:
        raise ConfigError(
            f"{keys[0]}=auto: follows from the number of train rows, which a stream and a dataset "
            "of your own do not tell before the training; give a number"
        )
    resolved = with_row_count(composed, rows)
    check_composed(resolved, allowed)
    chosen = ", ".join(f"{key}={get_key(resolved.config, key)}" for key in keys)
    return replace(resolved, notes=(*resolved.notes, f"auto, for {rows:,} train rows: {chosen}"))


def check_fits_dataset(config: Mapping[str, Any]) -> None:
    """Hold the configuration against the schema that the dataset declares, before it is read.

    Raises:
        ConfigError: with everything that does not fit.
    """
    from runner.data.prepare.fingerprint import build_recipe
    from runner.data.prepare.outline import outline_schema

    recipe = build_recipe(config["dataset"])
    outline = None if recipe is None else outline_schema(recipe)
    if outline is not None:
        raise_combined(find_data_problems(config, outline))


def check_parts(
    composed: ComposedConfig, allowed: Sequence[str], *, in_own_process: bool = False
) -> None:
    """Judge what the `_target_`s of a checked configuration name, before any data is read.

    Args:
        composed: the configuration, checked.
        allowed: packages that a `_target_` may lie in.
        in_own_process: as where ranks are to be forked, which this process must do without torch.

    Raises:
        ConfigError: with every mistake.
    """
    forks = composed.config["trainer"]["num_processes"] > 1 and launched_world_size() is None
    if not (in_own_process or forks):
        _set_threads(composed)
    judge_parts(composed, allowed, in_own_process=in_own_process or forks)


def print_status(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr, flush=True)


def _run_dir_template(composed: ComposedConfig, loop: str) -> str:
    if loop == EVALUATE_LOOP and composed.run_dir == DEFAULT_RUN_DIR:
        return "outputs/eval/{name}/{time}_{signature}"
    return composed.run_dir


def run_spec(composed: ComposedConfig, command: Sequence[str] = ()) -> RunSpec:
    """Return what the run directory will say about this job.

    It reads the fingerprint of the data, and writes nothing.

    Args:
        composed: the configuration.
        command: the words of the command line.

    Raises:
        UserError: for data that cannot be found or read.
    """
    kind = "eval" if get_key(composed.config, "loop._target_") == EVALUATE_LOOP else "train"
    data = _fingerprint(composed.config["dataset"])
    source = _evaluation_source(composed) if kind == "eval" else None
    return RunSpec(
        config=composed.saved_config,
        signature_fields=signature_fields(composed.saved_config, data, source),
        signature=hash_fields(signature_fields(composed.config, data, source)),
        name=composed.name,
        choices=composed.choices,
        command=command,
        kind=kind,
        source=source,
        overrides=composed.overrides,
    )


def _fingerprint(dataset: Mapping[str, Any]) -> str:
    """Return the fingerprint of the data, cached, since the jobs of a sweep mostly share it.

    Raises:
        DataError: for a file that cannot be read.
    """
    from runner.data.prepare.fingerprint import fingerprint

    key = dumps(dataset)
    if key not in _fingerprints:
        try:
            _fingerprints[key] = fingerprint(dataset)
        except OSError as error:
            name = error.filename or "the data"
            raise DataError(f"{name}: {error.strerror or error}") from error
    return _fingerprints[key]


def _evaluation_source(composed: ComposedConfig) -> dict[str, Any]:
    """Return which checkpoint of which run an evaluation takes.

    The newest checkpoint is a part of it, because the run may go on after this evaluation.
    """
    step = get_key(composed.config, "checkpoint.step")
    path = get_key(composed.config, "checkpoint.path")
    if composed.source_run is None:
        return {"path": os.path.abspath(path), "step": step}
    steps = step_folders(composed.source_run / "checkpoints").items()
    newest = max((s for s, folder in steps if (folder / "manifest.json").exists()), default=None)
    where = os.path.abspath(path or composed.source_run)
    signature = read_meta(composed.source_run)["signature"]
    return {"path": where, "signature": signature, "step": step, "newest": newest}


def _execute(composed: ComposedConfig, run: Run | None, allowed: Sequence[str]) -> int:
    """Run the job in this process or on ranks of its own, and record how it ended."""
    _set_threads(composed)
    size = composed.config["trainer"]["num_processes"]
    if launched_world_size() is not None:
        outcome = run_under_torchrun(lambda: run_job(composed, run, allowed))
    elif size > 1:
        outcome = run_on_ranks(size, lambda: run_job(composed, run, allowed))
    else:
        outcome = run_job(composed, run, allowed)
    return _record_outcome(composed, run, outcome)


def _set_threads(composed: ComposedConfig) -> None:
    """Set what must be set before torch is imported."""
    trainer = composed.config["trainer"]
    share = max(1, usable_cores() // trainer["num_processes"])
    set_thread_environment(trainer["num_threads"] or share)


def _record_outcome(composed: ComposedConfig, run: Run | None, outcome: ProcessResult) -> int:
    """Say on the terminal and in the run directory how the job ended; return the exit code.

    Raises:
        UserError: for a mistake of the user that the job has found.
    """
    rank = launched_rank()
    if (outcome.is_ok and not outcome.message) or outcome.status == "dismissed":
        return outcome.code
    if rank > 0:
        print_status(f"rank {rank}: {outcome.message}")
        return outcome.code
    if outcome.status == "interrupted":
        _record_failure(run, outcome.message, "", status="interrupted")
        print_status("interrupted")
        return outcome.code
    if not outcome.message:  # the failure is its result, which it has printed
        return outcome.code
    _record_failure(run, outcome.message, outcome.trace)
    if outcome.status == "refused":
        if get_key(composed.config, "trainer.traceback"):
            print(outcome.trace, file=sys.stderr)
        raise UserError(outcome.message)
    where = f"; the traceback is in {run.dir / 'log.txt'}" if run and outcome.trace else ""
    if outcome.trace and (run is None or get_key(composed.config, "trainer.traceback")):
        print(outcome.trace, file=sys.stderr)
    print_status(f"failed: {outcome.message}{where}")
    return outcome.code


def _record_failure(run: Run | None, message: str, trace: str, *, status: str = "failed") -> None:
    if run is None:
        return
    if trace:
        log.error("%s\n%s", message, trace)
    last = (read_jsonl(run.metrics.path) or [{}])[-1]
    result = {"status": status, "step": last.get("step"), "examples": last.get("examples")}
    try:
        write_result(run, {**result, "metrics": {}, "best": None, "error": message})
    except OSError as error:  # a full disk must not hide the first error
        print_status(f"result.json could not be written: {error}")


def _summarize(result: Mapping[str, Any]) -> str:
    metrics = result.get("metrics") or {}
    shown = [f"{k} {float(v):.5f}" for k, v in metrics.items() if k.startswith("test/")]
    return ", ".join([f"step {result.get('step')}", *shown[:4]])
