"""Compares `config.yaml` with its record in `meta.json`, to find edits since the run wrote it.

The record has the sha256 of the file's text, and the settings themselves, so that differences can
be shown. Another text with the same settings, such as an added comment, is no difference. A seal
shows whether the file was written by this user's runner (see seal.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from runner.errors import UserError, shell_path
from runner.rundir.diff import diff_settings, format_changes
from runner.rundir.json_files import dumps, write_json, write_text
from runner.rundir.moved_targets import with_current_targets
from runner.rundir.regular_files import read_bytes
from runner.rundir.seal import is_sealed, make_seal

_SHA256, _SETTINGS, _SEAL = "config_sha256", "config", "config_seal"
# sha256 of the text that is about to be written
NEXT_NAMES = _NEXT, _NEXT_SEAL = "config_sha256_next", "config_seal_next"


def config_record(text: str, config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the record of a configuration for `meta.json`.

    Args:
        text: of `config.yaml`.
        config: the same settings, with references to the environment kept.
        kind: of the run: train or eval.
    """
    digest = _digest(text.encode())
    return {_SHA256: digest, _SEAL: make_seal(f"{kind} {digest}"), _SETTINGS: config}


def is_own_config(folder: Path, meta: Mapping[str, Any]) -> bool:
    """Return whether `config.yaml` is as this user's runner wrote it, whatever `meta.json` says."""
    sealed = f"{meta.get('kind')} {_digest(read_bytes(folder / 'config.yaml'))}"
    return any(is_sealed(sealed, meta.get(name)) for name in (_SEAL, _NEXT_SEAL))


def replace_config(
    folder: Path, text: str, meta_before: Mapping[str, Any], meta: Mapping[str, Any]
) -> None:
    """Write another `config.yaml` and its `meta.json`.

    A kill at any instant leaves a pair that `unedited_config` takes for unedited.
    """
    if meta_before.get(_SHA256) != _digest(text.encode()):
        coming = {_NEXT: _digest(text.encode()), _NEXT_SEAL: meta.get(_SEAL)}
        write_json(folder / "meta.json", {**meta_before, **coming})
        write_text(folder / "config.yaml", text)
    write_json(folder / "meta.json", meta)


def unedited_config(
    folder: Path, meta: Mapping[str, Any], config: dict[str, Any], overridden: Collection[str]
) -> dict[str, Any]:
    """Return the configuration of a run after checking that it was not edited.

    Args:
        meta: its `meta.json`; of an earlier version it has no record, and nothing is checked.
        config: the content of its `config.yaml`.
        overridden: keys that the command line gives; these may have been edited, too.

    Raises:
        UserError: if other settings were edited, with key, old and new value of each, or if the
            record is damaged.
    """
    if _SHA256 not in meta:
        return config
    if not isinstance(meta[_SHA256], str):
        raise UserError(f"{folder / 'meta.json'}: damaged: its {_SHA256} is no text")
    if _digest(read_bytes(folder / "config.yaml")) in (meta[_SHA256], meta.get(_NEXT)):
        return config
    if not isinstance(meta.get(_SETTINGS), dict):
        raise UserError(f"{folder / 'meta.json'}: damaged: it holds no configuration")
    recorded = with_current_targets(meta[_SETTINGS])
    changes = diff_settings(recorded, json.loads(dumps(config)))
    if not changes:
        return config
    edits = [c for c in changes if not any(f"{c[0]}.".startswith(f"{o}.") for o in overridden)]
    if not edits:
        return dict(recorded)
    key, _, now = edits[0]
    raise UserError(
        f"{folder / 'config.yaml'} was edited since the run wrote it:\n{format_changes(edits)}\n"
        "Nothing was changed. Put the old values back, or give the new ones on the command line, "
        f"as in: resume {shell_path(folder)} {key}={'null' if now is None else now}"
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
