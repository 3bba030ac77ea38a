"""Requirements of models and losses on a dataset's schema. Imports no torch.

The constructors call these functions with the schema; a job is checked before it starts, with
an outline of the schema, as far as the dataset's declaration determines it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.errors import nearest_hint

if TYPE_CHECKING:
    from runner.batch import Schema, SequenceFeature, SparseFeature, TaskSpec

_ONE_ITEM = "the item of a row is one id"


def require_sparse_feature(schema: Schema) -> None:
    """Check that there is something to look up.

    Raises:
        ValueError: if the schema has no sparse feature.
    """
    if not schema.sparse:
        raise ValueError(
            "needs at least one sparse feature; the dataset has none. Of a table, a number in "
            "buckets is one: categorical: {NAME_bucket: {column: NAME, encode: bucketise, "
            "buckets: 10}}"
        )


def require_two_vectors(schema: Schema) -> None:
    """Check that there are two vectors to multiply: all dense features together give one.

    Raises:
        ValueError: if there is only one.
    """
    require_sparse_feature(schema)
    if len(schema.sparse) + bool(schema.dense) < 2:
        raise ValueError(
            "needs a dense feature or a second sparse one to interact with; the dataset has "
            f"{schema.sparse[0].name} only"
        )


def require_one_binary_task(schema: Schema) -> None:
    """Check that label 1 of a single binary task marks the rows with an item to retrieve.

    Raises:
        ValueError: if the schema has other tasks.
    """
    if [t.kind for t in schema.tasks] != ["binary"]:
        names = ", ".join(f"{t.name} ({t.kind})" for t in schema.tasks)
        raise ValueError(
            f"needs one binary task, whose rows of label 1 hold items to find; there are {names}"
        )


def require_funnel(schema: Schema) -> None:
    """Check that every task can be a step of a funnel, such as click and conversion.

    Raises:
        ValueError: if a task is not binary.
    """
    other_tasks = [t for t in schema.tasks if t.kind != "binary" or t.one_of]
    if other_tasks:
        names = ", ".join(f"{t.name} ({'class' if t.one_of else t.kind})" for t in other_tasks)
        raise ValueError(
            "needs labels of two values, each a step of a funnel that only rows with the step "
            f"before can take, such as click and conversion; there are {names}"
        )


def require_log_links(schema: Schema, loss: str) -> list[str]:
    """Return the names of the tasks, all of which have a log link.

    Args:
        loss: name of the loss, for messages.

    Raises:
        ValueError: if a task has no such link, or if there is no task.
    """
    names = require_task_kind(schema, "regression", loss)
    for task in schema.tasks:
        if not task.link:
            raise ValueError(
                f"loss {loss} needs labels with a log link; {task.name!r} has none: "
                f"`{task.name}: {{type: regression, link: log}}` in the dataset's schema"
            )
    return names


def require_task_kind(schema: Schema, kind: str, loss: str, *, classes: bool = False) -> list[str]:
    """Return the names of the tasks.

    Args:
        kind: the kind that all tasks must have.
        loss: name of the loss, for messages.
        classes: whether they may be the classes of a label.

    Raises:
        ValueError: if a task has another kind, or if there is no task.
    """
    if not schema.tasks:
        raise ValueError(f"loss {loss} needs a task; the dataset has none")
    for task in schema.tasks:
        if task.kind != kind:
            raise ValueError(
                f"loss {loss} needs {kind} tasks; {task.name!r} is {task.kind} "
                f"({_loss_for(schema.tasks)})"
            )
        if task.one_of and not classes:
            raise ValueError(
                f"loss {loss} is for labels of two values; {task.one_of!r} has classes, which "
                "model/loss=bce, by_kind and uncertainty take"
            )
    return [task.name for task in schema.tasks]


def _loss_for(tasks: Sequence[TaskSpec]) -> str:
    """Return the loss for these tasks, and the metrics of numbers."""
    if "binary" in (task.kind for task in tasks):
        return "model/loss=by_kind takes both"
    loss = "by_kind" if any(task.link for task in tasks) else "mse"  # of amounts the deviance
    return (
        f"for numbers: model/loss={loss} 'metrics.eval=[mae,mse,rmse,r2]' "
        "'checkpoint.monitor={metric: validation/mse, direction: min}'"
    )


def find_item_feature(schema: Schema, name: str) -> SparseFeature:
    """Return the sparse feature of this name.

    Raises:
        ValueError: naming the nearest feature, if there is none.
    """
    for feature in schema.sparse:
        if feature.name == name:
            return feature
    names = [f.name for f in schema.sparse]
    raise ValueError(
        f"item={name}: the dataset has no such sparse feature{nearest_hint(name, names)}; "
        f"there are {', '.join(names) or 'none'}"
    )


def _require_single_ids(feature: SparseFeature, key: str, use: str) -> None:
    """Check that the feature of a setting `key` has one id in every row, as its use requires.

    Raises:
        ValueError: if its rows hold lists.
    """
    if feature.is_list:
        raise ValueError(
            f"{key}={feature.name}: is a list of ids, but {use}; take a feature that has one id "
            "in every row"
        )


def find_sequence(schema: Schema, name: str | None, key: str) -> SequenceFeature:
    """Return the sequence of this name; for None, the only one, or the only one of a feature.

    A sequence is of a feature if both read the same table.

    Raises:
        ValueError: naming the configuration's `key` and the nearest sequence, if there is none, or
            for None if there are several.
    """
    names = [s.name for s in schema.sequences]
    if not names:
        raise ValueError("needs a sequence of ids; the dataset has none")
    tables = {f.table_name for f in schema.sparse}
    of_features = [s for s in schema.sequences if s.table_name in tables]
    for sequences in (schema.sequences, of_features):
        if name is None and len(sequences) == 1:
            return sequences[0]
    if name not in names:
        if name is None:
            problem = "null: the dataset has several sequences"
        else:
            problem = f"{name}: the dataset has no such sequence{nearest_hint(name, names)}"
        raise ValueError(f"{key}={problem}; there are {', '.join(names)}")
    return schema.sequences[names.index(name)]


def find_history_and_item(
    schema: Schema, sequence: str | None, item: str | None
) -> tuple[SequenceFeature, SparseFeature]:
    """Return a sequence, and the sparse feature of its next item.

    Args:
        schema: needs one binary task as well.
        sequence: name of the sequence; None for the only one.
        item: name of the feature; None for the one that reads the sequence's table.

    Raises:
        ValueError: naming what the schema lacks.
    """
    require_one_binary_task(schema)
    history = find_sequence(schema, sequence, "sequence")
    readers = [f.name for f in schema.sparse if f.table_name == history.table_name]
    if item is None and not readers:
        raise ValueError(
            f"needs a sparse feature that reads table {history.table_name!r} of sequence "
            f"{history.name!r}: the item that follows it; the dataset has none"
        )
    item_feature = find_item_feature(schema, item or readers[0])
    if item_feature.table_name != history.table_name:
        raise ValueError(
            f"item={item}: reads table {item_feature.table_name!r}, but sequence {history.name!r} "
            f"reads {history.table_name!r}; both must read the same table"
        )
    _require_single_ids(item_feature, "item", _ONE_ITEM)
    return history, item_feature


def check_row_negatives(schema: Schema, name: str, item: SparseFeature) -> None:
    """Check the sequence with negatives of each row.

    Raises:
        ValueError: if there is no such sequence, or if its ids are not those of the item.
    """
    sequence = find_sequence(schema, name, "hard_negatives")
    if sequence.table_name != item.table_name:
        raise ValueError(
            f"hard_negatives={name}: reads table {sequence.table_name!r}, but its ids must be "
            f"items, which are those of table {item.table_name!r}"
        )


def check_user_column(
    schema: Schema, name: str | None, *, exclude_known: bool, in_batch: bool
) -> None:
    """Check the column that identifies the rows of the same user.

    Raises:
        ValueError: if there is no such column, or if nothing reads it.
    """
    if name is None:
        return
    if not exclude_known:
        raise ValueError(f"user={name}: has no effect; set exclude_known=true")
    if not in_batch:  # it would depend on how an update is divided, of which the loss is unaware
        raise ValueError(f"user={name}: takes rows of the batch together; set in_batch=true")
    if name not in schema.groups:
        names = [*schema.groups, *(f.name for f in schema.sparse)]
        if name not in names:
            raise ValueError(
                f"user={name}: the dataset has no such group column or feature"
                f"{nearest_hint(name, names)}; there are {', '.join(names) or 'none'}"
            )
        for feature in schema.sparse:
            if feature.name == name:
                _require_single_ids(feature, "user", "a row has one user")


def find_item_features(schema: Schema, names: Sequence[str]) -> list[SparseFeature]:
    """Return the features of the item of a two-tower model, its id first.

    Args:
        schema: needs one binary task, and a feature of the user besides.
        names: of the features; empty for the one that shares its table with a sequence.

    Raises:
        ValueError: naming what the schema lacks, and a feature that is named twice, whose lists are
            not the id of an item, or that would reveal the item to the user's tower.
    """
    require_one_binary_task(schema)
    known = [f.name for f in schema.sparse]
    tables = [s.table_name for s in schema.sequences]
    readers = [f.name for f in schema.sparse if f.table_name in tables]
    if not names and not readers:
        raise ValueError(
            "item=[]: no sequence tells which feature is the item; name the features of the item, "
            f"its id first. The dataset has {', '.join(known) or 'none'}"
            f"{nearest_hint('item', known)}"
        )
    if repeated := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"item=[{', '.join(names)}]: names {', '.join(repeated)} more than once")
    features = [find_item_feature(schema, name) for name in names or readers[:1]]
    _require_single_ids(features[0], "item", _ONE_ITEM)
    known_before = [f for f in schema.sparse if f not in features]
    for feature in known_before:
        of_events = [s.name for s in schema.sequences if s.table_name == feature.table_name]
        if of_events and feature.table_name != features[0].table_name:
            item = ",".join([*(f.name for f in features), feature.name])
            raise ValueError(
                f"{feature.name} reads the table of sequence {of_events[0]}, so it tells of the "
                f"row's item, which the user's tower must not see: item=[{item}] puts it on the "
                "item's side; or take it out of the features of the row"
            )
    if len(features) == len(schema.sparse) and not schema.sequences and not schema.dense:
        raise ValueError(
            "needs a feature of the user besides those of the item; the dataset has none"
        )
    return features


def find_candidates(schema: Schema) -> list[int | None]:
    """Return, for each sequence, the place of the sparse feature that reads its table, or None.

    Raises:
        ValueError: if there is no sequence, or no sequence with such a feature.
    """
    if not schema.sequences:
        raise ValueError("needs a sequence of ids, such as a user's history; the dataset has none")
    places = {f.table_name: place for place, f in reversed(list(enumerate(schema.sparse)))}
    candidates = [places.get(s.table_name) for s in schema.sequences]
    if all(place is None for place in candidates):
        tables = ", ".join(f"{s.name} reads {s.table_name!r}" for s in schema.sequences)
        raise ValueError(
            "needs a sparse feature that reads the table of a sequence, the item that its "
            f"history is weighed for; the dataset has none: {tables}"
        )
    return candidates
