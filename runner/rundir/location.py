"""Where run directories lie: names, the folder itself, whether it can be written."""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path

from runner.errors import UserError
from runner.rundir.lock import FolderLock

DEFAULT_RUN_DIR = "outputs/{name}/{time}_{signature}"  # as conf/config.yaml has it
# What lies in a folder before a run has its meta.json: traces of a start that was killed, or what
# a sweep puts beside. Anything else means that the folder is somebody's.
_EARLY = {".lock", "config.yaml", ".config.yaml.tmp", ".meta.json.tmp", "log.txt", "job.log"}


def create_and_lock(template: str, *, name: str, signature: str) -> tuple[Path, FolderLock]:
    """The folder, made and locked. A template with placeholders never names an existing one."""
    text = template
    for mark, value in (
        ("{name}", name),
        ("{time}", time.strftime("%Y-%m-%d_%H-%M-%S")),
        ("{signature}", signature),
    ):
        text = text.replace(mark, value)
    is_fresh = text != template
    for attempt in range(1, 1000):
        folder = Path(text if attempt == 1 else f"{text}_{attempt}")
        try:
            folder.mkdir(parents=True, exist_ok=not is_fresh)
        except FileExistsError:
            if not folder.is_dir():
                raise UserError(f"{folder}: is a file, not a folder") from None
            continue
        except OSError as error:
            raise _unwritable(folder, error) from error
        check_not_foreign(folder)
        return folder, lock_folder(folder)
    raise UserError(f"{text}: a thousand runs of this name exist already")


def check_not_foreign(folder: Path) -> None:
    """A folder that is empty, a run directory, or one whose beginning was cut short.

    Raises: UserError, before anything is written into somebody's folder.
    """
    names = {p.name for p in folder.iterdir()}
    strangers = sorted(names - _EARLY)
    if strangers and "meta.json" not in names:
        raise UserError(
            f"{folder}: not a run directory and not empty ({', '.join(strangers[:5])}); "
            "nothing was changed"
        )


def lock_folder(folder: Path) -> FolderLock:
    try:
        return FolderLock(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error


def check_writable(template: str) -> None:
    """Fails early where the folder cannot be made, before any data is read. Makes nothing.

    Raises: UserError.
    """
    folder = Path(template.split("{")[0] or ".").absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise _unwritable(folder, NotADirectoryError(errno.ENOTDIR, "is a file, not a folder"))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unwritable(folder, PermissionError(errno.EACCES, "no permission to write"))


def _unwritable(folder: Path, error: OSError) -> UserError:
    reason = error.strerror or str(error)
    return UserError(
        f"{folder}: cannot write the run directory: {reason}; hydra.run.dir=DIR puts it elsewhere"
    )


def update_latest_link(folder: Path) -> None:
    """The link `latest` in the nearest `outputs/` above the run, if there is one."""
    outputs = next((p for p in folder.absolute().parents if p.name == "outputs"), None)
    if outputs is None:
        return
    link, fresh = outputs / "latest", outputs / f".latest.{os.getpid()}"
    if link.exists() and not link.is_symlink():
        return
    try:
        fresh.symlink_to(folder.absolute().relative_to(outputs))
        os.replace(fresh, link)
    except OSError as error:  # a file system without links; only a convenience is lost
        logging.getLogger("runner").info("no link %s: %s", link, error)
