"""Rules for L-BFGS, which evaluates the loss several times in one update of our own task."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.rules.keys import Config
from runner.errors import ConfigError
from runner.optim.param_groups import parse_parameter_groups

BUILTIN_TASK = "runner.training.update.task.Supervised"
LBFGS_TARGETS = ("torch.optim.LBFGS", "torch.optim.lbfgs.LBFGS")
CLIP_KEYS = ("value", "parameter_norm", "global_norm")


def check_lbfgs(config: Config) -> Iterator[str]:
    """Refuse everything else that would change the loss or the parameters during its search."""
    optimizer, trainer = config["optimizer"], config["trainer"]
    is_lbfgs = optimizer["dense"]["_target_"] in LBFGS_TARGETS
    if not is_lbfgs or config["task"]["_target_"] != BUILTIN_TASK:
        return
    why = "L-BFGS searches along the gradient of the loss, and"
    clip = trainer.get("clip") or {}
    for key in CLIP_KEYS:
        if clip.get(key) is not None:
            yield (
                f"trainer.clip.{key}={clip[key]}: {why} clipping would change it; "
                f"trainer.clip.{key}=null, or another optimizer.dense"
            )
    if trainer.get("amp") and trainer.get("amp_dtype") == "fp16":
        yield (
            f"trainer.amp_dtype=fp16: {why} loss scaling would change it; "
            "trainer.amp_dtype=bf16 works"
        )
    try:
        parts = parse_parameter_groups(optimizer)
    except ConfigError:
        return  # another rule reports it
    if not any(part.frozen for part in parts):
        yield (
            "optimizer.parts: L-BFGS evaluates the loss several times in an update, and tables are "
            "updated inside every backward; freeze them with "
            "optimizer.parts=[{pattern: '^tables', frozen: true}]"
        )
    for i, part in enumerate(parts):
        if not part.frozen:
            yield (
                f"optimizer.parts[{i}]: L-BFGS moves its parameters in the middle of an update, "
                "so it must train all parameters that are trained; parts may only freeze"
            )
