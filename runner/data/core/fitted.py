"""What the transforms learnt from the train split: saved with a run, used unchanged ever after."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from runner.errors import DataError

FITTED_FILE = "learnt.json"


@dataclass
class FittedTransforms:
    """Numbers as JSON; vocabularies as sorted arrays. All are keyed by feature or table name."""

    num_rows: dict[str, int] = field(default_factory=dict)
    mean_length: dict[str, float] = field(default_factory=dict)
    moments: dict[str, list[float]] = field(default_factory=dict)  # mean, standard deviation
    boundaries: dict[str, list[float]] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)  # split -> first time that is in it
    vocabularies: dict[str, np.ndarray] = field(default_factory=dict)

    def json_fields(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "vocabularies"}

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        names = sorted(self.vocabularies)
        for number, name in enumerate(names):
            table = pa.table({"value": self.vocabularies[name]})
            pq.write_table(table, folder / f"vocabulary-{number}.parquet", write_page_checksum=True)
        values = {**self.json_fields(), "vocabularies": names}
        text = json.dumps({**values, "sha256": self.digest()}, indent=1)
        (folder / FITTED_FILE).write_text(text + "\n")

    def digest(self) -> str:
        """Of all that was learnt, vocabularies included, whatever the order it was written in."""
        text = json.dumps(self.json_fields(), sort_keys=True)
        hashed = hashlib.sha256(text.encode())
        for name in sorted(self.vocabularies):
            hashed.update(name.encode())
            hashed.update(np.ascontiguousarray(self.vocabularies[name]).data)
        return hashed.hexdigest()

    @classmethod
    def load(cls, folder: Path) -> FittedTransforms:
        """Raises: DataError naming what is missing or damaged."""
        try:
            values = json.loads((folder / FITTED_FILE).read_text())
            names, written = values.pop("vocabularies"), values.pop("sha256", None)
            vocabularies = {
                name: pq.read_table(
                    folder / f"vocabulary-{number}.parquet", page_checksum_verification=True
                )["value"].to_numpy()
                for number, name in enumerate(names)
            }
            learnt = cls(**values, vocabularies=vocabularies)
            if written not in (None, learnt.digest()):  # None: of an earlier version
                raise ValueError("damaged: it is not what was written")
            return learnt
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise DataError(
                f"{folder / FITTED_FILE}: what was learnt cannot be read: {error}"
            ) from error


def copy_fitted_transforms(source: Path, target: Path) -> None:
    """From prepared data into a run directory. A whole one that is there is kept."""
    if (target / FITTED_FILE).exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("vocabulary-*.parquet")):
        shutil.copyfile(path, target / path.name)
    temporary = target / f"{FITTED_FILE}.tmp"
    shutil.copyfile(source / FITTED_FILE, temporary)
    temporary.rename(target / FITTED_FILE)  # last, so that it stands for all


def with_fitted_transforms(dataset: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The dataset's node, told to use what a run learnt, if it takes that and the run kept any."""
    if "learnt" not in dataset or not (folder / FITTED_FILE).exists():
        return dict(dataset)
    return {**dataset, "learnt": str(folder)}
