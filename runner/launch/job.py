"""Runs one job, from a composed configuration to an exit code.

The order is: check everything, fingerprint the data, sign, open the run directory, and only then
import torch. So a mistake is reported in a fraction of a second, and nothing has been written.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from runner.config.background_work import disable_background_work
from runner.config.compose import ComposedConfig
from runner.config.composed_checks import notes_before_start, with_row_count
from runner.config.locations import PROJECT
from runner.config.rules import get_key
from runner.config.rules.resume import check_resumable
from runner.config.settings import DEBUG_LOOP, EVALUATE_LOOP, ONLINE_LOOP, TRAIN_LOOP
from runner.distributed.launcher import ProcessResult, run_on_ranks
from runner.distributed.parent_death import stop_with_terminal
from runner.distributed.torchrun import run_under_torchrun
from runner.distributed.world_size import launched_rank, launched_world_size, may_restart
from runner.errors import ConfigError, UserError, shell_path
from runner.launch.checks import (
    check_fits_dataset,
    check_parts,
    check_with_parts,
    resolve_automatic,
    set_threads,
)
from runner.launch.mirror import mirror_of, mirrored
from runner.launch.spec import (
    changed_data_note,
    run_spec,
    with_kept_schema,
    with_kept_transforms,
)
from runner.launch.status import print_status
from runner.rundir.json_files import read_jsonl
from runner.rundir.location import DEFAULT_RUN_DIR, check_writable
from runner.rundir.lock import LockedError
from runner.rundir.mirror.push import check_mirror
from runner.rundir.run import Run, RunSpec, open_run, reopen_run, was_put_back, write_result
from runner.worker import NOT_BEGUN, release_ranks, run_job, run_job_here

log = logging.getLogger("runner")


@contextmanager
def _own_log() -> Iterator[None]:
    """Keep our log records from the root's handlers: a library's would print them a second time.

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
    notes: Sequence[str] = (),
) -> int:
    """Run one job; return its exit code, see `launch_run`."""
    return launch_run(composed, allowed=allowed, command=command, resume=resume, notes=notes)[0]


def launch_run(
    composed: ComposedConfig,
    *,
    allowed: Sequence[str],
    command: Sequence[str],
    resume: Path | None = None,
    notes: Sequence[str] = (),
) -> tuple[int, Path | None]:
    """Run one job.

    Args:
        composed: the configuration, not yet checked.
        allowed: packages in which a `_target_` may be.
        command: the words of the command line, for the run's record.
        resume: the run directory to continue.
        notes: lines to print once it is known that the run continues.

    Returns:
        Its exit code, and its run directory; None on ranks that do not open it, and for jobs
        without one.

    Raises:
        UserError: for mistakes, before the job starts.
    """
    check_with_parts(with_row_count(composed), allowed)
    composed = with_kept_transforms(composed)
    schema = composed.config["dataset"].get("schema")
    is_gone = isinstance(schema, str) and not os.path.exists(os.path.expanduser(schema))
    if composed.config.get("run") is not None or is_gone:  # a changed run is a new one
        composed = with_kept_schema(composed)
    if launched_rank() > 0:  # rank 0 counts the rows, and sends the resulting settings
        return _execute(composed, None, allowed), None
    try:
        composed = resolve_automatic(composed, allowed)
    except UserError:
        release_ranks(composed, 2)
        raise
    for note in notes_before_start(composed):
        print_status(note)
    loop = get_key(composed.config, "loop._target_")
    if loop == DEBUG_LOOP:
        config, off = disable_background_work(composed.config)
        if off:
            print_status(
                f"loop=debug: sets {', '.join(off)}, so that everything runs in one thread"
            )
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
            if _is_page_missing(run.dir) and _is_page_wanted(composed):
                _write_report(run.dir)
            with mirrored(composed, run) as mirror:
                pass
            return mirror.code, run.dir
        for note in notes:
            print_status(note)
        if run.not_done is not None:
            print_status(f"{run.dir} is not done: {run.not_done}; it goes on from what is whole")
        for note in changed_data_note(composed) if loop == EVALUATE_LOOP else ():
            print_status(note)
        if run.resumed and (changed := run.meta["resumes"][-1].get("code_changed")):
            print_status(f"your code is not what the run had before: {', '.join(changed)} changed")
        with mirrored(composed, run) as mirror:
            code = _execute(composed, run, allowed)
            is_of_nothing = code in (130, 143) and not read_jsonl(run.metrics.path)
            if not is_of_nothing and _is_page_wanted(composed):
                _write_report(run.dir)
        return code or mirror.code, run.dir
    finally:
        run.close()


def is_follow_evaluation(composed: ComposedConfig) -> bool:
    """Return whether the job follows a training, to whose run directory it writes results.

    Raises:
        UserError: if it was given a separate run directory.
    """
    if not get_key(composed.config, "loop.follow"):
        return False
    if composed.run_dir != DEFAULT_RUN_DIR:
        raise UserError(
            f"hydra.run.dir={composed.run_dir}: with loop.follow=true the results lie beside the "
            f"training's, in {composed.config['run']}/follow"
        )
    return True


