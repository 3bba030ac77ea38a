"""The source of a warm start: a checkpoint, and the vocabularies that give its rows a meaning."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from runner.data.core.fitted import FITTED_FILE, FittedTransforms
from runner.data.tabular.vocabulary import FIRST_VALUE_ID
from runner.distributed.shards import LocalShard, LocalShards
from runner.errors import ConfigError
from runner.models.layers.embedding import LINEAR_SUFFIX
from runner.rundir.checkpoint import Checkpoint, read_tensors, tensor_shapes
from runner.rundir.find_checkpoint import find_checkpoint
from runner.rundir.regular_files import check_run_files
from runner.training.job import Job
from runner.training.state import load_tensor_subset

TABLES_PREFIX, DENSE_PREFIX = "tables/", "dense/"  # before the names of weights in a checkpoint


@dataclass(frozen=True)
class RowMap:
    """Rows of a table of this run, and the rows of a table of the source for the same values."""

    ours: np.ndarray
    theirs: np.ndarray


@dataclass(frozen=True)
class WarmStartSource:
    """A checkpoint, with the vocabularies of its run and of this one."""

    saved: Checkpoint
    shapes: Mapping[str, tuple[int, ...]]
    own_vocabularies: Mapping[str, np.ndarray]  # by table
    source_vocabularies: Mapping[str, np.ndarray]

    @classmethod
    def open(cls, job: Job, path: Path) -> WarmStartSource:
        """Open a run directory or a checkpoint folder."""
        saved = find_checkpoint(path, warn=job.view.warn)
        run = path if (path / "checkpoints").is_dir() else saved.path.parent.parent
        check_run_files(run)
        with tempfile.TemporaryDirectory() as folder:
            job.dataset.save_fitted_transforms(Path(folder))
            ours = _vocabularies(Path(folder))
        return cls(saved, tensor_shapes(saved), ours, _vocabularies(run / "data"))

    def map_rows(self, name: str, other: str, num_ours: int, num_theirs: int) -> RowMap | None:
        """Return which row of a table of the source each row of ours takes; None: the same row.

        Args:
            name: of our table's weight, as in a checkpoint.
            other: of the weight in the source.
            num_ours: rows of our table.
            num_theirs: rows of the table of the source.

        Raises:
            ConfigError: if only one of the two tables has a vocabulary.
        """
        table, other_table = (n.split("/")[1].removesuffix(LINEAR_SUFFIX) for n in (name, other))
        ours = self.own_vocabularies.get(table)
        theirs = self.source_vocabularies.get(other_table)
        if (ours is None) != (theirs is None):
            without = "here" if ours is None else "there"
            raise ConfigError(
                f"table {table!r} has no vocabulary {without}: rows cannot be matched"
            )
        if ours is None or theirs is None or np.array_equal(ours, theirs):
            return None
        _, ours_at, theirs_at = np.intersect1d(
            ours, theirs, assume_unique=True, return_indices=True
        )
        special = np.arange(min(FIRST_VALUE_ID, num_ours, num_theirs))  # unknown and missing values
        return RowMap(
            np.concatenate([special, ours_at + FIRST_VALUE_ID]),
            np.concatenate([special, theirs_at + FIRST_VALUE_ID]),
        )


def copy_matched_tensors(
    source: WarmStartSource,
    matched: Mapping[str, tuple[Tensor, str]],
    row_maps: Mapping[str, RowMap],
) -> None:
    """Copy tensors of the source into tensors of this run, in place.

    Args:
        source: where they are read.
        matched: our name -> (our live tensor, the name in the source).
        row_maps: for tensors whose rows change places, by our name; those are read whole, one at a
            time.
    """
    whole: dict[str, Tensor] = {}
    for name, (tensor, other) in matched.items():
        if name not in row_maps:
            if other in whole:  # two of our tensors start from the same one
                load_tensor_subset(source.saved, {other: tensor})
            whole.setdefault(other, tensor)
    load_tensor_subset(source.saved, whole)
    for name, (tensor, other) in matched.items():
        if name not in row_maps:
            continue
        rows = row_maps[name]
        theirs = read_tensors(source.saved, [other])[other]
        shards = tensor.shards if isinstance(tensor, LocalShards) else [LocalShard(tensor, (0, 0))]
        for shard in shards:
            first, num_rows = shard.offset[0], len(shard.tensor)
            in_shard = (rows.ours >= first) & (rows.ours < first + num_rows)
            values = theirs[torch.from_numpy(rows.theirs[in_shard])]
            if shard.tensor.dim() > 1:
                values = values[:, shard.offset[1] : shard.offset[1] + shard.tensor.shape[1]]
            targets = torch.from_numpy(rows.ours[in_shard] - first).to(shard.tensor.device)
            with torch.no_grad():
                shard.tensor[targets] = values.to(shard.tensor.device)


def is_table_weight(name: str) -> bool:
    """Return whether a name in a checkpoint is that of a table's weight."""
    return name.startswith(TABLES_PREFIX) and name.endswith("/weight")


def _vocabularies(folder: Path) -> dict[str, np.ndarray]:
    return FittedTransforms.load(folder).vocabularies if (folder / FITTED_FILE).exists() else {}
