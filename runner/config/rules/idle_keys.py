"""Rules for settings that change nothing, since another key turns off what they are about."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.declarations import all_declarations
from runner.config.rules.hardware import runs_on_cpu
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
    "metrics.max_slices": ("metrics.slice_by",),
    "loop.pick": ("loop.follow",),
    "loop.poll_s": ("loop.follow",),
    "loop.timeout_s": ("loop.follow",),
}


def check_idle_keys(config: Config, from_run: bool) -> Iterator[str]:
    """Yield a message for each key that is not at its default and has no effect.

    Args:
        config: a composed configuration.
        from_run: whether it comes from a run, which may have such settings; a loop's are new.
    """
    declared = dict(all_declarations())
    for key, needed in NEEDED.items():
        value, default = get_key(config, key), declared[key].default
        is_new = key.startswith("loop.") or not from_run
        if is_new and value not in (None, default) and not any(get_key(config, k) for k in needed):
            shown = str(value).lower() if isinstance(value, bool) else value
            yield f"{key}={shown}: does nothing without {' or '.join(needed)}"
    if not from_run and get_key(config, "trainer.tf32") and runs_on_cpu(config):
        yield "trainer.tf32=true: is of CUDA devices, and this job runs on CPU"
    bins = get_key(config, "metrics.ece_bins")
    if (
        not from_run
        and bins not in (None, declared["metrics.ece_bins"].default)
        and not any(str(name).split("/")[0] == "ece" for name in get_key(config, "metrics.eval"))
    ):
        yield f"metrics.ece_bins={bins}: is of ece, which metrics.eval does not list"