def _is_page_wanted(composed: ComposedConfig) -> bool:
    # Jobs of a sweep get no page, since each would have 5 MB of plotly.js.
    return get_key(composed.config, "report") is not False and "RUNNER_SWEEP" not in os.environ


def _is_page_missing(folder: Path) -> bool:
    """Return whether a completed run was killed before its page was written."""
    page, result = folder / "report.html", folder / "result.json"
    return not page.exists() or page.stat().st_mtime_ns < result.stat().st_mtime_ns


def _write_report(folder: Path) -> None:
    """Write `report.html` of a finished run; a failure here does not fail the run."""
    from runner.reporting.report.write import write_report

    try:
        write_report(folder)
    except Exception as error:
        log.warning("no report.html: %s", error, exc_info=not isinstance(error, UserError))
        advice = f"`python -m runner report {shell_path(folder)}` tries again"
        print_status(f"report.html could not be written: {error}; {advice}")


def _open_run_dir(
    composed: ComposedConfig, command: Sequence[str], resume: Path | None, loop: str
) -> Run:
    """Create a run directory, or open the existing one.

    Raises:
        ConfigError: for a run directory that would be a new one at each restart.
        UserError: if this is impossible; nothing was changed then.
    """
    template = composed.run_dir
    if loop == EVALUATE_LOOP and template == DEFAULT_RUN_DIR:
        template = "outputs/eval/{name}/{time}_{signature}"
    if resume is None:
        check_writable(template)
        if "{" in template and may_restart() and loop in (TRAIN_LOOP, ONLINE_LOOP):
            raise ConfigError(
                f"hydra.run.dir={template}: torchrun --max-restarts starts this command again when "
                "a rank or a node is lost, and each start would begin a new run; name one folder, "
                "such as hydra.run.dir=outputs/my-run"
            )
    if (mirror := mirror_of(composed)) is not None:
        check_mirror(resume or Path(template), mirror)
    spec = run_spec(composed, command)
    check_fits_dataset(composed.config)
    if resume is not None:
        check_resumable(resume, spec)
    patience_s = get_key(composed.config, "trainer.rank_timeout_s") if may_restart() else 0
    return _open_when_unlocked(template, spec, resume, patience_s)


def _open_when_unlocked(template: str, spec: RunSpec, resume: Path | None, patience_s: int) -> Run:
    """Open the run; its last process may still hold the lock on a node that was cut off.

    After `patience_s` seconds a rank that waits for others in vain has ended.

    Raises:
        LockedError: if it is still held after that; other errors as of `open_run`.
    """
    until_s = time.monotonic() + patience_s
    while True:
        try:
            if resume is not None:
                return reopen_run(resume, spec)
            return open_run(template, spec, project=PROJECT)
        except LockedError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(0.2)


def _execute(composed: ComposedConfig, run: Run | None, allowed: Sequence[str]) -> int:
    """Run the job in this process or on forked ranks, and record how it ended."""
    set_threads(composed)
    stop_with_terminal()
    size = composed.config["trainer"]["num_processes"]
    if launched_world_size() is not None:
        outcome = run_under_torchrun(lambda: run_job(composed, run, allowed))
    elif size > 1:
        work = partial(run_job, composed, run, allowed)
        grace_s = get_key(composed.config, "trainer.stop_grace_s")  # older runs lack it
        outcome = run_on_ranks(size, work, stop_grace_s=grace_s)
    else:
        outcome = run_job_here(composed, run, allowed)
    return _record_outcome(composed, run, outcome)


def _record_outcome(composed: ComposedConfig, run: Run | None, outcome: ProcessResult) -> int:
    """Report on the terminal and in the run directory how the job ended; return the exit code.

    Raises:
        UserError: for a user's mistake that the job has found.
    """
    rank = launched_rank()
    is_without_result = run is not None and not (run.dir / "result.json").exists()
    if outcome.status == "interrupted" and is_without_result:  # a signal ended all ranks at once
        outcome = replace(outcome, message=outcome.message or NOT_BEGUN)
    if (outcome.is_ok and not outcome.message) or outcome.status == "dismissed":
        return outcome.code
    if rank > 0:
        print_status(f"rank {rank}: {outcome.message}")
        return outcome.code
    if outcome.status == "interrupted":
        _record_failure(run, outcome.message, "", status="interrupted")
        print_status(outcome.message or "interrupted")
        return outcome.code
    if not outcome.message:  # the failure is its result, which is already printed
        return outcome.code
    if not (outcome.status == "refused" and run is not None and was_put_back(run)):
        _record_failure(run, outcome.message, outcome.trace)
    if outcome.status == "refused":
        if get_key(composed.config, "trainer.traceback"):
            print(outcome.trace, file=sys.stderr)
        raise UserError(outcome.message)
    log_file = run.dir / "log.txt" if run else None
    has_log = log_file is not None and log_file.exists()  # unless the run was removed
    where = f"; the traceback is in {log_file}" if has_log and outcome.trace else ""
    if outcome.trace and (not has_log or get_key(composed.config, "trainer.traceback")):
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
