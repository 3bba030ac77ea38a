"""The run directory: how it is opened, what it says of a run, and its result. Imports no torch."""

from __future__ import annotations

import io
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.rundir.diff import diff_settings, format_changes
from runner.rundir.identity import draw_run_id, why_not_done
from runner.rundir.json_files import JsonlFile, dumps, read_json, write_json, write_text
from runner.rundir.location import (
    create_and_lock,
    has_never_begun,
    lock_folder,
    remove_run_files,
    unwritable,
    update_latest_link,
)
from runner.rundir.lock import FolderLock
from runner.rundir.moved_targets import with_current_targets
from runner.rundir.plain_yaml import read_plain_yaml
from runner.rundir.provenance import collect_provenance
from runner.rundir.readers import check_shapes, read_signed_meta
from runner.rundir.regular_files import check_run_files, open_for_append, read_bytes, unshare
from runner.rundir.saved_config import config_record, replace_config
from runner.rundir.secrets import SecretMaskingFormatter, mask_values

LOG_LAYOUT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_log = logging.getLogger("runner")  # a launch keeps it from passing on to the root
FITTED_DIGEST = "fitted_sha256"  # in meta.json: of the transforms in data/learnt.json

_MAX_REFERENCES = 12  # a run saves resolved values; only those that read the environment refer
# what every job needs
CONFIG_NODES = ("model", "dataset", "optimizer", "task", "loop", "trainer", "checkpoint", "metrics")
_CONFIG_SHAPES = dict.fromkeys(
    (*CONFIG_NODES, "scheduler", "sharding", "callbacks", "tracker"), dict
)
_RESULT_SHAPES = {
    **dict.fromkeys(("step", "examples"), int),
    **dict.fromkeys(("metrics", "best"), dict),
    **dict.fromkeys(("status", "error"), str),
}


@dataclass(frozen=True)
class RunSpec:
    """What a run directory says of its run."""

    config: Mapping[str, Any]  # references to the environment kept, for files and trackers
    signature_fields: Mapping[str, Any]  # the settings of `config` that determine the result
    signature: str  # hash of these fields with the environment's values, which no file has
    name: str
    choices: Mapping[str, str | None]
    command: Sequence[str]
    kind: str = "train"  # or eval
    source: Mapping[str, Any] | None = None  # of an evaluation: its run and that run's signature
    overrides: Sequence[str] = ()


@dataclass(frozen=True)
class Run:
    """An open run directory, locked by this process."""

    dir: Path
    signature: str
    config: Mapping[str, Any]  # with `${oc.env:...}` kept; trackers get this one
    meta: Mapping[str, Any]
    metrics: JsonlFile
    perf: JsonlFile
    lock: FolderLock | None  # None: another process has the lock
    resumed: bool = False
    finished_result: Mapping[str, Any] | None = None  # of a run that has completed already
    log_handler: logging.Handler | None = field(default=None, repr=False)
    not_done: str | None = None  # why one that says that it has completed goes on
    # the text of config.yaml and the content of meta.json that a resume has replaced
    before_resume: tuple[str, Mapping[str, Any]] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.dir.name

    def close(self) -> None:
        """Close the files and release the lock."""
        self.metrics.close()
        self.perf.close()
        if self.log_handler is not None:
            for logger in (logging.getLogger(), _log):
                logger.removeHandler(self.log_handler)
            self.log_handler.close()
        if self.lock is not None:
            self.lock.release()


class _NullJsonlFile(JsonlFile):
    """A log that writes nothing, for ranks other than 0."""

    def position(self) -> tuple[int, str]:
        return 0, ""

    def find_damage(self, num_bytes: int, sha256: str | None) -> str | None:
        """Find nothing, since rank 0 looks."""

    def append(self, row: Mapping[str, Any]) -> None:
        """Do nothing, since rank 0 writes the row."""

    def size(self) -> int:
        return 0

    def sync(self) -> None:
        """Do nothing, since nothing was written."""

    def truncate(self, num_bytes: int) -> int:
        return 0


def read_only_run(folder: Path, signature: str, meta: Mapping[str, Any]) -> Run:
    """Return the run that another process has opened, for a rank that writes nothing into it."""
    metrics, perf = _NullJsonlFile(folder / "metrics.jsonl"), _NullJsonlFile(folder / "perf.jsonl")
    return Run(folder, signature, {}, meta, metrics, perf, lock=None)


