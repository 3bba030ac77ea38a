"""Folders with the results of one part of a source; a folder that exists is complete."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FACTS_FILE = "facts.json"


@contextmanager
def complete_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder, which gets its final name when the block ends without an error."""
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        if is_done(folder):  # a worker that was considered lost has been faster
            return
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def is_done(folder: Path) -> bool:
    """Return whether a part was completed, now or by an earlier, killed process."""
    return folder.is_dir()


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the content of the folder's facts file."""
    facts: dict[str, Any] = json.loads((folder / FACTS_FILE).read_text())
    return facts
