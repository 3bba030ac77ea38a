"""Builds the model with its loss, and chooses the widths of its tables."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from runner.batch import Schema, class_columns, log_columns
from runner.config.targets import resolve_part
from runner.errors import ConfigError
from runner.models.argument_types import MOST_UNIFORM
from runner.models.layers.recommender import Recommender
from runner.models.losses import Loss, check_loss_inputs
from runner.models.retrieval.next_item import NextItemModel
from runner.models.retrieval.retrieval_model import RetrievalModel
from runner.models.table_widths import AUTO, TableWidths, one_width, resolve_widths
from runner.training.builder.instantiate import instantiate
from runner.training.builder.part_kinds import KINDS
from runner.training.update.unsaved_state import check_extra_state


def build_model_and_loss(
    node: Mapping[str, Any], schema: Schema, allowed: Sequence[str]
) -> tuple[Recommender, Loss]:
    """Build `model.net` and `model.loss`, and check that they fit each other.

    Raises:
        ConfigError: if the loss reads values that the model does not provide, or if one of them
            keeps state that checkpoints do not save.
    """
    node = {**node, "net": with_table_widths(node["net"], schema, allowed)}
    model: Recommender
    model, loss = (
        instantiate(
            node[name], KINDS[f"model.{name}"], key=f"model.{name}", allowed=allowed, schema=schema
        )
        for name in ("net", "loss")
    )
    try:
        check_loss_inputs(model, loss)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    model.class_columns = tuple(class_columns(schema.tasks).values())
    model.log_columns = log_columns(schema.tasks)
    check_extra_state("model.net", model)
    check_extra_state("model.loss", loss)
    return model, loss


def with_table_widths(
    net: Mapping[str, Any], schema: Schema, allowed: Sequence[str]
) -> Mapping[str, Any]:
    """Return `model.net` with `embedding_dim` resolved to numbers for these tables.

    A model whose constructor is annotated with `TableWidths` may get a width for each table.

    Raises:
        ConfigError: for widths that do not fit the tables or the model.
    """
    value = net.get("embedding_dim")
    num_rows = {f.table_name: f.num_rows for f in schema.id_features}
    if not (value == AUTO or isinstance(value, Mapping)) or not num_rows:
        return net  # without tables the model raises an error that says what it needs
    cls = resolve_part(net["_target_"], allowed, KINDS["model.net"], "model.net")
    annotation = inspect.get_annotations(cls.__init__).get("embedding_dim")
    if annotation in ("TableWidths", TableWidths) and not schema.sequences:
        return {**net, "embedding_dim": resolve_widths(value, num_rows)}
    return {**net, "embedding_dim": one_width(value, num_rows, cls.__name__)}


def finds_items(net: Mapping[str, Any], allowed: Sequence[str]) -> bool:
    """Tell whether `model.net` finds items, and so may count them over the train split."""
    cls = resolve_part(net["_target_"], allowed, KINDS["model.net"], "model.net")
    return issubclass(cls, RetrievalModel)


def describe_fewer_negatives(model: Recommender, net: Mapping[str, Any]) -> str | None:
    """Return a note if the catalogue is smaller than the default number of negatives.

    Args:
        model: built from `net`.
        net: `model.net` of the configuration.
    """
    if net.get("uniform", 0) is not None or not isinstance(model, NextItemModel):
        return None
    sampler = model.negatives
    if sampler.all_items or sampler.uniform == MOST_UNIFORM:
        return None
    return (
        f"model.net.uniform: {sampler.uniform} negatives are drawn, as many as there are items, "
        f"not {MOST_UNIFORM}; model.net.every=true takes each item once"
    )
