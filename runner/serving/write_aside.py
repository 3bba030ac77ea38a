"""A folder that is written beside its place and appears there whole, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import UserError
from runner.rundir.json_files import sync_path


@contextmanager
def write_aside(out: Path, key: str = "--out") -> Iterator[Path]:
    """Give a temporary folder beside `out`, which becomes `out` if the block succeeds.

    Args:
        out: the new folder.
        key: what named it, for messages.

    Raises:
        UserError: if `out` cannot be written, or exists.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # a killed process leaves it
        private = Path(tempfile.mkdtemp(prefix=f".{out.name}.tmp-", dir=out.parent))
        folder = private / out.name
        folder.mkdir()  # its mode is by the umask, and that of `private` is not
    except OSError as error:
        raise UserError(f"{key} {out}: cannot be written: {error.strerror or error}") from error
    try:
        yield folder
        if out.exists():
            raise UserError(f"{key} {out}: exists by now; nothing was written. Name another")
        for file in folder.rglob("*"):
            sync_path(file)
        sync_path(folder)
        os.rename(folder, out)
        sync_path(out.parent)
    finally:
        shutil.rmtree(private, ignore_errors=True)
