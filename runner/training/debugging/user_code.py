"""Finds the line of a user's code in which something happened."""

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
    str(PACKAGE_ROOT / "models" / "layers" / "mlp.py"),  # calls modules in turn, as torch's does
)
_TRACE_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')


def find_user_line() -> str:
    """Return the innermost calling line outside torch and this package.

    Returns:
        Such as `runner/models/dlrm.py:88, in dense`; empty if there is none.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    return _format_line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def find_user_line_in_traceback(traceback: str) -> str:
    """Return the innermost such line of a traceback that torch's anomaly detection has printed."""
    for match in reversed(list(_TRACE_LINE.finditer(traceback))):
        if not _is_foreign(match["file"]):
            return _format_line(match["file"], int(match["line"]), match["name"])
    return ""


def _is_foreign(file: str) -> bool:
    return file.startswith((*_FOREIGN, "<"))


def _format_line(file: str, line: int, name: str) -> str:
    path = Path(file)
    for root in (PACKAGE_ROOT.parent, Path.cwd()):
        if path.is_relative_to(root):
            path = path.relative_to(root)
            break
    return f"{path}:{line}, in {name}"
