"""Settings that change nothing, since another key turns off what they are about."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.declarations import all_declarations
from runner.config.early_stopping import PATIENCE_RULES
from runner.config.rules.keys import Config, get_key

# key -> the keys of which one must be on
NEEDED = {
    "trainer.amp_dtype": ("trainer.amp",),
    "trainer.clip.tables": tuple(
        f"trainer.clip.{name}" for name in ("value", "parameter_norm", "global_norm")
    ),
    "trainer.ema.warmup": ("trainer.ema.decay",),
    "trainer.ema.evaluate": ("trainer.ema.decay",),
    "trainer.profile.after": ("trainer.profile.updates",),
    "trainer.early_stop.threshold": ("trainer.eval_every",),
    **{f"trainer.{rule}.patience": ("trainer.eval_every",) for rule in PATIENCE_RULES},
    "checkpoint.save_every": ("checkpoint.keep",),
    "metrics.max_slices": ("metrics.slice_by",),
    "loop.pick": ("loop.follow",),
    "loop.poll_s": ("loop.follow",),
    "loop.timeout_s": ("loop.follow",),
}


def find_idle_keys(config: Config, from_run: bool) -> Iterator[str]:
    """Yield a sentence for each key that is not at its default and has no effect.

    They are no mistakes: of the jobs of a sweep over the other key, only some turn it off.

    Args:
        config: a composed configuration without mistakes.
        from_run: whether it comes from a run, which has been told; a loop's keys are new.
    """
    declared = dict(all_declarations())
    for key, needed in NEEDED.items():
        value, default = get_key(config, key), declared[key].default
        is_new = key.startswith("loop.") or not from_run
        if is_new and value not in (None, default) and not any(get_key(config, k) for k in needed):
            shown = str(value).lower() if isinstance(value, bool) else value
            yield f"{key}={shown} has no effect without {' or '.join(needed)}"
    bins = get_key(config, "metrics.ece_bins")
    if (
        not from_run
        and bins not in (None, declared["metrics.ece_bins"].default)
        and not any(str(name).split("/")[0] == "ece" for name in get_key(config, "metrics.eval"))
    ):
        yield f"metrics.ece_bins={bins} has no effect, since metrics.eval lists no ece"
