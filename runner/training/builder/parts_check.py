"""Checks settings and checkpoints against the parameters of a model, before any data is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from runner.data.prepare.outline import declared_columns
from runner.data.read.collate import build_schema
from runner.errors import ConfigError, UserError
from runner.models.layers.recommender import Recommender
from runner.models.losses import Loss
from runner.optim.param_groups import parse_parameter_groups
from runner.rundir.checkpoint import check_tensors
from runner.rundir.find_checkpoint import find_checkpoint
from runner.training.builder.model import build_model_and_loss
from runner.training.builder.optimizers import assign_parameters
from runner.training.builder.tables import get_table_lookup
from runner.training.linear_weights import check_linear_weights
from runner.training.update.parameters import dense_parameters

_ROWS = 1000  # number of rows of tables sized by the data: no name depends on it


def check_patterns(config: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Check that each pattern of `optimizer.parts` owns a parameter or table of the model.

    The model is built on the meta device, which stores nothing. A model that cannot be built so,
    such as one that computes with the values of its weights, is checked with the job.

    Args:
        config: of the whole job, checked, as are the kinds of its parts.
        allowed: packages that a `_target_` may name besides ours.

    Raises:
        ConfigError: for a pattern that owns nothing, or if everything is frozen.
        UserError: for what the model itself refuses.
    """
    built = _build_on_meta(config, allowed)
    if built is None:
        return
    parameters = list(dense_parameters(*built))
    tables = [spec.name for spec in get_table_lookup(built[0]).specs]
    assign_parameters(parse_parameter_groups(config["optimizer"]), parameters, tables)


def check_source_weights(config: Mapping[str, Any], source: Path, allowed: Sequence[str]) -> None:
    """Check that the dense weights of a checkpoint fit the model that is to be evaluated.

    Args:
        config: of the evaluation, checked, as are the kinds of its parts.
        source: the run directory, or a checkpoint's own folder.
        allowed: packages that a `_target_` may name besides ours.

    Raises:
        ConfigError: for a weight of another shape, or one that the checkpoint lacks.
        UserError: for what the model itself refuses, and if there is no such checkpoint.
    """
    built = _build_on_meta(config, allowed)
    if built is None:
        return
    model, loss = built
    weights = {f"dense/{name}": p for name, p in dense_parameters(model, loss).items()}
    saved = find_checkpoint(source, config["checkpoint"]["step"])
    check_linear_weights(model, weights, saved)
    try:
        check_tensors(saved, weights)
    except UserError as error:
        raise ConfigError(
            f"{error}\nloop=eval evaluates the model that was trained: leave out settings of "
            "model that change its weights"
        ) from error


def _build_on_meta(
    config: Mapping[str, Any], allowed: Sequence[str]
) -> tuple[Recommender, Loss] | None:
    """Build model and loss on the meta device; None if data or model do not allow that.

    Raises:
        UserError: for what the model itself refuses.
    """
    columns = declared_columns(config["dataset"], _ROWS)
    if columns is None:
        return None
    try:
        with torch.random.fork_rng(devices=()), torch.device("meta"):
            model, loss = build_model_and_loss(config["model"], build_schema(columns), allowed)
            dense_parameters(model, loss), get_table_lookup(model)
            return model, loss
    except UserError:
        raise
    except Exception:
        return None
