"""One job from a composed configuration to an exit code. torch is imported late, on purpose.

Order: check everything, fingerprint the data, sign, open the run directory, and only then import
what is heavy. A mistake is told in a fraction of a second and touches nothing.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.config.compose import ComposedConfig
from runner.config.locations import PROJECT
from runner.config.rules import check_config, get_key
from runner.config.rules.resume import check_resumable
from runner.config.settings import DEBUG_LOOP, EVALUATE_LOOP
from runner.config.signature import hash_fields, signature_fields
from runner.distributed.launcher import ProcessResult, run_on_ranks
from runner.distributed.torchrun import run_under_torchrun
from runner.distributed.world_size import launched_rank, launched_world_size
from runner.errors import DataError, UserError, combined_error
from runner.machine import set_thread_environment, usable_cores
from runner.rundir.json_files import dumps, read_jsonl
from runner.rundir.location import DEFAULT_RUN_DIR, check_writable
from runner.rundir.run import (
    Run,
    RunSpec,
    open_run,
    read_meta,
    reopen_run,
    write_result,
)
from runner.worker import release_ranks, run_job

log = logging.getLogger("runner")
_fingerprints: dict[str, str] = {}


def launch(
    composed: ComposedConfig,
    *,
    allowed: Sequence[str],
    command: Sequence[str],
    resume: Path | None = None,
) -> int:
    """Runs one job; returns the exit code. Raises: UserError before it starts.

    Args: allowed: packages a `_target_` may lie in; resume: the run directory to continue.
    """
    check_composed(composed, allowed)
    if launched_rank() > 0:
        return _execute(composed, None, allowed)
    for note in composed.notes:
        print_status(note)
    loop = get_key(composed.config, "loop._target_")
    if loop == DEBUG_LOOP:
        config, off = disable_background_work(composed.config)
        if off:
            print_status(f"loop=debug: {', '.join(off)}, for one thread of control")
        return _execute(replace(composed, config=config), None, allowed)
    if is_follow_evaluation(composed):
        return _execute(composed, None, allowed)
    try:
        run = _open_run_dir(composed, command, resume, loop)
    except UserError:
        release_ranks(composed, 2)
        raise
    try:
        if run.finished_result is not None:
            print_status(f"{run.dir} is done already: {_summary(run.finished_result)}")
            release_ranks(composed, 0)
            return 0
        code = _execute(composed, run, allowed)
        if get_key(composed.config, "report") is not False and "RUNNER_SWEEP" not in os.environ:
            _write_page(run.dir)
        return code
    finally:
        run.close()


def is_follow_evaluation(composed: ComposedConfig) -> bool:
    """Whether it evaluates beside a training, in whose run directory it writes its own rows.

    Raises: UserError for a run directory of its own.
    """
    if not get_key(composed.config, "loop.follow"):
        return False
    if composed.run_dir != DEFAULT_RUN_DIR:
        raise UserError(
            f"hydra.run.dir={composed.run_dir}: with loop.follow=true the results lie beside the "
            f"training's, in {composed.config['run']}/follow"
        )
    return True


def _write_page(folder: Path) -> None:
    """`report.html` of the run that has ended. Jobs of a sweep have the sweep's own instead:
    plotly.js makes each page 5 MB. Whatever goes wrong with it, the run has gone well."""
    from runner.reporting.report.write import write_report

    try:
        write_report(folder)
    except Exception as error:
        log.warning("no report.html: %s", error, exc_info=not isinstance(error, UserError))
        print_status(f"report.html could not be written: {error}; `report {folder}` tries again")


def _open_run_dir(
    composed: ComposedConfig, command: Sequence[str], resume: Path | None, loop: str
) -> Run:
    """The run directory, made or found. Raises: UserError, and nothing was changed."""
    template = _run_dir_template(composed, loop)
    if resume is None:
        check_writable(template)
    plan = run_spec(composed, command)
    if resume is not None:
        check_resumable(resume, plan)
        return reopen_run(resume, plan)
    return open_run(template, plan, project=PROJECT)


def check_composed(composed: ComposedConfig, allowed: Sequence[str]) -> None:
    """Raises: ConfigError with every mistake."""
    problems = [*composed.problems]
    problems += check_config(
        composed.config,
        composed.default_config,
        added_keys=composed.added_keys,
        allowed=allowed,
        from_run=composed.source_run is not None
        or bool(get_key(composed.config, "checkpoint.path")),
        source_config=composed.source_config,
    )
    if problems:
        raise combined_error(problems)


def print_status(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _run_dir_template(composed: ComposedConfig, loop: str) -> str:
    if loop == EVALUATE_LOOP and composed.run_dir == DEFAULT_RUN_DIR:
        return "outputs/eval/{name}/{time}_{signature}"
    return composed.run_dir


def run_spec(composed: ComposedConfig, command: Sequence[str] = ()) -> RunSpec:
    """What the run directory will say of this job. Reads the data's fingerprint; writes nothing.

    Raises: UserError for data that is not there.
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
    """Of the same settings it is asked once a process: the jobs of a sweep mostly share it."""
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
    """What an evaluation takes: a run goes on, so its newest checkpoint is part of what it is."""
    step = get_key(composed.config, "checkpoint.step")
    path = get_key(composed.config, "checkpoint.path")
    if composed.source_run is None:
        return {"path": os.path.abspath(path), "step": step}
    newest = max(
        (
            int(p.parent.name[5:])
            for p in composed.source_run.glob("checkpoints/step-*/manifest.json")
        ),
        default=None,
    )
    where = os.path.abspath(path or composed.source_run)
    signature = read_meta(composed.source_run)["signature"]
    return {"path": where, "signature": signature, "step": step, "newest": newest}


