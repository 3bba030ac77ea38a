"""The places of run directories: their names, and the creation and locking of their folders."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from pathlib import Path

from runner.errors import UserError
from runner.rundir.lock import FolderLock
from runner.rundir.readers import read_optional_json
from runner.rundir.regular_files import check_run_files, is_temporary
from runner.rundir.run_files import TUNED_FILE

MOST_RUNS_OF_A_NAME = 1000
DEFAULT_RUN_DIR = "outputs/{name}/{time}_{signature}"  # as conf/config.yaml has it
# Files that a folder may have before its run has a meta.json: those of a start that was killed, and
# those of a sweep and of `reproduce`. Any other file means that the folder is somebody else's.
FILES_BEFORE_META = {".lock", "config.yaml", "log.txt", "job.log", TUNED_FILE}
_FILES_OF_A_START = (
    "result.json",
    "meta.json",
    "config.yaml",
    "log.txt",
    "metrics.jsonl",
    "perf.jsonl",
    "report.html",
)


def create_and_lock(template: str, *, name: str, signature: str) -> tuple[Path, FolderLock]:
    """Create and lock the folder of a run.

    Args:
        template: a folder, which may exist; with {name}, {time} or {signature} in it, a new folder
            is always created.

    Raises:
        UserError: if the folder cannot be written, belongs to somebody else, or is locked.
    """
    text = fill_template(template, name=name, signature=signature)
    is_fresh = text != template
    for attempt in range(1, MOST_RUNS_OF_A_NAME):
        folder = Path(text if attempt == 1 else f"{text}_{attempt}")
        try:
            folder.mkdir(parents=True, exist_ok=not is_fresh)
        except FileExistsError as error:
            if not folder.is_dir():
                raise UserError(unwritable(folder, error)) from None
            continue
        except OSError as error:
            raise UserError(unwritable(folder, error)) from error
        check_not_foreign(folder)
        return folder, lock_folder(folder)
    raise UserError(
        f"{text}: {MOST_RUNS_OF_A_NAME:,} runs of this name exist already; `python -m runner "
        "clean` shows what can go, and hydra.run.dir=DIR names another folder"
    )


def fill_template(template: str, *, name: str, signature: str) -> str:
    """Put name, signature and today's time into the template of a run directory."""
    text = template.replace("{name}", name).replace("{time}", time.strftime("%Y-%m-%d_%H-%M-%S"))
    return text.replace("{signature}", signature)


def check_not_foreign(folder: Path) -> None:
    """Check that a folder is empty, a run directory, or one whose start was interrupted.

    Raises:
        UserError: if it is not; nothing has been written into it then.
    """
    names = {p.name for p in folder.iterdir()}
    foreign = sorted(n for n in names - FILES_BEFORE_META if not is_temporary(n))
    if foreign and "meta.json" not in names:
        raise UserError(
            f"{folder}: not a run directory and not empty ({', '.join(foreign[:5])}); "
            "nothing was changed. hydra.run.dir=DIR names another folder"
        )


def lock_folder(folder: Path) -> FolderLock:
    """Lock a folder.

    Raises:
        UserError: if it is locked already, cannot be written, or has a link, a pipe or the like in
            place of a file.
    """
    check_run_files(folder)
    try:
        return FolderLock(folder)
    except OSError as error:
        raise UserError(unwritable(folder, error)) from error


def check_writable(template: str) -> None:
    """Check that a run directory can be created, before any data is read. Creates nothing.

    Raises:
        UserError: if it cannot.
    """
    folder = Path(template.split("{")[0] or ".").absolute()
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
    except OSError as problem:  # a name that is too long, or a folder that may not be looked into
        raise UserError(unwritable(folder, problem)) from problem
    if not folder.is_dir():
        error = NotADirectoryError(errno.ENOTDIR, "is a file, not a folder")
        raise UserError(unwritable(folder, error))
    if not os.access(folder, os.W_OK | os.X_OK):
        is_read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        code = errno.EROFS if is_read_only else errno.EACCES
        raise UserError(unwritable(folder, OSError(code, os.strerror(code))))  # as the system says


def has_never_begun(folder: Path) -> bool:
    """Return whether a run failed before its first update, so that there is nothing to keep.

    A run that was killed before it, or that ran out of time, counts as begun.
    """
    result = read_optional_json(folder / "result.json")
    metrics = folder / "metrics.jsonl"
    has_rows = metrics.exists() and metrics.stat().st_size > 0
    if has_rows or any((folder / "checkpoints").glob("*")):
        return False
    return result.get("status") == "failed" and not result.get("step")


def remove_run_files(folder: Path) -> None:
    """Remove the files of a run that never began, including the transforms of its data."""
    for name in _FILES_OF_A_START:
        (folder / name).unlink(missing_ok=True)
    data = folder / "data"
    if data.is_dir() and not data.is_symlink():
        shutil.rmtree(data)


def unwritable(folder: Path, error: OSError) -> str:
    """Return the message about a run directory that cannot be written."""
    reason = error.strerror or str(error)
    way_out = (
        "a copy of the folder elsewhere can be resumed"
        if os.path.exists(folder / "meta.json")
        else "hydra.run.dir=DIR puts it elsewhere"
    )
    return f"{folder}: cannot write the run directory: {reason}; {way_out}"


def update_latest_link(folder: Path) -> None:
    """Point the link `latest` in the nearest `outputs/` above a run to the run, if there is one."""
    outputs = next((p for p in folder.absolute().parents if p.name == "outputs"), None)
    if outputs is None:
        return
    link, fresh = outputs / "latest", outputs / f".latest.{os.getpid()}"
    if link.exists() and not link.is_symlink():
        return
    try:
        fresh.symlink_to(folder.absolute().relative_to(outputs))
        os.replace(fresh, link)
    except OSError as error:  # a file system without links: only a convenience is lost
        logging.getLogger("runner").info("the link %s was not made: %s", link, error)
