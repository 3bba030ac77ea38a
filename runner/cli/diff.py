"""`diff A B`: how two runs differ, in what made them and in what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.errors import UserError
from runner.rundir.diff import diff_settings
from runner.rundir.run import read_config, read_meta


def diff(words: Sequence[str], allow: Sequence[str]) -> int:
    """Exit code 0, whether they differ or not: a difference is no failure."""
    from runner.cli.report import parse_verb_flags
    from runner.reporting.report.diff import show_diff

    folders, _ = parse_verb_flags("diff", words, ())
    if len(folders) != 2:
        raise UserError("diff: of which two runs? diff A B")
    one, two = (Path(f) for f in folders)
    metas = [read_meta(one), read_meta(two)]
    show_diff((one, two), _diff_runs(one, two, metas))
    return 0


def _diff_runs(
    one: Path, two: Path, metas: Sequence[Mapping[str, Any]]
) -> dict[str, list[tuple[str, Any, Any]]]:
    """What differs, by heading: configuration, data, where they come from."""
    before, after = metas
    data = [(m.get("identity") or {}).get("data") for m in metas]
    commits = [(m.get("git") or {}).get("commit") for m in metas]
    origin: list[tuple[str, Any, Any]] = [
        ("kind", before.get("kind"), after.get("kind")),
        ("commit", commits[0], commits[1]),
        ("uncommitted changes", _describe_patch(before), _describe_patch(after)),
        ("python", before.get("python"), after.get("python")),
        *diff_settings(before.get("versions") or {}, after.get("versions") or {}),
        ("host", before.get("host"), after.get("host")),
        ("platform", before.get("platform"), after.get("platform")),
        ("cpus", before.get("cpus"), after.get("cpus")),
        ("resumes", len(before.get("resumes") or ()), len(after.get("resumes") or ())),
    ]
    return {
        "configuration": diff_settings(read_config(one), read_config(two)),
        "data": [("fingerprint", data[0], data[1])] if data[0] != data[1] else [],
        "where they come from": [(k, a, b) for k, a, b in origin if a != b],
    }


def _describe_patch(meta: Mapping[str, Any]) -> str:
    patch = (meta.get("git") or {}).get("patch") or ""
    return f"{len(patch.splitlines()):,} lines of patch" if patch else "none"