def _execute(composed: ComposedConfig, run: Run | None, allowed: Sequence[str]) -> int:
    """Builds the job and runs its loop, here or on ranks of its own. Whatever happens, the run
    directory says what."""
    trainer = composed.config["trainer"]
    size = trainer["num_processes"]
    set_thread_environment(trainer["num_threads"] or max(1, usable_cores() // size))
    if launched_world_size() is not None:
        ended = run_under_torchrun(lambda: run_job(composed, run, allowed))
    elif size > 1:
        ended = run_on_ranks(size, lambda: run_job(composed, run, allowed))
    else:
        ended = run_job(composed, run, allowed)
    return _record_outcome(composed, run, ended)


def _record_outcome(composed: ComposedConfig, run: Run | None, ended: ProcessResult) -> int:
    """Tells a person and the run directory how it ended. Raises: UserError for their mistakes."""
    rank = launched_rank()
    if (ended.is_ok and not ended.message) or ended.status == "dismissed":
        return ended.code
    if rank > 0:
        print_status(f"rank {rank}: {ended.message}")
        return ended.code
    if ended.status == "interrupted":
        _record_failure(run, ended.message, "", status="interrupted")
        print_status("interrupted")
        return ended.code
    if not ended.message:  # it has told its result, which is a failure
        return ended.code
    _record_failure(run, ended.message, ended.trace)
    if ended.status == "refused":
        if get_key(composed.config, "trainer.traceback"):
            print(ended.trace, file=sys.stderr)
        raise UserError(ended.message)
    where = f"; the traceback is in {run.dir / 'log.txt'}" if run and ended.trace else ""
    if ended.trace and (run is None or get_key(composed.config, "trainer.traceback")):
        print(ended.trace, file=sys.stderr)
    print_status(f"failed: {ended.message}{where}")
    return ended.code


def _record_failure(run: Run | None, message: str, trace: str, *, status: str = "failed") -> None:
    if run is None:
        return
    if trace:
        log.error("%s\n%s", message, trace)
    last = (read_jsonl(run.metrics.path) or [{}])[-1]
    result = {"status": status, "step": last.get("step"), "examples": last.get("examples")}
    try:
        write_result(run, {**result, "metrics": {}, "best": None, "error": message})
    except OSError as error:  # a full disk must not hide what went wrong first
        print_status(f"result.json could not be written: {error}")


def _summary(result: Mapping[str, Any]) -> str:
    metrics = result.get("metrics") or {}
    shown = [f"{k} {float(v):.5f}" for k, v in metrics.items() if k.startswith("test/")]
    return ", ".join([f"step {result.get('step')}", *shown[:4]])


# What else computes, or hides, the lines that one wants to step through; and its value without.
BACKGROUND_SETTINGS: dict[tuple[str, str], Any] = {
    ("dataset", "prefetch"): 0,
    ("dataset", "workers"): 0,
    ("trainer", "compile"): False,
}


def disable_background_work(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The same configuration without threads that read ahead and without compiled code.

    None of them changes a number. Returns: it, and what was turned off, to be told.
    """
    changed, told = dict(config), []
    for (group, key), value in BACKGROUND_SETTINGS.items():
        node = changed.get(group)
        if isinstance(node, Mapping) and node.get(key):
            changed[group] = {**node, key: value}
            told.append(f"{group}.{key}={str(value).lower()}")
    return changed, told