def open_run(template: str, spec: RunSpec, *, project: Path) -> Run:
    """Open a run directory for a new run; a directory with the same signature is resumed.

    Args:
        template: a folder; with {name}, {time} or {signature} in it, always a new one.
        spec: what the directory says of the run.
        project: the project's folder, for its git state.

    A run that failed before its first update does not stand in the way of another one.

    Raises:
        UserError: if the directory cannot be written, belongs to another run, or is being written
            by another process.
    """
    folder, lock = create_and_lock(template, name=spec.name, signature=spec.signature)
    with _release_on_error(folder, lock):
        if not (folder / "meta.json").exists():
            return _start_run(folder, lock, spec, project)
        meta = read_meta(folder)
        if meta["signature"] != spec.signature and has_never_begun(folder):
            remove_run_files(folder)
            return _start_run(folder, lock, spec, project)
        if meta["signature"] != spec.signature:
            changes = signature_changes(folder, meta, spec)
            what = f":\n{format_changes(changes)}" if changes else " values from the environment"
            raise UserError(
                f"{folder} holds another run ({meta.get('signature')}, not {spec.signature}); "
                f"nothing was changed. It differs in{what}\n"
                f"Another hydra.run.dir starts a new run; `resume {folder} ...` changes this one"
            )
        return _continue_run(folder, lock, meta, spec)


def reopen_run(folder: Path, spec: RunSpec) -> Run:
    """Open a run directory for `resume`, and note in it what the overrides have changed.

    Raises:
        UserError: if it is not a run directory, cannot be written, or is being written by another
            process.
    """
    with _release_on_error(folder, lock := lock_folder(folder)):
        return _continue_run(folder, lock, read_meta(folder), spec)


def _continue_run(folder: Path, lock: FolderLock, meta: Mapping[str, Any], spec: RunSpec) -> Run:
    result = read_result(folder)
    same = result is not None and result.get("signature") == spec.signature
    not_done = None
    # a stream that had ended may have more rows by now
    if result and same and result.get("status") == "completed" and not result.get("stream_goes_on"):
        not_done = why_not_done(folder, meta, result)
        if not_done is None:
            return _make_run(folder, lock, spec, meta, finished_result=result)
    note: dict[str, Any] = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": list(spec.command),
        "overrides": list(spec.overrides),
        "result_before": result,
    }
    if meta["signature"] != spec.signature:
        note["signature_before"] = meta["signature"]
        note["changed"] = [list(c) for c in signature_changes(folder, meta, spec)]
    replaced, text = (read_bytes(folder / "config.yaml").decode(), meta), to_yaml(spec.config)
    meta_before = meta
    meta = {
        **{k: v for k, v in meta.items() if k != "config_sha256_next"},
        **config_record(text, spec.config),
        "signature": spec.signature,
        "identity": spec.signature_fields,
        "choices": spec.choices,
        "resumes": [*meta.get("resumes", []), note],
    }
    replace_config(folder, text, meta_before, meta)
    # the note has kept the result, and the run is open again
    (folder / "result.json").unlink(missing_ok=True)
    return _attach_log_file(
        replace(
            _make_run(folder, lock, spec, meta, resumed=True),
            before_resume=replaced,
            not_done=not_done,
        )
    )


def signature_changes(
    folder: Path, meta: Mapping[str, Any], spec: RunSpec
) -> list[tuple[str, Any, Any]]:
    """Return (key, before, now) of the changes in what determines the result.

    For data, which is signed by its fingerprint, the changed settings are listed, too.
    """
    changes = diff_settings(meta.get("identity", {}), spec.signature_fields)
    if any(key == "data" for key, _, _ in changes):
        before = read_config(folder).get("dataset", {})
        settings = diff_settings(before, spec.config.get("dataset", {}))
        changes += [(f"dataset.{key}", old, new) for key, old, new in settings]
    return changes


def _start_run(folder: Path, lock: FolderLock, spec: RunSpec, project: Path) -> Run:
    text = to_yaml(spec.config)
    write_text(folder / "config.yaml", text)
    meta = {
        "kind": spec.kind,
        "name": spec.name,
        "run_id": draw_run_id(),
        "signature": spec.signature,
        "identity": spec.signature_fields,
        "choices": spec.choices,
        "seed": spec.config.get("seed"),
        "overrides": list(spec.overrides),
        "source": spec.source,
        **collect_provenance(project, list(spec.command)),
        "resumes": [],
        **config_record(text, spec.config),
    }
    write_json(folder / "meta.json", meta)
    if spec.kind == "train" and not os.environ.get("RUNNER_SWEEP"):
        update_latest_link(folder)
    return _attach_log_file(_make_run(folder, lock, spec, meta))


