"""The schema of a run's table at the time of training. Imports no torch."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.data.columns.schema_file import TEXT_KEYS
from runner.data.columns.schema_yaml import read_schema_file
from runner.data.core.fitted import SCHEMA_FILE
from runner.data.tabular.table_settings import SPLIT_PATHS, TableSettings
from runner.errors import ConfigError, UserError, system_errors
from runner.rundir.readers import read_optional_json
from runner.rundir.regular_files import read_bytes
from runner.rundir.run import SCHEMA_DIGEST

_OF_FILES = (*SPLIT_PATHS.values(), *TEXT_KEYS)  # data may be moved after training


def find_kept_schema(dataset: Mapping[str, Any], run: Path) -> dict[str, Any] | None:
    """Return the schema with which a run was trained, if its file has changed since then.

    The columns and the split are from the run's copy. The paths and the format of the files are
    from the schema's file, if it still exists.

    Args:
        dataset: the group of a configuration whose schema is the run's own.

    Returns:
        The content, with absolute paths; None if the file's declarations have not changed, or the
        run has no copy.

    Raises:
        UserError: if the copy cannot be read, or was changed after training.
    """
    schema, copy = dataset.get("schema"), run / "data" / SCHEMA_FILE
    if not isinstance(schema, str) or not copy.exists():
        return None
    _check_digest(copy, run)
    trained = current = read_schema_file(copy)
    path = Path(os.path.expanduser(str(schema)))
    try:
        current = read_schema_file(path)
        if _columns(current) == _columns(trained):
            return None
    except ConfigError:  # it was deleted, or is no longer a schema
        pass
    places = {key: current[key] for key in _OF_FILES if current.get(key) is not None}
    table = TableSettings("parquet", None, schema)
    for key in places.keys() & SPLIT_PATHS.values():
        places[key] = table.resolve_path(places[key])
    return {**_columns(trained), **places}


def _columns(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in _OF_FILES}


def _check_digest(copy: Path, run: Path) -> None:
    """Check that a copy is unchanged since training; earlier versions recorded no digest.

    Raises:
        UserError: if it was changed, or cannot be read.
    """
    recorded = read_optional_json(run / "meta.json").get(SCHEMA_DIGEST)
    with system_errors(f"{copy}: cannot be read"):
        digest = hashlib.sha256(read_bytes(copy)).hexdigest()
    if recorded not in (None, digest):
        raise UserError(
            f"{copy}: is not what the training has written. Put the right file back, or remove it: "
            "the file that dataset.schema names is read then"
        )
