"""What a loss is: a prediction in, a named loss per row out. The step weighs, sums, averages them.

B batch, T tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from runner.batch import Prediction, Schema
from runner.errors import nearest_hint


class Loss(Protocol):
    """Returns name -> [B] float32; the loss of a row is the sum over names.

    One that is an nn.Module may have parameters: they are trained, saved and resumed with those of
    the dense half.
    """

    def __call__(self, prediction: Prediction) -> Mapping[str, Tensor]: ...


def require_task_kind(schema: Schema, kind: str, loss: str, alternative: str) -> list[str]:
    """Names of the tasks. Raises: ValueError if one is of another kind, or if there is none."""
    if not schema.tasks:
        raise ValueError(f"loss {loss} needs a task; the dataset has none")
    for task in schema.tasks:
        if task.kind != kind:
            raise ValueError(
                f"loss {loss} needs {kind} tasks; {task.name!r} is {task.kind} "
                f"(model/loss={alternative})"
            )
    return [task.name for task in schema.tasks]


def split_by_task(names: Sequence[str], losses_BT: Tensor) -> dict[str, Tensor]:
    """[B] for each task. Of a single one a view: the backward of `unbind` would copy."""
    columns = (losses_BT.squeeze(1),) if len(names) == 1 else losses_BT.unbind(1)
    return dict(zip(names, columns))


def expand_per_task(
    values: float | Mapping[str, float] | None, names: list[str], key: str, *, default: float
) -> list[float]:
    """A setting of each task, from one number for all or a number a task.

    Raises: ValueError for a task that does not exist or a number below 0.
    """
    if values is None:
        return [default] * len(names)
    if not isinstance(values, Mapping):
        values = dict.fromkeys(names, values)
    for name, value in values.items():
        if name not in names:
            raise ValueError(f"{key}: the dataset has no task {name!r}{nearest_hint(name, names)}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < math.inf:
            raise ValueError(f"{key}.{name}={value}: a number from 0")
    return [float(values.get(name, default)) for name in names]
