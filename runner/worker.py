"""The part of a job that needs torch: builds it from a checked configuration and runs its loop.

torch is imported inside the functions, so that earlier steps do not wait for it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from runner.config.compose import ComposedConfig
from runner.config.proposed_length import AUTO_KEYS
from runner.config.rules import get_key
from runner.config.settings import EVALUATE_LOOP
from runner.config.targets import (
    ALLOWED_PACKAGES,
    check_target_names,
    find_unshipped_targets,
    is_in_packages,
)
from runner.distributed.launcher import ProcessResult, run_on_ranks
from runner.distributed.torchrun import ignore_sigterm
from runner.distributed.world_size import launched_rank, launched_world_size
from runner.errors import ConfigError, UserError, describe_raised_warning, is_interruption
from runner.machine.free_memory import address_limit_hint, is_out_of_memory
from runner.machine.imports import shadowed_modules_hint
from runner.rundir.diff import flatten
from runner.rundir.json_files import dumps
from runner.rundir.log_file import log_to_stderr
from runner.rundir.regular_files import open_regular
from runner.rundir.run import Run, name_as_latest, read_only_run, revert_resume, write_result
from runner.rundir.secrets import mask_secrets

NOT_BEGUN = "interrupted before it had begun"


def run_job(composed: ComposedConfig, run: Run | None, allowed: Sequence[str]) -> ProcessResult:
    """Build the job and run its loop; return how it ended.

    Collective, if ranks were started.

    Args:
        run: the open run directory. On ranks other than 0 it was opened by another process, or is
            None if only rank 0 knows it.
    """
    job = result = None
    is_main, is_launched = launched_rank() == 0, launched_world_size() is not None
    try:
        from runner.reporting.console import View
        from runner.training.builder import build_job

        if is_launched:
            ranks = _join_process_group(composed)
            run = _broadcast_run(run, ranks)
            composed = _broadcast_automatic(composed, ranks)
        with nullcontext() if is_main else redirect_to_rank_log(run):
            job = build_job(composed.config, run, view=View(), allowed=allowed, name=composed.name)
            if run is not None and is_main:
                name_as_latest(run)
            result = _run_loop(job)
        if is_launched:
            ignore_sigterm()  # another rank may still fail, but this one has a result
        if run is not None and is_main:
            _write_result(run, job, result)
        if is_launched:
            if result.status == "failed":
                ranks.broadcast_object(None)  # torchrun ends rank 0, too, when another one fails
            _leave_process_group()
    except _ReleasedError as released:
        return ProcessResult(released.code, "dismissed")
    except (Exception, KeyboardInterrupt) as error:
        if is_interruption(error) and result is not None:  # by Ctrl-C, after the loop had ended
            if run is not None and is_main:
                _write_result(run, job, result)
            return ProcessResult(130, result.status)
        if is_interruption(error):
            return ProcessResult(130, "interrupted", NOT_BEGUN)
        if isinstance(error, UserError):
            if run is not None and is_main:
                revert_resume(run, mask_secrets(str(error)))
            return ProcessResult(2, "refused", mask_secrets(str(error)), _masked_trace())
        message = _describe_error(error, allowed, is_built=job is not None)
        return ProcessResult(1, "failed", message, _masked_trace())
    code = exit_code(result)
    return ProcessResult(code, "failed" if code == 1 else result.status)


def run_job_here(
    composed: ComposedConfig, run: Run | None, allowed: Sequence[str]
) -> ProcessResult:
    """Call `run_job` without ranks; SIGTERM interrupts it like Ctrl-C, and a second one kills it.

    A loop finishes its update first; this covers the time before and after it.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        received.append(number)
        raise KeyboardInterrupt

    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return run_job(composed, run, allowed)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        outcome = run_job(composed, run, allowed)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return replace(outcome, code=143) if received and outcome.code == 130 else outcome


def _write_result(run: Run, job: Any, result: Any) -> None:
    values = {k: v for k, v in vars(result).items() if k != "notes"}
    own_metrics = {"own_metrics": dict(job.own_directions)} if job.own_directions else {}
    write_result(run, {**values, **result.notes, **own_metrics})


