"""Checkpoints held fast while they are read: the training that wrote them removes old ones."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from runner.errors import UserError
from runner.rundir.checkpoint import Checkpoint, DamagedError, open_checkpoint
from runner.rundir.checkpoint.folder import TEMPORARY_PREFIX, step_folders
from runner.rundir.checkpoint.manifest import MANIFEST_FILE


@dataclass
class PinnedCheckpoints:
    """Hard links, in a folder of our own, to the files of checkpoints that are to be read.

    A link keeps a file's content when its other names are removed, and costs nothing where it lies
    on the same disk; elsewhere it is a copy. One process uses the folder at a time.
    """

    checkpoints: Path  # of the training
    folder: Path  # ours
    warn: Callable[[str], None]
    seen: set[tuple[int, int]] = field(default_factory=set)  # step and inode of a manifest

    def pin_new(self) -> None:
        """Pins every whole checkpoint that was not seen yet."""
        for step, path in step_folders(self.checkpoints).items():
            try:
                key = (step, (path / MANIFEST_FILE).stat().st_ino)
            except FileNotFoundError:  # it is being removed
                continue
            if key not in self.seen and self._pin(path):
                self.seen.add(key)

    def _pin(self, path: Path) -> bool:
        final = self.folder / path.name.removeprefix(".old-")
        temporary = self.folder / f"{TEMPORARY_PREFIX}{final.name}"
        shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
        temporary.mkdir()
        try:
            for name in os.listdir(path):
                try:
                    os.link(path / name, temporary / name)
                except FileNotFoundError:
                    raise
                except OSError:  # another disk, or one without links
                    shutil.copyfile(path / name, temporary / name)
        except FileNotFoundError:
            shutil.rmtree(temporary)
            self.warn(f"{path.name} was removed before it could be read")
            return False
        if final.exists():  # one of the same step that a resumed training has made anew
            shutil.rmtree(final)
        os.rename(temporary, final)
        return True

    def steps(self) -> list[int]:
        """Of the checkpoints pinned, ascending."""
        return list(step_folders(self.folder))

    def open(self, step: int) -> Checkpoint | None:
        """One of them, verified; a damaged one is told, let go, and None."""
        try:
            return open_checkpoint(self.folder / f"step-{step}")
        except (DamagedError, OSError) as error:
            self.warn(f"the checkpoint of step {step} is passed over: {error}")
        except UserError as error:
            self.release(step)
            raise error
        self.release(step)
        return None

    def release(self, step: int) -> None:
        shutil.rmtree(self.folder / f"step-{step}", ignore_errors=True)
