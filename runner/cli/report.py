"""`report DIR... [--sort KEY] [--html FILE]`: the results of runs and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.cli.verb_parser import VerbParser
from runner.errors import UserError


def report(words: Sequence[str], allow: Sequence[str]) -> int:
    """Print tables, and write a page to FILE or as `report.html` of the single run or sweep.

    Raises:
        UserError: for an unknown flag, or a folder that is not a run or sweep.
    """
    from runner.reporting.report.write import make_report
    from runner.rundir.mirror.fetch import local_run

    args = make_parser().parse(words)
    if not args.folders:
        raise UserError("report: name a run or sweep: report DIR... [--sort KEY] [--html FILE]")
    make_report([local_run(f) for f in args.folders], sort=args.sort, file=args.html)
    return 0


def make_parser() -> VerbParser:
    """Return the parser of the words after `report`."""
    parser = VerbParser(
        "report",
        "Print tables of the results of runs and sweeps, and write a page with their curves.",
        examples=("report outputs/dlrm", "report outputs/sweeps/* --sort test/auc --html all.html"),
    )
    parser.add_words("folders", "DIR", "any number of runs, sweeps, and folders of these")
    parser.add_value("--sort", "KEY", "the metric or setting that orders the rows")
    parser.add_value("--html", "FILE", "the page; by default report.html of the one DIR", Path)
    return parser
