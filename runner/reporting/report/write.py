"""Makes reports: reads the runs, prints the tables, writes the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from runner.errors import system_errors
from runner.reporting.report.columns import monitored_metric, sort_runs
from runner.reporting.report.find import RunSelection, find_runs
from runner.reporting.report.html import Page
from runner.reporting.report.overview import Overview, make_overview
from runner.reporting.report.overview_page import FileLinks, make_overview_page
from runner.reporting.report.run_page import make_run_page, show_run
from runner.reporting.report.terminal import make_console, show_overview
from runner.rundir.json_files import write_text
from runner.rundir.regular_files import check_kind
from runner.rundir.secrets import mask_secrets
from runner.rundir.sweep_folder import is_sweep

REPORT_FILE = "report.html"


def make_report(
    folders: Sequence[Path], *, sort: str | None = None, file: Path | None = None
) -> None:
    """Print tables, and write the page.

    Args:
        sort: the key by which runs are sorted; None: by the monitored metric.
        file: of the page; None: in the one run or sweep that was given.

    Raises:
        UserError: if there is nothing to show, or the page cannot be written.
    """
    if file is not None:  # writing replaces what has this name, and root may replace a device
        with system_errors(f"--html {file}", "; name another file"):
            check_kind(file)
    selection, out = find_runs(folders), make_console(is_asked=True)
    overview = _overview(folders, selection, sort)
    if overview is None:
        show_run(out, selection.runs[0], selection.problems)
    else:
        show_overview(out, overview)
    target = file or _default_target(folders)
    if target is None:
        out.print(Text("--html FILE writes curves and figures of them into one page"))
        return
    write_page(_make_page(selection, overview, target), target)
    out.print(Text(f"page: {target}"), soft_wrap=True)


def write_report(folder: Path) -> Path:
    """Write the `report.html` of a run or a sweep, and print nothing.

    Raises:
        UserError: if there is nothing to show, or the page cannot be written.
    """
    selection, target = find_runs([folder]), folder / REPORT_FILE
    write_page(_make_page(selection, _overview([folder], selection), target), target)
    return target


def _overview(
    folders: Sequence[Path], selection: RunSelection, sort: str | None = None
) -> Overview | None:
    """Return what is shown of several runs, or of a sweep; None for a run alone."""
    if len(selection.runs) == 1 and not selection.sweeps:
        sort_runs(selection.runs, sort, monitored_metric(selection.runs))  # refuses unknown keys
        return None
    return make_overview(selection, _title(folders, selection), sort=sort)


def _make_page(selection: RunSelection, overview: Overview | None, target: Path) -> Page:
    if overview is None:
        return make_run_page(selection.runs[0])
    return make_overview_page(overview, FileLinks(target.absolute().parent))


def write_page(page: Page, target: Path) -> None:
    """Write a page to a file.

    Raises:
        UserError: if it cannot be written.
    """
    with system_errors(f"{target}: cannot be written", "; --html FILE names another place"):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, mask_secrets(page.render()))


def _default_target(folders: Sequence[Path]) -> Path | None:
    """Return the page's file in the one run or sweep that was given; None for several folders."""
    if len(folders) > 1:
        return None
    [folder] = folders
    return folder / REPORT_FILE if (folder / "meta.json").exists() or is_sweep(folder) else None


def _title(folders: Sequence[Path], selection: RunSelection) -> str:
    if len(folders) > 1:
        return f"{len(selection.runs):,} runs of {len(folders)} folders"
    [folder] = folders
    name = folder.resolve().name
    return f"Sweep {name}" if is_sweep(folder) else name
