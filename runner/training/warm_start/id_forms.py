"""Finds the form of the ids of a table: as a text, or hashed otherwise, an id has another row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runner.data.columns.column_specs import IdSpec
from runner.data.columns.schema_file import parse_schema
from runner.data.columns.schema_yaml import read_schema_file
from runner.data.columns.times import TIME_PARTS
from runner.data.core.fitted import FITTED_FILE, FittedTransforms

_FORMS = {"string": "texts", "integer": "integers", "unsigned": "integers"}


def read_id_forms(schema: object, folder: Path) -> dict[str, set[str]]:
    """Return table -> the forms of the ids of its features, as messages name them.

    Args:
        schema: the declaration of the columns, or its file; without either nothing is known.
        folder: with the transforms that were fitted.

    Raises:
        ConfigError: if the schema cannot be read.
        DataError: if the transforms cannot be read.
    """
    where = "dataset.schema"
    if isinstance(schema, str | Path) and Path(schema).is_file():
        where, schema = str(schema), read_schema_file(Path(schema))
    if not (isinstance(schema, Mapping) and (folder / FITTED_FILE).exists()):
        return {}
    fitted = FittedTransforms.load(folder)
    forms: dict[str, set[str]] = {}
    for spec in parse_schema(schema, where).ids:
        if form := _describe_form(spec, fitted):
            forms.setdefault(spec.table_name, set()).add(form)
    return forms


def _describe_form(spec: IdSpec, fitted: FittedTransforms) -> str:
    """Return the form of a feature's ids; empty if it is unknown or irrelevant."""
    if spec.encode in ("bucketise", *TIME_PARTS) or (spec.encode == "as_is" and not spec.cross):
        return ""
    types = fitted.id_types
    if spec.cross:
        id_types = [types.get(column, "") for column in spec.cross]
    elif spec.input in _FORMS:
        id_types = [spec.input]
    else:
        id_types = ["string" if spec.separator else types.get(spec.column, "")]
    if not all(id_types):
        return ""
    form = " x ".join(_FORMS[type_] for type_ in id_types)
    if spec.encode != "hash" and not spec.cross:
        return form
    num_rows = fitted.num_rows.get(spec.table_name, spec.num_rows)
    return f"{form}, hashed with salt {spec.salt} to {num_rows} rows,"
