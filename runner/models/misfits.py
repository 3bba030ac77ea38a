"""Checks a configured net and loss against a dataset's schema, before a job starts. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from runner.models.requirements import (
    check_row_negatives,
    check_user_column,
    find_candidates,
    find_history_and_item,
    find_item_features,
    require_funnel,
    require_log_links,
    require_task_kind,
    require_two_vectors,
)

if TYPE_CHECKING:
    from runner.batch import Schema


def _check_two_tower(schema: Schema, net: Mapping[str, Any]) -> None:
    item = find_item_features(schema, net["item"])[0]
    if net.get("hard_negatives"):
        check_row_negatives(schema, net["hard_negatives"], item)
    check_user_column(
        schema,
        net.get("user"),
        exclude_known=bool(net.get("exclude_known")),
        in_batch=bool(net.get("in_batch")),
    )


def _task_kind(kind: str, name: str) -> Callable[[Schema, Mapping[str, Any]], Any]:
    return lambda schema, _: require_task_kind(schema, kind, name, classes=name == "BCE")


def _history_and_item(schema: Schema, net: Mapping[str, Any]) -> Any:
    return find_history_and_item(schema, net.get("sequence"), net.get("item"))


_NEXT_ITEM_NETS = (
    "runner.models.bert4rec.BERT4Rec",
    "runner.models.gru4rec.GRU4Rec",
    "runner.models.hstu.HSTU",
    "runner.models.sasrec.SASRec",
)
_HISTORY_NETS = tuple(f"runner.models.{name}" for name in ("bst.BST", "dien.DIEN", "din.DIN"))
_BINARY_LOSSES = (
    "AuxiliaryBCE",
    "BCE",
    "Focal",
    "JRC",
    "SelfDistillation",
    "SampledSoftmax",
    "InBatchSoftmax",
    "BPR",
    "SampledBCE",
)
# Checks of a job before it starts; a constructor may have further requirements
REQUIREMENTS: Mapping[str, Callable[[Schema, Mapping[str, Any]], Any]] = {
    **dict.fromkeys(_NEXT_ITEM_NETS, _history_and_item),
    "runner.models.two_tower.TwoTower": _check_two_tower,
    **dict.fromkeys(_HISTORY_NETS, lambda schema, _: find_candidates(schema)),
    "runner.models.esmm.ESMM": lambda schema, _: require_funnel(schema),
    "runner.models.dlrm.DLRM": lambda schema, _: require_two_vectors(schema),
    **{f"runner.models.losses.{name}": _task_kind("binary", name) for name in _BINARY_LOSSES},
    "runner.models.losses.MSE": _task_kind("regression", "MSE"),
    "runner.models.losses.Tweedie": lambda schema, _: require_log_links(schema, "Tweedie"),
}


def find_misfits(model: Mapping[str, Any], schema: Schema) -> Iterator[str]:
    """Yield the requirements of the configured net and loss that a schema does not meet.

    Args:
        model: the group `model`.
        schema: or an outline with the same names of features, tables, tasks and groups.
    """
    for key in ("net", "loss"):
        node = model.get(key) or {}
        target = str(node.get("_target_"))
        check = REQUIREMENTS.get(target)
        try:
            if check is not None:
                check(schema, node)
        except ValueError as error:
            yield f"model.{key}: {target.rpartition('.')[2]}: {error}"
