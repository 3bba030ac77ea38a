"""Where in someone's own code something happened."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

import torch

PACKAGE_ROOT = Path(__file__).resolve().parents[2]  # runner/
_FOREIGN = (
    str(Path(torch.__file__).resolve().parent),
    str(PACKAGE_ROOT / "training" / "debugging"),
)
_TRACE_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')


def find_user_line() -> str:
    """The innermost line outside torch and this package: `runner/models/dlrm.py:88, in dense`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    return (
        ""
        if frame is None
        else _say(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    )


def find_user_line_in_traceback(traceback: str) -> str:
    """The same of a printed traceback, such as that of torch's anomaly detection; "" if none."""
    for found in reversed(list(_TRACE_LINE.finditer(traceback))):
        if not _is_foreign(found["file"]):
            return _say(found["file"], int(found["line"]), found["name"])
    return ""


def _is_foreign(file: str) -> bool:
    return file.startswith((*_FOREIGN, "<"))


def _say(file: str, line: int, name: str) -> str:
    path = Path(file)
    for root in (PACKAGE_ROOT.parent, Path.cwd()):
        if path.is_relative_to(root):
            path = path.relative_to(root)
            break
    return f"{path}:{line}, in {name}"
