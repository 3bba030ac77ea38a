"""Chooses the format of which graphs are loaded, and checks that it may be. No torch here."""

from __future__ import annotations

from pathlib import Path

from runner.errors import UserError, unknown_choice
from runner.serving.artifact.check_schema import check_schema
from runner.serving.artifact.folder import (
    EXPORT_AGAIN,
    MANIFEST,
    Artifact,
    graph_file,
    open_artifact,
)


def check_artifact(
    path: Path | str, format: str | None, trust_native_code: bool
) -> tuple[Artifact, str]:
    """Open an artifact, and choose the format whose graphs are loaded. Imports no torch.

    Args:
        format: one of those in the artifact; None: the first of them.
        trust_native_code: whether an AOTInductor package may be loaded.

    Raises:
        UserError: as `Scorer.load`, except for problems found while a graph is loaded.
    """
    artifact = open_artifact(path)
    chosen = artifact.formats[0] if format is None else format
    if chosen not in artifact.formats:
        raise UserError(unknown_choice("format", chosen, artifact.formats))
    if chosen == "aoti" and not trust_native_code:
        raise UserError(
            f"{path}: holds machine code, which runs with all your rights when it is loaded; "
            "trust_native_code=True (--trust-native-code) loads an artifact of your own"
        )
    for spec in artifact.graphs:
        name = graph_file(spec.name, chosen)
        if name not in artifact.manifest["files"]:
            raise UserError(f"{path}: {MANIFEST} lists no {name}; {EXPORT_AGAIN}")
    check_schema(artifact, artifact.path)
    return artifact, chosen


def trusted_formats(artifact: Artifact, trust_native_code: bool) -> tuple[str, ...]:
    """Return the formats of an artifact that may be run: machine code only if it is trusted."""
    return tuple(name for name in artifact.formats if trust_native_code or name != "aoti")
