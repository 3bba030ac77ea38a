"""`diff A B`: how two runs differ in their settings and in their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.cli.verb_parser import VerbParser
from runner.errors import UserError
from runner.rundir.diff import diff_settings
from runner.rundir.mirror.fetch import local_run
from runner.rundir.run_files import read_config, read_meta


def diff(words: Sequence[str], allow: Sequence[str]) -> int:
    """Show how two runs differ; return 0, since a difference is not a failure.

    Raises:
        UserError: for anything but two run directories.
    """
    from runner.reporting.report.diff import show_diff

    folders = make_parser().parse(words).folders
    if len(folders) != 2:
        raise UserError("diff: name two runs: diff A B")
    first, second = (local_run(f) for f in folders)
    metas = [read_meta(first), read_meta(second)]
    show_diff((first, second), _diff_runs(first, second, metas))
    return 0


def make_parser() -> VerbParser:
    """Return the parser of the words after `diff`."""
    parser = VerbParser(
        "diff", "Show how two runs differ in their settings, data, origin, and results."
    )
    parser.add_words("folders", "A B", "two run directories")
    return parser


def _diff_runs(
    first: Path, second: Path, metas: Sequence[Mapping[str, Any]]
) -> dict[str, list[tuple[str, Any, Any]]]:
    """Return the differences in configuration, data and origin, by heading."""
    before, after = metas
    data = [(m.get("identity") or {}).get("data") for m in metas]
    commits = [(m.get("git") or {}).get("commit") for m in metas]
    origin: list[tuple[str, Any, Any]] = [
        ("kind", before.get("kind"), after.get("kind")),
        ("commit", commits[0], commits[1]),
        ("uncommitted changes", _describe_patch(before), _describe_patch(after)),
        *diff_settings(before.get("own_code") or {}, after.get("own_code") or {}),
        ("python", before.get("python"), after.get("python")),
        *diff_settings(before.get("versions") or {}, after.get("versions") or {}),
        ("host", before.get("host"), after.get("host")),
        ("platform", before.get("platform"), after.get("platform")),
        ("cpus", before.get("cpus"), after.get("cpus")),
        ("resumes", len(before.get("resumes") or ()), len(after.get("resumes") or ())),
    ]
    return {
        "configuration": diff_settings(read_config(first), read_config(second)),
        "data": [("fingerprint", data[0], data[1])] if data[0] != data[1] else [],
        "where they come from": [(k, a, b) for k, a, b in origin if a != b],
    }


def _describe_patch(meta: Mapping[str, Any]) -> str:
    patch = (meta.get("git") or {}).get("patch") or ""
    return f"{len(patch.splitlines()):,} lines of patch" if patch else "none"
