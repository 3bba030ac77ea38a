"""Keeps checkpoints readable although the training that wrote them removes old ones."""

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
from runner.rundir.identity import check_owner, run_identity
from runner.rundir.readers import read_signed_meta


@dataclass
class PinnedCheckpoints:
    """A folder of hard links to the files of checkpoints that are to be read.

    A link keeps a file's content when its other names are removed, and takes no space. Where a
    file cannot be linked, such as on another disk, it is copied. One process uses the folder at a
    time.
    """

    checkpoints: Path  # the training's folder of checkpoints
    folder: Path  # where the links are made
    warn: Callable[[str], None]
    seen: set[tuple[int, int]] = field(default_factory=set)  # step, inode of the manifest

    def pin_new(self) -> None:
        """Pin every whole checkpoint that was not seen yet."""
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
        shutil.rmtree(temporary, ignore_errors=True)  # a killed process left it
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
            self.warn(
                f"{path.name} was removed before it could be read, so it is left out; a larger "
                "checkpoint.keep of the training keeps it longer"
            )
            return False
        if final.exists():  # a resumed training has saved the same step again
            shutil.rmtree(final)
        os.rename(temporary, final)
        return True

    def steps(self) -> list[int]:
        """Return the steps of the pinned checkpoints, ascending."""
        return list(step_folders(self.folder))

    def open(self, step: int) -> Checkpoint | None:
        """Open and verify a pinned checkpoint.

        Returns:
            None if it is damaged; it is then reported and released.

        Raises:
            UserError: if it cannot be used for another reason; it is released.
        """
        try:
            saved = open_checkpoint(self.folder / f"step-{step}")
            check_owner(saved, run_identity(read_signed_meta(self.checkpoints.parent)))
            return saved
        except (DamagedError, OSError) as error:
            self.warn(f"the checkpoint of step {step} is passed over: {error}")
        except UserError as error:
            self.release(step)
            raise error
        self.release(step)
        return None

    def release(self, step: int) -> None:
        """Remove the links to a checkpoint."""
        shutil.rmtree(self.folder / f"step-{step}", ignore_errors=True)
