"""Reads the table of hard negatives that a model asks for."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from runner.data.columns.column_specs import IdSpec
from runner.data.core.dataset import Dataset
from runner.data.core.fitted import FITTED_FILE, FittedTransforms
from runner.data.tabular.fit import with_declared_sizes
from runner.data.tabular.negatives_file import read_negatives
from runner.data.tabular.table_recipe import TableRecipe
from runner.distributed.ranks import current_ranks
from runner.errors import ConfigError, DataError
from runner.models.two_tower import TwoTower
from runner.rundir.readers import read_optional_json
from runner.rundir.run import record_in_meta
from runner.training.builder.inputs import JobInputs

KEY = "model.net.hard_table"
DIGEST = "hard_table_sha256"  # key of meta.json: the digest of the table that the run began with


def fill_negative_table(inputs: JobInputs, model: nn.Module, dataset: Dataset) -> None:
    """Read the hard negatives of a model that trains, if it has a table of them.

    Args:
        inputs: of the job. The run records the digest of the table, so that a resume uses the
            same.

    Raises:
        ConfigError: for a file that cannot be used, and for one that was changed since the run
            began.
    """
    if not isinstance(model, TwoTower) or model.negative_table is None:
        return
    table = model.negative_table
    try:
        specs, fitted = _id_columns(inputs.config["dataset"], dataset)
        lists = read_negatives(table.path, specs, fitted, model.item.name)
    except DataError as error:
        reason = str(error).removeprefix(f"{table.path}: ")
        raise ConfigError(f"{KEY}={table.path}: {reason}") from error
    table.fill(lists.key, torch.from_numpy(lists.offsets_K1), torch.from_numpy(lists.items_V))
    run = inputs.run
    if run is None:
        return
    digest = lists.digest()
    recorded = read_optional_json(run.dir / "meta.json").get(DIGEST, digest)
    if recorded != digest:
        raise ConfigError(
            f"{KEY}={table.path}: holds other negatives than when this run began, so it would not "
            "go on as it was; put the file back, or begin a new run"
        )
    if current_ranks().is_main:
        record_in_meta(run, DIGEST, digest)


def _id_columns(
    node: Mapping[str, Any], dataset: Dataset
) -> tuple[Sequence[IdSpec], FittedTransforms]:
    """Return the id columns of a dataset, and the transforms fitted to them."""
    fitted = FittedTransforms()
    with tempfile.TemporaryDirectory() as folder:
        dataset.save_fitted_transforms(Path(folder))
        if (Path(folder) / FITTED_FILE).exists():
            fitted = FittedTransforms.load(Path(folder))
    if node.get("schema") is not None:
        fields = {k: v for k, v in node.items() if k in TableRecipe.__dataclass_fields__}
        declared = TableRecipe(**{"format": "parquet", "path": None, **fields}).declared
        return declared.ids, with_declared_sizes(fitted, declared)
    features = dataset.schema.sparse  # a known data set, whose ids are rows already
    fitted.num_rows = {f.table_name: f.num_rows for f in features}
    return [
        IdSpec(f.name, f.name, num_rows=f.num_rows, table=f.table_name, list=f.is_list)
        for f in features
    ], fitted
