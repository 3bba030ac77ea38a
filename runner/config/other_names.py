"""What settings of other tools are called here, for messages about an unknown key.

Only names that the nearest name does not find: `epochs` is near to `trainer.max_epochs` as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

_PRECISION = ("trainer.amp", "trainer.amp_dtype")
_RANKS = ("trainer.num_processes", "trainer.device")
_LENGTH = ("trainer.max_steps",)
_EVALUATIONS = ("trainer.eval_every",)
_NORM = ("trainer.clip.global_norm",)
_MONITOR = ("checkpoint.monitor.metric",)
_L2 = ("optimizer.sparse.l2_tables", "optimizer.dense.weight_decay")
OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("precision", "bf16", "fp16", "mixed_precision", "use_amp"), _PRECISION),
    **dict.fromkeys(("devices", "gpus", "num_gpus", "n_gpu", "world_size", "nproc"), _RANKS),
    **dict.fromkeys(("nproc_per_node", "num_nodes", "nodes", "strategy"), _RANKS),
    **dict.fromkeys(("accelerator", "gpu", "cuda", "use_gpu"), ("trainer.device",)),
    **dict.fromkeys(("steps", "num_steps", "train_steps", "total_steps"), _LENGTH),
    **dict.fromkeys(("eval_step", "eval_steps", "eval_interval"), _EVALUATIONS),
    **dict.fromkeys(("steps_per_checkpoint", "save_checkpoints_steps"), _EVALUATIONS),
    **dict.fromkeys(("gradient_clip_val", "max_gradient_norm", "max_grad_norm"), _NORM),
    **dict.fromkeys(("clip_grad_norm", "grad_clip", "clip_norm"), _NORM),
    **dict.fromkeys(("valid_metric", "validation_metric", "best_exporter_metric"), _MONITOR),
    **dict.fromkeys(("embedding_regularizer", "reg_weight", "regularization_lambda", "l2"), _L2),
    **dict.fromkeys(("seed_everything", "random_seed"), ("seed",)),
    **dict.fromkeys(("logger", "loggers"), ("tracker",)),
    **dict.fromkeys(("mode",), ("checkpoint.monitor.direction", "trainer.early_stop.direction")),
    **dict.fromkeys(("stopping_step", "early_stop_patience"), ("trainer.early_stop.patience",)),
    **dict.fromkeys(("warmup_steps", "num_warmup_steps"), ("scheduler.warmup",)),
}


def keys_of_other_name(key: str) -> tuple[str, ...]:
    """Return the keys that a key of another tool stands for, those of its own group alone."""
    group, _, name = key.lower().rpartition(".")
    keys = OTHER_NAMES.get(name, ())
    beside = tuple(k for k in keys if f".{k.rpartition('.')[0]}".endswith(f".{group}"))
    return beside if group and beside else keys
