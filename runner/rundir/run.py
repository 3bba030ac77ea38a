"""Opens run directories, and writes their records and results. Imports no torch."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import UserError, shell_path
from runner.rundir.diff import diff_settings, format_changes
from runner.rundir.identity import check_not_lost, why_not_done
from runner.rundir.json_files import JsonlFile, write_json, write_text
from runner.rundir.location import (
    create_and_lock,
    has_never_begun,
    lock_folder,
    remove_run_files,
    unwritable,
    update_latest_link,
)
from runner.rundir.lock import FolderLock
from runner.rundir.log_file import close_log_file, open_log_file
from runner.rundir.provenance import changed_own_code, collect_provenance, own_code
from runner.rundir.regular_files import read_bytes
from runner.rundir.run_files import read_config, read_meta, read_result, to_yaml
from runner.rundir.saved_config import NEXT_NAMES, config_record, replace_config
from runner.rundir.secrets import mask_values

# in meta.json: digests of the transforms in data/learnt.json, and of data/schema.yaml
FITTED_DIGEST, SCHEMA_DIGEST = "fitted_sha256", "schema_sha256"


@dataclass(frozen=True)
class RunSpec:
    """The facts of a run that its directory records."""

    config: Mapping[str, Any]  # references to the environment kept, for files and trackers
    signature_fields: Mapping[str, Any]  # the settings of `config` that determine the result
    signature: str  # hash of these fields with the environment's values, which no file has
    name: str
    choices: Mapping[str, str | None]
    command: Sequence[str]
    kind: str = "train"  # or eval
    source: Mapping[str, Any] | None = None  # of an evaluation: the evaluated run and its signature
    overrides: Sequence[str] = ()
    own_packages: Sequence[str] = ()  # of the user, which a `_target_` names


@dataclass
class Before:
    """The files that a resume has replaced, kept until it has begun to train."""

    config: str  # the text of config.yaml
    meta: Mapping[str, Any]
    result: Mapping[str, Any] | None
    is_kept: bool = True  # False: the run has continued, or was reverted


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
    not_done: str | None = None  # why a run with a completed result continues
    before_resume: Before | None = field(default=None, repr=False)  # None: it is no resume

    @property
    def name(self) -> str:
        return self.dir.name

    def close(self) -> None:
        """Close the files and release the lock."""
        self.metrics.close()
        self.perf.close()
        if self.log_handler is not None:
            close_log_file(self.log_handler)
        if self.lock is not None:
            self.lock.release()


class _NullJsonlFile(JsonlFile):
    """A log that writes nothing, for ranks other than 0."""

    def position(self) -> tuple[int, str]:
        return 0, ""

    def find_damage(self, num_bytes: int, sha256: str | None) -> str | None:
        """Return None, since rank 0 checks."""

    def append(self, row: Mapping[str, Any]) -> None:
        """Do nothing, since rank 0 writes the row."""

    def size(self) -> int:
        return 0

    def sync(self) -> None:
        """Do nothing, since nothing was written."""

    def truncate(self, num_bytes: int) -> None:
        """Do nothing, since rank 0 cuts the file."""


def read_only_run(folder: Path, signature: str, meta: Mapping[str, Any]) -> Run:
    """Return the run that another process has opened, for a rank that writes nothing into it."""
    metrics, perf = _NullJsonlFile(folder / "metrics.jsonl"), _NullJsonlFile(folder / "perf.jsonl")
    return Run(folder, signature, {}, meta, metrics, perf, lock=None)


def open_run(template: str, spec: RunSpec, *, project: Path) -> Run:
    """Open a run directory for a new run; a directory with the same signature is resumed.

    Args:
        template: a folder; with {name}, {time} or {signature} in it, always a new one.
        project: the project's folder, for its git state.

    The directory of a run that failed before its first update may be used by another one.

    Raises:
        UserError: if the directory cannot be written, belongs to another run, or is being written
            by another process.
        UnicodeEncodeError: if the current folder's name is no text.
    """
    os.getcwd().encode()  # the record names it; if it cannot, no folder is made
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
                "Another hydra.run.dir starts a new run; "
                f"`python -m runner resume {shell_path(folder)} ...` changes this one"
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
    not_done = None
    if result:
        check_not_lost(folder, result)
        is_whole = result.get("status") == "completed" and result.get("signature") == spec.signature
        # a stream that had ended may have new rows
        if is_whole and not result.get("stream_goes_on"):
            not_done = why_not_done(folder, result)
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
    if code_changed := changed_own_code(meta.get("own_code") or {}):
        note["code_changed"] = code_changed
    before, text = meta, to_yaml(spec.config)
    replaced = Before(read_bytes(folder / "config.yaml").decode(), before, result)
    meta = {
        **{k: v for k, v in meta.items() if k not in NEXT_NAMES},
        **config_record(text, spec.config, str(before.get("kind"))),
        "signature": spec.signature,
        "identity": spec.signature_fields,
        "choices": spec.choices,
        "own_code": own_code(spec.own_packages),
        "resumes": [*meta.get("resumes", []), note],
    }
    replace_config(folder, text, before, meta)
    # the note has kept the result, and the run is open again
    (folder / "result.json").unlink(missing_ok=True)
    return _make_run(
        *(folder, lock, spec, meta),
        resumed=True,
        before_resume=replaced,
        not_done=not_done,
        log_handler=open_log_file(folder / "log.txt"),
    )


def revert_resume(run: Run, reason: str) -> None:
    """Restore the files of a run from before its resume, and note the refusal.

    Does nothing on other ranks than 0, or once the run has begun to train.
    """
    before = run.before_resume
    if before is None or not before.is_kept:
        return
    before.is_kept = False
    *earlier, last = run.meta["resumes"]
    meta_with_refusal = {**before.meta, "resumes": [*earlier, {**last, "refused": reason}]}
    replace_config(run.dir, before.config, run.meta, meta_with_refusal)
    if before.result is not None:
        write_json(run.dir / "result.json", before.result)


def was_put_back(run: Run) -> bool:
    """Tell whether `revert_resume` has reverted a run, also in another process."""
    if not run.resumed or not (run.dir / "meta.json").exists():  # somebody has removed it
        return False
    return "refused" in read_meta(run.dir)["resumes"][-1]


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
        "run_id": secrets.token_hex(8),  # two runs with the same signature differ in it
        "signature": spec.signature,
        "identity": spec.signature_fields,
        "choices": spec.choices,
        "seed": spec.config.get("seed"),
        "overrides": list(spec.overrides),
        "source": spec.source,
        **collect_provenance(project, list(spec.command)),
        "own_code": own_code(spec.own_packages),
        "resumes": [],
        **config_record(text, spec.config, spec.kind),
    }
    write_json(folder / "meta.json", meta)
    return _make_run(folder, lock, spec, meta, log_handler=open_log_file(folder / "log.txt"))


def name_as_latest(run: Run) -> None:
    """Point `outputs/latest` to a new training once it is built: a refused one has no weights."""
    if run.meta.get("kind") == "train" and not run.resumed and not os.environ.get("RUNNER_SWEEP"):
        update_latest_link(run.dir)


def _make_run(
    folder: Path, lock: FolderLock, spec: RunSpec, meta: Mapping[str, Any], **more: Any
) -> Run:
    return Run(
        dir=folder,
        signature=spec.signature,
        config=spec.config,
        meta=meta,
        metrics=JsonlFile(folder / "metrics.jsonl"),
        perf=JsonlFile(folder / "perf.jsonl"),
        lock=lock,
        **more,
    )


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


def record_in_meta(run: Run, name: str, value: Any) -> None:
    """Add facts to `meta.json` that are known only after parts of the run are built."""
    write_json(run.dir / "meta.json", {**read_meta(run.dir), name: value})


def write_result(run: Run, result: Mapping[str, Any]) -> None:
    """Write `result.json` atomically, with secrets masked."""
    result = mask_values(result)
    write_json(run.dir / "result.json", {**result, "signature": run.signature})
