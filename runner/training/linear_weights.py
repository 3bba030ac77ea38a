"""Refuses a checkpoint whose tasks share linear weights for a model with weights per task."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from runner.errors import ConfigError
from runner.models.layers.embedding import LINEAR_SUFFIX, count_equal_columns
from runner.models.layers.linear import FirstOrder
from runner.rundir.checkpoint import Checkpoint, tensor_shapes


def check_linear_weights(
    model: nn.Module, weights: Mapping[str, Tensor], saved: Checkpoint
) -> None:
    """Check that a checkpoint has linear weights per task, if the model has them.

    Args:
        weights: of the model, by their names in checkpoints.

    Raises:
        ConfigError: if its tasks share one set, as those of older runs do.
    """
    modules = model.named_modules()
    names = [name for name, m in modules if isinstance(m, FirstOrder) and m.num_sums > 1]
    dense = [f"dense/{name}.dense.weight" for name in names]
    saved_shapes = tensor_shapes(saved) if names else {}
    for name, weight in weights.items():
        shape = shared = tuple(weight.shape)
        if name in dense:
            shared = (1, shape[1])
        elif name.endswith(f"{LINEAR_SUFFIX}/weight"):
            shared = (shape[0], count_equal_columns(1))
        if saved_shapes.get(name) == shared != shape:
            raise ConfigError(
                f"model.net.linear_weights: the tasks of {saved.path} share one set of linear "
                "weights; model.net.linear_weights=shared takes it as it is"
            )