def _make_run(
    folder: Path,
    lock: FolderLock,
    spec: RunSpec,
    meta: Mapping[str, Any],
    *,
    resumed: bool = False,
    finished_result: Mapping[str, Any] | None = None,
) -> Run:
    return Run(
        dir=folder,
        signature=spec.signature,
        config=spec.config,
        meta=meta,
        metrics=JsonlFile(folder / "metrics.jsonl"),
        perf=JsonlFile(folder / "perf.jsonl"),
        lock=lock,
        resumed=resumed,
        finished_result=finished_result,
    )


def _attach_log_file(run: Run) -> Run:
    """Write all that is logged, including warnings of libraries, to `log.txt` as well."""
    unshare(run.dir / "log.txt")
    handler = _LogHandler(io.TextIOWrapper(open_for_append(run.dir / "log.txt"), encoding="utf-8"))
    handler.setFormatter(SecretMaskingFormatter(LOG_LAYOUT))
    handler.setLevel(logging.INFO)
    logging.getLogger().addHandler(handler)
    if not _log.propagate:
        _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # a full disk must not fill the terminal with tracebacks
    return replace(run, log_handler=handler)


class _LogHandler(logging.StreamHandler[io.TextIOWrapper]):
    """Writes to a file that was opened for it, and closes it."""

    def close(self) -> None:
        self.stream.close()
        super().close()


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Send all that is logged to standard error, in place of the `log.txt` of rank 0.

    What a view says is left out: it prints that itself.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SecretMaskingFormatter(LOG_LAYOUT))
    view, root = logging.getLogger("runner.reporting.console"), logging.getLogger()
    before, level = root.handlers[:], view.level
    root.handlers[:] = [handler]
    view.setLevel(logging.CRITICAL)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        root.handlers[:] = before
        view.setLevel(level)


@contextmanager
def _release_on_error(folder: Path, lock: FolderLock) -> Iterator[None]:
    """Release the lock if the run cannot be opened.

    Raises:
        UserError: in place of an error of the file system, such as a full disk.
    """
    try:
        yield
    except OSError as error:
        lock.release()
        raise UserError(unwritable(folder, error)) from error
    except BaseException:
        lock.release()
        raise


def to_yaml(config: Mapping[str, Any]) -> str:
    """Write a configuration as YAML, with its references kept."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(dict(config)), resolve=False)


def read_meta(folder: Path) -> dict[str, Any]:
    """Read `meta.json`.

    Raises:
        UserError: if the folder is not a run directory, with what is missing.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such run directory")
    path = folder / "meta.json"
    if not path.exists() or not (folder / "config.yaml").exists():
        missing = "meta.json" if not path.exists() else "config.yaml"
        hint = ""
        if folder.parent.name == "checkpoints":
            hint = f"; this is a checkpoint, its run is {folder.parent.parent}"
        elif (folder / "study.db").exists():
            hint = "; this is a sweep, whose jobs are runs; `resume` continues the whole sweep"
        raise UserError(f"{folder}: no run directory: it has no {missing}{hint}")
    check_run_files(folder)
    return read_signed_meta(folder)


def read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration of a run, with today's names of its targets.

    References to the environment stay references.

    Raises:
        UserError: if the file is damaged, or is more than plain YAML.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    text = read_plain_yaml(folder / "config.yaml")
    try:
        config = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)
    except (YAMLError, OmegaConfBaseException, OSError) as error:  # a scalar is an OSError
        raise UserError(f"{folder / 'config.yaml'}: damaged: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.yaml'}: damaged: it is not a mapping")
    if len(re.findall(r"\$\{(?!oc\.env:)", dumps(config))) > _MAX_REFERENCES:
        raise UserError(
            f"{folder / 'config.yaml'}: refused: more than {_MAX_REFERENCES} values refer to "
            "others, which may multiply without end"
        )
    current: dict[str, Any] = with_current_targets({str(k): v for k, v in config.items()})
    check_shapes(folder / "config.yaml", current, _CONFIG_SHAPES)
    return current


def record_in_meta(run: Run, name: str, value: Any) -> None:
    """Add to `meta.json` what is known only once parts of the run are built."""
    write_json(run.dir / "meta.json", {**read_meta(run.dir), name: value})


def read_result(folder: Path) -> dict[str, Any] | None:
    """Read `result.json`; None if the run has not ended.

    Raises:
        UserError: if it is damaged.
    """
    path = folder / "result.json"
    if not os.path.lexists(path):
        return None
    result = read_json(path)
    if not isinstance(result, dict):
        raise UserError(f"{path}: damaged: it is no mapping")
    check_shapes(path, result, _RESULT_SHAPES)
    check_shapes(path, result.get("best") or {}, {"step": int})
    return result


def write_result(run: Run, result: Mapping[str, Any]) -> None:
    """Write `result.json` atomically, with secrets masked."""
    result = mask_values(result)
    write_json(run.dir / "result.json", {**result, "signature": run.signature})
