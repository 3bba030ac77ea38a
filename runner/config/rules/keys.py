"""Keys and their values: what they may be besides what their type says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.optim.lr_scaling import LR_SCALING_RULES

Config = Mapping[str, Any]

# What a key takes besides what its type says; the first is what most want.
ALLOWED_VALUES: dict[str, tuple[str, ...]] = {
    "trainer.device": ("auto", "cpu", "cuda"),
    "trainer.amp_dtype": ("bf16", "fp16"),
    "trainer.pipeline": ("auto", "none", "base", "sparse_dist"),
    "trainer.log_gradients": ("global", "parameters"),
    "checkpoint.step": ("best", "last"),  # or a number
    "checkpoint.monitor.direction": ("max", "min"),
    "loop.pick": ("all", "latest"),
    "loop.score": ("auto", "before"),
    "loop.then": ("train",),
    "trainer.lr_scaling.rule": tuple(LR_SCALING_RULES),
    "search.sampler": ("tpe", "random", "grid", "quasi-random", "gp", "nsga2"),
    "search.pruner": ("none", "median", "asha"),
}
SPLITS = ("train", "validation", "test")
REQUIRED_NODES = (  # nodes that every job reads
    "model.net",
    "model.loss",
    "dataset",
    "optimizer.sparse",
    "optimizer.dense",
    "scheduler",
    "task",
    "loop",
    "trainer",
    "checkpoint.monitor",
    "sharding",
    "metrics",
)
POSITIVE_KEYS = (
    "trainer.max_steps",
    "trainer.max_epochs",
    "trainer.batch_size",
    "trainer.accumulate",
    "trainer.num_threads",
    "trainer.num_processes",
    "trainer.rank_timeout_s",
    "trainer.lr_scaling.batches",
    "checkpoint.keep",
    "loop.max_steps",
    "loop.max_batches",
    "loop.start",
    "loop.updates",
    "loop.max_trials",
    "loop.max_batch_size",
    "launcher.slots",
    "search.num_trials",
    "search.pruner_first",
    "search.pruner_after",
)
NON_NEGATIVE_KEYS = ("seed", "launcher.retries", "trainer.profile.updates", "trainer.profile.after")
INTERVAL_KEYS = {  # whether a time is allowed
    "trainer.log_every": True,
    "trainer.eval_every": False,
    "checkpoint.save_every": True,
}


def get_key(config: Config, key: str) -> Any:
    """The value at a dotted key, or None."""
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
