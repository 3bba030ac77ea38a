"""Values fitted to the train split by transforms: saved with a run and never changed afterwards."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runner.data.core.blocks import read_parquet
from runner.errors import DataError

if TYPE_CHECKING:
    from runner.data.core.dataset import Dataset

FITTED_FILE = "learnt.json"
SCHEMA_FILE = "schema.yaml"  # next to it: the declaration of the columns
TABLE_FILE = "table.json"  # the same of a table that no configuration describes: schema and format
_MAX_BYTES = 1 << 28  # of that file; vocabularies have separate files


@dataclass
class FittedTransforms:
    """Fitted values by feature or table name: numbers, saved as JSON, and vocabularies."""

    num_rows: dict[str, int] = field(default_factory=dict)
    mean_length: dict[str, float] = field(default_factory=dict)
    moments: dict[str, list[float]] = field(default_factory=dict)  # mean, standard deviation
    boundaries: dict[str, list[float]] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)  # split -> its first time
    # column of ids -> `integer`, `unsigned` (64 bits) or `string`, its type in the training files:
    # in other files the same ids may have another type
    id_types: dict[str, str] = field(default_factory=dict)
    vocabularies: dict[str, np.ndarray] = field(default_factory=dict)  # sorted

    def json_fields(self) -> dict[str, Any]:
        left_out = {"vocabularies"}
        if not self.id_types:  # written by an earlier version, whose digest must not change
            left_out.add("id_types")
        return {k: v for k, v in vars(self).items() if k not in left_out}

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        names = write_vocabularies(self.vocabularies, folder)
        values = {**self.json_fields(), "vocabularies": list(names)}
        text = json.dumps({**values, "sha256": self.digest()}, indent=1)
        (folder / FITTED_FILE).write_text(text + "\n")

    def digest(self) -> str:
        """Return the SHA-256 of all values, in whatever order they were fitted."""
        fields = self.json_fields()
        if self.id_types:  # earlier versions did not distinguish unsigned integers
            types = {name: t.replace("unsigned", "integer") for name, t in self.id_types.items()}
            fields["id_types"] = types
        hasher = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
        for name in sorted(self.vocabularies):
            hasher.update(name.encode())
            hasher.update(np.ascontiguousarray(self.vocabularies[name]).data)
        return hasher.hexdigest()

    @classmethod
    def load(cls, folder: Path) -> FittedTransforms:
        """Read what `save` has written.

        Raises:
            DataError: naming what is missing or damaged.
        """
        path = folder / FITTED_FILE
        try:
            with path.open("rb") as file:
                text = file.read(_MAX_BYTES)  # a larger file is damaged; cut, it is no JSON
            values = json.loads(text)
            names, digest = values.pop("vocabularies"), values.pop("sha256", None)
            vocabularies = {}
            for number, name in enumerate(names):
                path = folder / f"vocabulary-{number}.parquet"
                vocabularies[name] = read_parquet(path)["value"].to_numpy()
            path = folder / FITTED_FILE
            fitted = cls(**values, vocabularies=vocabularies)
            actual = fitted.digest()
        except (
            *(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError),
            pa.ArrowException,
        ) as error:
            raise DataError(f"{path}: the fitted transforms cannot be read: {error}") from error
        if digest not in (None, actual):  # None: written by an earlier version
            raise DataError(
                f"{folder / FITTED_FILE}: the fitted transforms cannot be read: "
                "damaged: it is not what was written"
            )
        return fitted


def write_vocabularies(vocabularies: Mapping[str, np.ndarray], folder: Path) -> dict[str, str]:
    """Write each vocabulary to a Parquet file; return these files, in the order of names."""
    files = {
        name: f"vocabulary-{number}.parquet" for number, name in enumerate(sorted(vocabularies))
    }
    for name, file in files.items():
        table = pa.table({"value": vocabularies[name]})
        pq.write_table(table, folder / file, write_page_checksum=True)
    return files


def saved_digest(folder: Path) -> str | None:
    """Return the digest recorded in saved transforms; None if there are none."""
    try:
        values = json.loads((folder / FITTED_FILE).read_text())
    except (OSError, ValueError):
        return None
    return values.get("sha256") if isinstance(values, dict) else None


def check_fitted_transforms(dataset: Dataset, folder: Path, recorded: str) -> None:
    """Check that transforms fitted anew equal those that are missing from a run's folder.

    Args:
        dataset: made without the folder's transforms.
        recorded: the digest of the transforms that the run began with.

    Raises:
        DataError: if they differ.
    """
    with tempfile.TemporaryDirectory() as fresh:
        dataset.save_fitted_transforms(Path(fresh))
        if (Path(fresh) / FITTED_FILE).exists():
            fitted = FittedTransforms.load(Path(fresh))
            # a run of an earlier version did not record the types of its ids
            if recorded in (fitted.digest(), replace(fitted, id_types={}).digest()):
                return
    raise DataError(
        f"{folder / FITTED_FILE} is missing, and transforms fitted to the present data differ "
        "from those of the training, so the weights do not fit them: put the file and its "
        "vocabularies back"
    )


def copy_fitted_transforms(
    source: Path, target: Path, table: Mapping[str, Any] | None = None
) -> None:
    """Copy fitted transforms from prepared data to a run directory, unless it has them already.

    Args:
        table: what `TABLE_FILE` then holds, if anything.
    """
    if (target / FITTED_FILE).exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("vocabulary-*.parquet")):
        shutil.copyfile(path, target / path.name)
    if table:
        (target / TABLE_FILE).write_text(json.dumps(table, indent=1, default=str) + "\n")
    temporary = target / f".{FITTED_FILE}.{secrets.token_hex(8)}.tmp"
    shutil.copyfile(source / FITTED_FILE, temporary)
    # This file is copied last: its presence shows that the copy is complete.
    temporary.rename(target / FITTED_FILE)


def keep_schema(dataset: Mapping[str, Any], folder: Path) -> str | None:
    """Copy the schema file of a training's table to its run directory, unless it is there.

    The file may be changed for the next training, while this one has learnt from the columns as
    they were declared.

    Returns:
        The digest of the copy, if one was made.
    """
    source = dataset.get("schema")
    if not isinstance(source, str) or not Path(source).is_file() or (folder / SCHEMA_FILE).exists():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{SCHEMA_FILE}.{secrets.token_hex(8)}.tmp"
    shutil.copyfile(source, temporary)
    digest = hashlib.sha256(temporary.read_bytes()).hexdigest()
    temporary.rename(folder / SCHEMA_FILE)
    return digest


def with_fitted_transforms(
    dataset: Mapping[str, Any], folder: Path, recorded: str | None = None
) -> dict[str, Any]:
    """Return the dataset's configuration, set to use the transforms in a run's folder.

    It is unchanged if the dataset has no such setting or the folder has no transforms.

    Args:
        dataset: its group of the configuration.
        recorded: the digest of the transforms that the run began with; None: unknown.

    Raises:
        DataError: if the folder has other transforms.
    """
    exists = (folder / FITTED_FILE).exists()
    if exists and recorded is not None and saved_digest(folder) != recorded:
        raise DataError(
            f"{folder / FITTED_FILE} is damaged, or of another run. Put the right one back, or "
            "remove it: the transforms are then fitted again, and used if they equal the old ones"
        )
    if "learnt" not in dataset or not exists:
        return dict(dataset)
    return {**dataset, "learnt": str(folder)}
