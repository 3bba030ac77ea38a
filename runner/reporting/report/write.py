"""`report`: reads the runs, shows them, writes the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from runner.errors import UserError
from runner.reporting.report.find import RunSelection, find_runs, is_sweep
from runner.reporting.report.html import Page
from runner.reporting.report.overview import make_overview
from runner.reporting.report.overview_page import make_overview_page
from runner.reporting.report.run_page import make_run_page, show_run
from runner.reporting.report.terminal import make_console, show_overview
from runner.rundir.json_files import write_text

REPORT_FILE = "report.html"


def make_report(
    folders: Sequence[Path], *, sort: str | None = None, file: Path | None = None
) -> None:
    """Tables in the terminal, and the page: in `file`, or beside the one run or sweep given.

    Raises: UserError if there is nothing to show, or the page cannot be written.
    """
    found = find_runs(folders)
    out = make_console()
    alone = len(found.runs) == 1 and not found.sweeps
    title = _title(folders, found)
    view = None if alone else make_overview(found, title, sort=sort)
    if view is None:
        show_run(out, found.runs[0], found.problems)
    else:
        show_overview(out, view)
    target = file or _default_target(folders, found)
    if target is None:
        out.print(Text("--html FILE writes curves and figures of them into one page"))
        return
    page = (
        make_run_page(found.runs[0])
        if view is None
        else make_overview_page(view, target.absolute())
    )
    write_page(page, target)
    out.print(Text(f"page: {target}"), soft_wrap=True)


def write_report(folder: Path) -> Path:
    """The `report.html` of a run or a sweep, without a word. Raises: UserError."""
    found = find_runs([folder])
    target = folder / REPORT_FILE
    if len(found.runs) == 1 and not found.sweeps:
        write_page(make_run_page(found.runs[0]), target)
    else:
        view = make_overview(found, _title([folder], found))
        write_page(make_overview_page(view, target.absolute()), target)
    return target


def write_page(page: Page, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, page.render())
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror or error}") from error


def _default_target(folders: Sequence[Path], found: RunSelection) -> Path | None:
    """Beside what the page is about, if that is one run or one sweep."""
    if len(folders) > 1:
        return None
    [folder] = folders
    return folder / REPORT_FILE if (folder / "meta.json").exists() or is_sweep(folder) else None


def _title(folders: Sequence[Path], found: RunSelection) -> str:
    if len(folders) > 1:
        return f"{len(found.runs):,} runs of {len(folders)} folders"
    [folder] = folders
    name = folder.resolve().name
    return f"Sweep {name}" if is_sweep(folder) else name
