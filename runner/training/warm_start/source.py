"""What a warm start takes from: a checkpoint, the vocabularies behind its rows, and the copying."""

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
from runner.training.job import Job
from runner.training.state import load_tensor_subset

TABLES_PREFIX, DENSE_PREFIX = "tables/", "dense/"  # before the names of weights in a checkpoint


@dataclass(frozen=True)
class RowMap:
    """Rows of our table, and the rows of theirs that stand for the same."""

    ours: np.ndarray
    theirs: np.ndarray


@dataclass(frozen=True)
class WarmStartSource:
    """A checkpoint, and what the data of its run and of this one learnt."""

    saved: Checkpoint
    shapes: Mapping[str, tuple[int, ...]]
    own_vocabularies: Mapping[str, np.ndarray]  # vocabularies by table
    source_vocabularies: Mapping[str, np.ndarray]

    @classmethod
    def open(cls, job: Job, path: Path) -> WarmStartSource:
        saved = find_checkpoint(path)
        run = path if (path / "checkpoints").is_dir() else saved.path.parent.parent
        with tempfile.TemporaryDirectory() as folder:
            job.dataset.save_fitted_transforms(Path(folder))
            mine = _vocabularies(Path(folder))
        return cls(saved, tensor_shapes(saved), mine, _vocabularies(run / "data"))

    def map_rows(self, name: str, other: str, num_ours: int, num_theirs: int) -> RowMap | None:
        """Of tables' weights. None: row for row. Raises: ConfigError if only one of the two has a
        vocabulary."""
        table, other = (n.split("/")[1].removesuffix(LINEAR_SUFFIX) for n in (name, other))
        mine, theirs = self.own_vocabularies.get(table), self.source_vocabularies.get(other)
        if (mine is None) != (theirs is None):
            without = "here" if mine is None else "there"
            raise ConfigError(f"table {table!r} has no vocabulary {without}: no row can be told")
        if mine is None or theirs is None or np.array_equal(mine, theirs):
            return None
        _, at, found = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
        special = np.arange(min(FIRST_VALUE_ID, num_ours, num_theirs))  # unknown and missing values
        return RowMap(
            np.concatenate([special, at + FIRST_VALUE_ID]),
            np.concatenate([special, found + FIRST_VALUE_ID]),
        )


def copy_matched_tensors(
    source: WarmStartSource, taken: Mapping[str, tuple[Tensor, str]], row_maps: Mapping[str, RowMap]
) -> None:
    """name -> (our live tensor, their name). Those with a row map are read whole, one by one."""
    whole: dict[str, Tensor] = {}
    for name, (tensor, other) in taken.items():
        if name not in row_maps:
            if other in whole:  # two of ours begin as the same one of theirs
                load_tensor_subset(source.saved, {other: tensor})
            whole.setdefault(other, tensor)
    load_tensor_subset(source.saved, whole)
    for name, (tensor, other) in taken.items():
        if name not in row_maps:
            continue
        rows = row_maps[name]
        theirs = read_tensors(source.saved, [other])[other]
        pieces = tensor.shards if isinstance(tensor, LocalShards) else [LocalShard(tensor, (0, 0))]
        for piece in pieces:
            first, held = piece.offset[0], len(piece.tensor)
            here = (rows.ours >= first) & (rows.ours < first + held)
            values = theirs[torch.from_numpy(rows.theirs[here])]
            if piece.tensor.dim() > 1:
                values = values[:, piece.offset[1] : piece.offset[1] + piece.tensor.shape[1]]
            at = torch.from_numpy(rows.ours[here] - first).to(piece.tensor.device)
            with torch.no_grad():
                piece.tensor[at] = values.to(piece.tensor.device)


def is_table_weight(name: str) -> bool:
    return name.startswith(TABLES_PREFIX) and name.endswith("/weight")


def _vocabularies(folder: Path) -> dict[str, np.ndarray]:
    return FittedTransforms.load(folder).vocabularies if (folder / FITTED_FILE).exists() else {}
