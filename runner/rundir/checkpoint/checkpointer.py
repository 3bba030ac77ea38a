"""Saving beside training: the state is copied, the rest happens in a thread."""

from __future__ import annotations

import errno
import secrets
import shutil
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from torch import Tensor

from runner.distributed.ranks import current_ranks
from runner.errors import UserError
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
    Manifest,
    encode_manifest,
)
from runner.rundir.checkpoint.tensors import HostBuffer, StagedFile, stage_tensors, write_staged
from runner.rundir.json_files import sync_folder


@dataclass(frozen=True)
class _PendingSave:
    step: int
    temporary: Path
    files: list[StagedFile]
    values: bytes
    protect: tuple[int, ...]


class Checkpointer:
    """The only writer of a folder of checkpoints. At most one save is under way.

    Collective: with several ranks, all make it and call each method alike; rank 0 renames.
    Making it clears up after a writer that died. A save that failed removes its temporary files and
    is told as CheckpointError by the next `save`, `finish` or `discard_after`, once.
    """

    def __init__(
        self, folder: Path, *, keep: int, warn: Callable[[str], None] = warnings.warn
    ) -> None:
        if keep < 1:
            raise ValueError(f"checkpoint.keep is {keep}; at least one must be kept")
        self.folder = folder
        self._keep = keep
        self._warn = warn
        # a group of its own: the writing thread talks to the others while training uses theirs
        self._ranks = current_ranks().with_new_group()
        self._buffer = HostBuffer()
        self._writer: Thread | None = None
        self._failure: Exception | None = None
        self._notes: list[str] = []  # warnings of the thread, told by the caller's
        if self._ranks.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            remove_stale(folder)

    def prepare(self, tensors: Mapping[str, Tensor]) -> None:
        """Get the memory for copying these, in a thread, so that the first save need not."""
        self.finish()
        self._start(lambda: self._buffer.prepare(tensors.values()))

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        values: Mapping[str, Any],
        *,
        protect: Collection[int] = (),
        wait: bool = False,
    ) -> None:
        """Copy the state, then write it in a thread; a save under way is waited for first.

        Once the new one is whole, all others go but the `keep` newest and the steps in `protect`.
        A checkpoint of the same step is replaced.

        Raises: CheckpointError for the save before, with `wait` for this one too; TypeError for
        values that JSON cannot hold.
        """
        assert step >= 0
        self.finish()
        name = self._ranks.broadcast_object(f"{TEMPORARY_PREFIX}step-{step}-{secrets.token_hex(4)}")
        text = dump_json(values)
        files = stage_tensors(tensors, self._buffer, self._ranks)
        job = _PendingSave(step, self.folder / name, files, text, tuple(protect))
        self._start(lambda: self._run(job))
        if wait:
            self.finish()

    def finish(self) -> None:
        """Wait for the save under way. Raises: CheckpointError if it failed."""
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
        """Steps of the checkpoints with a whole manifest and files of the right size, ascending."""
        return saved_steps(self.folder)

    def open_latest(self) -> Checkpoint | None:
        """The newest that verifies (`find_latest`); rank 0 reads it for all."""
        found: Checkpoint | Exception | None = None
        if self._ranks.rank == 0:
            try:
                found = find_latest(self.folder, self._warn)
            except (UserError, OSError) as error:
                found = error
        found = self._ranks.broadcast_object(found)
        if isinstance(found, Exception):
            raise found
        return found

    def remove_after(self, step: int) -> None:
        """Remove all later checkpoints, whole or not: a run goes on from `step` and makes its own.

        To be called before the logs are cut back to `step`, which later ones would not fit.
        """
        self.finish()
        if self._ranks.rank == 0:
            for later, path in reversed(step_folders(self.folder).items()):
                if later > step:
                    remove_checkpoint(path)
            sync_folder(self.folder)
        self._ranks.broadcast_object(None)

    def _start(self, work: Callable[[], None]) -> None:
        # no daemon: a program that ends without `finish` still ends its last save
        self._writer = Thread(target=work, name="checkpoint-writer")
        self._writer.start()

    def _run(self, job: _PendingSave) -> None:
        """The thread: every rank writes its tensors, rank 0 all else."""
        mine: tuple[dict[str, FileDigest], Exception | None]
        try:
            job.temporary.mkdir(exist_ok=True)
            mine = write_staged(job.files, self._buffer, job.temporary), None
        except Exception as error:
            mine = {}, error
        try:
            everyone = self._ranks.all_gather_object(mine)
            failure = self._seal(job, everyone) if self._ranks.rank == 0 else None
            self._failure = self._ranks.broadcast_object(failure)
        except RuntimeError as error:  # of the exchange: this thread's error would be seen by none
            self._failure = CheckpointError(
                f"the checkpoint of step {job.step} was not saved in {self.folder}: another rank "
                f"is gone or does not answer ({_reason(error)})"
            )

    def _seal(
        self, job: _PendingSave, everyone: list[tuple[dict[str, FileDigest], Exception | None]]
    ) -> CheckpointError | None:
        """Make the files of all ranks a checkpoint, or leave no trace of them."""
        sums = {name: s for files, _ in everyone for name, s in files.items()}
        try:
            for _, error in everyone:
                if error is not None:
                    raise error
            sums[VALUES_FILE] = write_file(job.temporary / VALUES_FILE, [job.values])
            manifest = encode_manifest(Manifest(job.step, sums))
            write_file(job.temporary / MANIFEST_FILE, [manifest])
            sync_folder(job.temporary)
            commit_checkpoint(job.temporary, self.folder / f"step-{job.step}")
        except Exception as error:
            return self._abandon(job, error)
        try:
            remove_stale(self.folder)
            remove_old(self.folder, newest=job.step, keep=self._keep, protect=job.protect)
        except OSError as error:
            self._notes.append(f"an old checkpoint was not removed: {_reason(error)}")
        return None

    def _abandon(self, job: _PendingSave, error: Exception) -> CheckpointError:
        try:
            remove_stale(self.folder)
            free = f"{shutil.disk_usage(self.folder).free:,}"
            last = max(self.saved_steps(), default=None)
        except OSError as further:  # the disk may be gone altogether
            self._notes.append(f"temporary files may be left: {_reason(further)}")
            free, last = "an unknown number of", None
        needed = sum(f.end - f.begin + len(f.header) for f in job.files) + len(job.values)
        intact = "no earlier one was found" if last is None else f"the one of step {last} is intact"
        failure = CheckpointError(
            f"the checkpoint of step {job.step} was not saved in {self.folder}: {_reason(error)}. "
            f"It needs {needed:,} bytes, {free} bytes are free; {intact}"
        )
        failure.__cause__ = error
        return failure


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        name = errno.errorcode.get(error.errno, str(error.errno))
        where = f" at {error.filename}" if error.filename else ""
        return f"{error.strerror} ({name}){where}"
    return f"{type(error).__name__}: {error}"
