"""Saving during training: the state is copied, and a thread does the rest."""

from __future__ import annotations

import errno
import secrets
import shutil
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from torch import Tensor

from runner.distributed.ranks import current_ranks
from runner.distributed.shards import is_in_file
from runner.errors import UserError, describe_error
from runner.rundir.checkpoint.files import FileDigest, dump_json, write_file
from runner.rundir.checkpoint.folder import (
    TEMPORARY_PREFIX,
    commit_checkpoint,
    find_latest,
    remove_checkpoint,
    remove_old,
    remove_stale,
    saved_steps,
    step_folders,
)
from runner.rundir.checkpoint.manifest import (
    MANIFEST_FILE,
    VALUES_FILE,
    Checkpoint,
    CheckpointError,
    CheckpointLink,
    Manifest,
    encode_manifest,
    link_to,
)
from runner.rundir.checkpoint.staging import HostBuffer, StagedFile, stage_tensors, write_staged
from runner.rundir.json_files import sync_path
from runner.rundir.secrets import mask_values


@dataclass(frozen=True)
class _PendingSave:
    """A save whose tensors have been copied."""

    step: int
    temporary: Path
    files: list[StagedFile]
    values: bytes
    protect: tuple[int, ...]
    on_saved: Callable[[Path], None] | None
    written: dict[str, FileDigest]  # tensors that are not copied, each in a separate file
    failure: Exception | None  # of writing those


