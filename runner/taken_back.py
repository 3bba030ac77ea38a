"""A resume whose settings the checkpoint turns out not to fit: the run is left as it was before."""

from __future__ import annotations

from typing import Any

from runner.jsonfiles import write_json, write_text
from runner.record import Run


def changed_at_resume(run: Run) -> list[tuple[str, Any, Any]]:
    """(key, before, now) of what the resume that goes on here laid on the run."""
    notes = run.meta.get("resumes") or [{}]
    return [(key, before, now) for key, before, now in notes[-1].get("changed", [])]


def take_back(run: Run, reason: str) -> None:
    """What a resume had changed, which the checkpoint does not fit: the run is as it was before,
    but for a note. Of another rank's run nothing is done."""
    if run.replaced is None:
        return
    text, meta = run.replaced
    *earlier, last = run.meta["resumes"]
    write_text(run.dir / "config.yaml", text)
    write_json(run.dir / "meta.json", {**meta, "resumes": [*earlier, {**last, "refused": reason}]})
