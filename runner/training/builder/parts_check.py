"""Holds `optimizer.parts` against the names of a model's parameters, before any data is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from runner.data.prepare.fingerprint import build_recipe
from runner.data.prepare.outline import declared_columns
from runner.data.read.collate import build_schema
from runner.errors import UserError
from runner.optim.param_groups import parse_parameter_groups
from runner.training.builder.context import build_model_and_loss, get_table_lookup
from runner.training.builder.optimizers import assign_parameters
from runner.training.update.parameters import dense_parameters

_ROWS = 1000  # of tables whose rows follow from the data: no name depends on them


def check_patterns(config: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Check that each pattern of `optimizer.parts` owns a parameter or table of the model.

    The model is built on the meta device, which stores nothing. What cannot be built so, such as a
    model of one's own that computes with the values of its weights, is checked with the job.

    Args:
        config: of the whole job, checked; its parts have been judged.
        allowed: packages that a `_target_` may name besides ours.

    Raises:
        ConfigError: for a pattern that owns nothing, or if everything is frozen.
        UserError: for what the model itself refuses.
    """
    groups = parse_parameter_groups(config["optimizer"])
    recipe = build_recipe(config["dataset"])
    columns = None if recipe is None else declared_columns(recipe, _ROWS)
    if columns is None:
        return
    try:
        with torch.random.fork_rng(devices=()), torch.device("meta"):
            model, loss = build_model_and_loss(config["model"], build_schema(columns), allowed)
            parameters = list(dense_parameters(model, loss))
            tables = [spec.name for spec in get_table_lookup(model).specs]
    except UserError:
        raise
    except Exception:
        return
    assign_parameters(groups, parameters, tables)