class Checkpointer:
    """The only writer of a folder of checkpoints, with at most one save at a time.

    Collective: with several ranks, all construct it and call the same methods; rank 0 renames.
    The constructor removes leftovers of a killed writer. A save that fails removes its
    temporary files; the next call of a method then raises its CheckpointError, once.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        warn: Callable[[str], None] = warnings.warn,
        run_id: str | None = None,
    ) -> None:
        """Create the folder if it does not exist, and remove leftovers.

        Args:
            folder: the folder of checkpoints.
            keep: how many of the newest checkpoints stay.
            warn: is called with warnings.
            run_id: of the run that writes them, which their manifests name.

        Raises:
            ValueError: if `keep` is below 1.
        """
        if keep < 1:
            raise ValueError(f"checkpoint.keep is {keep}; at least one must be kept")
        self.folder = folder
        self._keep = keep
        self._warn = warn
        self._run_id = run_id
        # the last checkpoint that was saved or restored, on rank 0
        self.newest: CheckpointLink | None = None
        # a separate process group: writing threads communicate while training uses the other one
        self._ranks = current_ranks().with_new_group()
        self._buffer = HostBuffer()
        self._writer: Thread | None = None
        self._failure: Exception | None = None
        self._notes: list[str] = []  # warnings of the thread, which `finish` gives to `warn`
        self._has_told_of_waiting = False
        if self._ranks.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            remove_stale(folder)

    def prepare(self, tensors: Mapping[str, Tensor]) -> None:
        """Allocate the memory for copying these tensors in a thread, ahead of the first save."""
        self.finish()
        self._start(lambda: self._buffer.prepare(tensors.values()))

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        values: Mapping[str, Any],
        *,
        protect: Collection[int] = (),
        on_saved: Callable[[Path], None] | None = None,
        wait: bool = False,
    ) -> None:
        """Copy the state and write it in a thread, after a running save has ended.

        Once the new checkpoint is complete, all others are removed except the `keep` newest and the
        steps in `protect`. A checkpoint of the same step is replaced.

        Args:
            step: the update after which the state is saved.
            tensors: the tensors by name.
            values: everything else, as JSON; secrets in it are masked.
            protect: steps whose checkpoints stay.
            on_saved: called on rank 0 with the complete checkpoint, in the thread that wrote it; an
                error that it raises becomes a warning.
            wait: whether to return only when the checkpoint is on the disk.

        Raises:
            CheckpointError: if the save before failed, or with `wait` this one.
            TypeError: for values that JSON cannot represent, or tensors that cannot be saved.
        """
        assert step >= 0
        self.finish()
        name = self._ranks.broadcast_object(f"{TEMPORARY_PREFIX}step-{step}-{secrets.token_hex(4)}")
        # the order of metrics in tables must stay after a resume
        text = dump_json(mask_values(values, everything=False), sort_keys=False)
        files = stage_tensors(tensors, self._buffer, self._ranks)
        in_files = [file for file in files if file.source is not None]
        self._tell_of_waiting(in_files)
        written, failure = (
            self._write_files(in_files, self.folder / name) if in_files else ({}, None)
        )
        files = [file for file in files if file.source is None]
        pending = _PendingSave(
            step, self.folder / name, files, text, tuple(protect), on_saved, written, failure
        )
        self._start(lambda: self._write(pending))
        if wait:
            self.finish()

    def _tell_of_waiting(self, in_files: Sequence[StagedFile]) -> None:
        """Warn once if tensors of this rank have no room for a copy."""
        sources = [file.source for file in in_files if file.source is not None]
        waits_for = sum(source.nbytes for source in sources if not is_in_file(source))
        if waits_for and not self._has_told_of_waiting:
            self._has_told_of_waiting = True
            self._warn(
                f"memory has no room for a copy of {waits_for / 1e9:.1f} GB of tables, so training "
                "waits at each save until they are written; a larger checkpoint.save_every saves "
                "less often"
            )

    def finish(self) -> None:
        """Wait for the running save.

        Raises:
            CheckpointError: if it failed.
        """
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        notes, self._notes = self._notes, []
        for note in notes:
            self._warn(note)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def saved_steps(self) -> list[int]:
        """Return the steps, ascending, whose manifest is intact and whose files have their size."""
        return saved_steps(self.folder)

    def open_latest(self, check: Callable[[Checkpoint], None] | None = None) -> Checkpoint | None:
        """Open the newest checkpoint that is intact; rank 0 reads it for all ranks.

        Args:
            check: raises a UserError for a checkpoint that does not belong to the run.

        Raises:
            UserError: on every rank, as `find_latest` and `check`.
            OSError: on every rank, if the folder cannot be read.
        """
        latest: Checkpoint | UserError | OSError | None = None
        if self._ranks.rank == 0:
            try:
                latest = find_latest(self.folder, self._warn)
                if latest is not None:
                    if check is not None:
                        check(latest)
                    self.newest = link_to(latest.manifest)
            except (UserError, OSError) as error:
                latest = error
        latest = self._ranks.broadcast_object(latest)
        if isinstance(latest, UserError | OSError):
            raise latest
        return latest

    def remove_after(self, step: int) -> None:
        """Remove all later checkpoints, intact or not, when a run continues from `step`.

        Call it before the logs are cut back to `step`, since later checkpoints would not fit them.
        """
        self.finish()
        if self._ranks.rank == 0:
            for later, path in reversed(step_folders(self.folder).items()):
                if later > step:
                    remove_checkpoint(path)
            sync_path(self.folder)
        self._ranks.broadcast_object(None)

    def _start(self, work: Callable[[], None]) -> None:
        # not a daemon, so that a program that ends without `finish` still completes its last save
        self._writer = Thread(target=work, name="checkpoint-writer")
        self._writer.start()

    def _write(self, pending: _PendingSave) -> None:
        """Write the tensors of this rank and, on rank 0, all else. Runs in the thread."""
        result = pending.written, pending.failure
        if result[1] is None:
            files, error = self._write_files(pending.files, pending.temporary)
            result = pending.written | files, error
        try:
            results = self._ranks.all_gather_object(result)
            failure = self._complete(pending, results) if self._ranks.rank == 0 else None
            self._failure = self._ranks.broadcast_object(failure)
        except RuntimeError as error:  # of the exchange; an error in this thread would be lost
            self._failure = CheckpointError(
                f"the checkpoint of step {pending.step} was not saved in {self.folder}: another "
                f"rank is gone or does not answer ({_reason(error)})"
            )

    def _write_files(
        self, files: list[StagedFile], folder: Path
    ) -> tuple[dict[str, FileDigest], Exception | None]:
        """Write files of tensors; an error is returned, for all ranks to know of it."""
        try:
            folder.mkdir(exist_ok=True)
            return write_staged(files, self._buffer, folder), None
        except Exception as error:
            return {}, error

    def _complete(
        self, pending: _PendingSave, results: list[tuple[dict[str, FileDigest], Exception | None]]
    ) -> CheckpointError | None:
        """Make a checkpoint of the files of all ranks, or remove them and return the error."""
        digests = {name: digest for files, _ in results for name, digest in files.items()}
        folder = pending.temporary
        try:
            for _, error in results:
                if error is not None:
                    raise error
            digests[VALUES_FILE] = write_file(folder / VALUES_FILE, [pending.values])
            manifest = Manifest(pending.step, digests, self._run_id, self.newest)
            write_file(folder / MANIFEST_FILE, [encode_manifest(manifest)])
            sync_path(folder)
            commit_checkpoint(folder, self.folder / f"step-{pending.step}")
        except Exception as error:
            return self._abandon(pending, error)
        self.newest = link_to(manifest)
        if pending.on_saved is not None:
            try:
                pending.on_saved(self.folder / f"step-{pending.step}")
            except Exception as error:  # of any kind: the checkpoint is there
                reason = describe_error(error)
                self._notes.append(f"step {pending.step} was not delivered: {reason}")
        try:
            remove_stale(self.folder)
            remove_old(self.folder, newest=pending.step, keep=self._keep, protect=pending.protect)
        except (OSError, MemoryError) as error:  # other ranks must not wait for this one for ever
            self._notes.append(f"an old checkpoint was not removed: {_reason(error)}")
        return None

    def _abandon(self, pending: _PendingSave, error: Exception) -> CheckpointError:
        """Remove the files of a save that failed, and return the error for the caller."""
        try:
            remove_stale(self.folder)
            free = f"{shutil.disk_usage(self.folder).free:,}"
            last = max(self.saved_steps(), default=None)
        except (OSError, MemoryError) as further:  # the disk may have failed altogether
            self._notes.append(f"temporary files may be left: {_reason(further)}")
            free, last = "an unknown number of", None
        needed = sum(f.end - f.begin + len(f.header) for f in pending.files) + len(pending.values)
        needed += sum(digest.size for digest in pending.written.values())
        intact = "no earlier one was found" if last is None else f"the one of step {last} is intact"
        is_limited = isinstance(error, OSError) and error.errno in (errno.EFBIG, errno.EDQUOT)
        limit = ", and a limit (`ulimit -f`) or a quota forbids to use them" if is_limited else ""
        failure = CheckpointError(
            f"the checkpoint of step {pending.step} was not saved in {self.folder}: "
            f"{_reason(error)}. It needs {needed:,} bytes, {free} bytes are free{limit}; {intact}"
        )
        failure.__cause__ = error
        return failure


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        name = errno.errorcode.get(error.errno, str(error.errno))
        where = f" at {error.filename}" if error.filename else ""
        return f"{error.strerror} ({name}){where}"
    return f"{type(error).__name__}: {error}"