def _run_loop(job: Any) -> Any:
    """Run the loop of a job, which may be a user's own.

    Raises:
        ConfigError: if it returns no result.
    """
    result = job.loop(job)
    if not hasattr(result, "status"):
        what = type(result).__name__
        raise ConfigError(f"loop: it returned {what}; it must return a runner.Result")
    return result


_judged: dict[tuple[object, ...], str] = {}  # what was checked -> the refusal, if there was one


def judge_parts(
    composed: ComposedConfig, allowed: Sequence[str], *, in_own_process: bool = False
) -> None:
    """Check every `_target_` before any data is read and before any directory is made.

    Those of our options are known. Any other is resolved, which needs torch, and none is called.
    Patterns of `optimizer.parts` are checked against the names of the model's parameters, and the
    checkpoint of an evaluation against the model, if its settings have changed since training.

    Args:
        composed: the configuration, whose names and places of targets have been checked.
        in_own_process: keep torch out of this process, as needed for one that forks ranks.

    Raises:
        ConfigError: with a message for each `_target_` that is not a part of the expected kind, and
            for each key that a part does not take or lacks, or for a pattern that owns nothing.
    """
    unshipped = find_unshipped_targets(composed.config)
    nodes = tuple(target.removesuffix("_target_") for target, _ in unshipped)
    arguments = [name for name, _ in flatten(composed.config) if name.startswith(nodes)]
    patterns = _patterns(composed.config)
    source = _source_of_other_model(composed)
    evaluated = (source, dumps(composed.config["model"])) if source is not None else ()
    key = (*unshipped, *arguments, *allowed, *patterns, *evaluated)
    if not (unshipped or patterns or evaluated):
        return

    def judge() -> ProcessResult:
        from runner.training.builder import check_parts, check_patterns, check_source_weights

        try:
            check_parts(composed.config, allowed)
            if patterns:
                check_patterns(composed.config, allowed)
            if source is not None:
                check_source_weights(composed.config, source, allowed)
        except UserError as error:
            return ProcessResult(2, "refused", str(error))
        except Exception as error:  # from a module; the job meets it again, with its traceback
            return ProcessResult(1, "failed", str(error))
        return ProcessResult(0)

    if key not in _judged:
        outcome = run_on_ranks(1, judge) if in_own_process else judge()
        _judged[key] = outcome.message if outcome.status == "refused" else ""
    if refusal := _judged[key]:
        raise ConfigError(refusal)


def find_part_mistakes(config: Mapping[str, Any], allowed: Sequence[str]) -> Sequence[str]:
    """Return the messages about a user's own parts in a configuration that may be wrong elsewhere.

    There are none if the names of parts are wrong, or if the module of one fails.
    """
    if not find_unshipped_targets(config) or check_target_names(config, allowed):
        return ()
    from runner.training.builder import check_parts

    try:
        check_parts(config, allowed)
    except ConfigError as error:
        return error.problems or [str(error)]
    except Exception:  # it is met again when the other mistakes are mended
        return ()
    return ()


def _source_of_other_model(composed: ComposedConfig) -> Path | None:
    """Return the source of an evaluation's weights, if settings of the model have changed."""
    config, run = composed.config, composed.source_run
    is_evaluation = get_key(config, "loop._target_") == EVALUATE_LOOP
    if run is None or not is_evaluation or get_key(config, "loop.follow"):
        return None
    is_as_trained = composed.saved_config["model"] == composed.source_config.get("model")
    return None if is_as_trained else Path(get_key(config, "checkpoint.path") or run)


def _patterns(config: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what determines whether names in `optimizer.parts` are valid; nothing without parts.

    The jobs of a sweep are checked once for each model, not for each of its sizes, since each check
    takes a process that imports torch; a job checks its own model when it starts.
    """
    parts = config["optimizer"].get("parts")
    targets = (config["model"][name]["_target_"] for name in ("net", "loss"))
    return (*targets, *((p["pattern"], *sorted(p)) for p in parts)) if parts else ()


class _ReleasedError(Exception):
    """Rank 0 has no job for the other ranks: it has finished already, or was refused."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


def _broadcast_run(run: Run | None, ranks: Any) -> Run | None:
    """Collective. Send the open run directory, which under torchrun only rank 0 knows.

    Raises:
        _ReleasedError: on the other ranks, if rank 0 has sent an exit code instead.
    """
    sent = ranks.broadcast_object(None if run is None else (run.dir, run.signature, dict(run.meta)))
    if ranks.is_main or not ranks.is_distributed:
        return run
    if isinstance(sent, int):
        raise _ReleasedError(sent)
    return None if sent is None else read_only_run(*sent)


def _broadcast_automatic(composed: ComposedConfig, ranks: Any) -> ComposedConfig:
    """Collective. Send the numbers in place of each `auto`, which only rank 0 has counted."""
    sent = ranks.broadcast_object({g: composed.config.get(g) for g, _ in AUTO_KEYS})
    return replace(composed, config={**composed.config, **sent})


def release_ranks(composed: ComposedConfig, code: int) -> None:
    """End the other ranks started by torchrun, which wait for a run."""
    if (launched_world_size() or 1) == 1:
        return
    _join_process_group(composed).broadcast_object(code)
    _leave_process_group()


def _join_process_group(composed: ComposedConfig) -> Any:
    """Collective. Join the ranks that were started with this process."""
    from runner.config.settings import TrainerSettings, make_settings
    from runner.training.builder import join_ranks

    return join_ranks(make_settings(TrainerSettings, composed.config["trainer"]))


def _leave_process_group() -> None:
    from runner.distributed.process_group import leave_process_group

    leave_process_group()


@contextmanager
def redirect_to_rank_log(run: Run | None) -> Iterator[None]:
    """Redirect all output and logs of a rank other than 0 into `log.rank<N>.txt` of the run."""
    path = run.dir / f"log.rank{launched_rank()}.txt" if run is not None else Path(os.devnull)
    if run is None:
        log_file = os.open(path, os.O_WRONLY)
    else:
        log_file = open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    sys.stdout.flush()
    sys.stderr.flush()
    originals = [os.dup(1), os.dup(2)]
    try:
        os.dup2(log_file, 1)
        os.dup2(log_file, 2)
        with log_to_stderr():
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, original in enumerate(originals, start=1):
            os.dup2(original, number)
            os.close(original)
        os.close(log_file)


def exit_code(result: Any) -> int:
    """Return 0 for a completed or pruned job, 1 for a failed one, else 128 + the signal."""
    if result.status in ("completed", "pruned"):
        return 0
    return 128 + result.signal if result.signal else 1


def _masked_trace() -> str:
    # before it is cut to the length of a report, since half a secret would not be recognised
    return mask_secrets(traceback.format_exc())


def _describe_error(error: BaseException, allowed: Sequence[str], *, is_built: bool = True) -> str:
    text = mask_secrets(str(error)).strip()
    first = text.splitlines()[0] if text else ""
    if is_out_of_memory(error):
        helps = (
            "a smaller trainer.batch_size with a larger trainer.accumulate gives the same result "
            "in less memory"
            if is_built
            else "no batch was there yet, so its size does not help: narrower tables and layers "
            "do, most models have model.net.embedding_dim, and sharding.plan=disk keeps tables in "
            "files"
        )
        helps = "" if isinstance(error, ImportError) else f"; {helps}"
        return f"out of memory: {first or type(error).__name__}{helps}{address_limit_hint()}"
    if isinstance(error, Warning):
        return mask_secrets(describe_raised_warning(error))
    name = type(error).__name__
    message = (f"{name}: {first}" if first else name) + _place_in_own_code(error, allowed)
    return message + shadowed_modules_hint()


def _place_in_own_code(error: BaseException, allowed: Sequence[str]) -> str:
    """Return the last line in the user's packages on the way to an error; "" for none."""
    own_packages = [package for package in allowed if package not in ALLOWED_PACKAGES]
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_in_packages(frame.f_globals.get("__name__", ""), own_packages):
            path = Path(frame.f_code.co_filename)
            shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            place = f" ({shown}, line {line}, in {frame.f_code.co_name})"
    return place
