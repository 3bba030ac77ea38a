"""The keys of conf/trainer/. The rules that wait for a metric are in config/early_stopping.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.config.early_stopping import BatchOnPlateau, EarlyStop, LrOnPlateau
from runner.config_key import setting
from runner.optim.lr_scaling import LR_SCALING_RULES
from runner.optim.settings import ClipSettings

LENGTH_KEYS = ("trainer.max_steps", "trainer.max_epochs")  # at most one of them is set


@dataclass(frozen=True)
class LrScalingSettings:
    """A factor of all full learning rates, by the batches that an update adds up."""

    rule: str = setting(
        "constant", "constant, sqrt or linear in the batches", choices=tuple(LR_SCALING_RULES)
    )
    batches: int | None = setting(
        None, "batches that an update adds up; null: ranks * accumulate when the run is new", ge=1
    )


@dataclass(frozen=True)
class EmaSettings:
    """An exponential moving average of the dense half's parameters."""

    decay: float | None = setting(
        None,
        "such as 0.999; null: no average is kept",
        ge=0,
        lt=1,
        note="0 is the weights themselves, null keeps no average",
    )
    warmup: bool = setting(True, "the decay of update k is at most (1 + k) / (10 + k)")
    evaluate: bool = setting(True, "evaluations take the average in place of the weights")


@dataclass(frozen=True)
class ProfilerSettings:
    """A window of updates that torch's profiler records."""

    updates: int = setting(0, "updates that are recorded; 0: none", ge=0, unit="updates")
    after: int = setting(10, "updates of this process that come before", ge=0, unit="updates")


@dataclass(frozen=True)
class TrainerSettings:
    """How a run goes: length, batch, precision, hardware, cadence."""

    max_steps: int | None = setting(
        None,
        "updates; exactly one of max_steps and max_epochs is set; the command line overrides",
        ge=1,
        unit="updates",
    )
    max_epochs: int | None = setting(
        1,
        "passes over the train split; auto: by the number of its rows",
        ge=1,
        unit="epochs",
        auto=True,
    )
    batch_size: int = setting(
        4096,
        "rows of one rank and micro-batch; auto: by the number of train rows",
        ge=1,
        lt=2**31,
        unit="rows",
        signed="in global_batch",
        auto=True,
    )
    accumulate: int = setting(
        1,
        "micro-batches of an update; N equal one batch of N times the size (see model.loss.within)",
        ge=1,
        le=1_000_000,
        unit="micro-batches",
        signed="in global_batch",
    )
    amp: bool = setting(False, "autocast of the dense half")
    amp_dtype: str = setting("bf16", "bf16, or fp16 on CUDA", choices=("bf16", "fp16"))
    tf32: bool = setting(False, "TF32 in matrix products of float32 on CUDA")
    device: str = setting(
        "auto",
        "auto, cpu, cuda or cuda:N",
        choices=("auto", "cpu", "cuda"),
        pattern=r"cuda:\d+",
        signed="no",
    )
    num_processes: int = setting(
        1,
        "ranks on this machine; under torchrun its own number holds",
        ge=1,
        unit="ranks",
        signed="in global_batch",
    )
    rank_timeout_s: int = setting(
        300,
        "a rank that waits longer than this for another one fails",
        ge=1,
        le=365 * 24 * 3600,
        unit="seconds",
        signed="no",
    )
    pipeline: str = setting(
        "auto",
        "none; base: a batch is copied to the GPU during the update before it; sparse_dist: "
        "TorchRec's, which also sends its ids to their ranks; auto: the best that works",
        choices=("auto", "none", "base", "sparse_dist"),
        signed="no",
    )
    num_threads: int | None = setting(
        None,
        "each computes some rows of an update, or a share of its operations; null: as many as this "
        "process may use cores, where that is faster than one",
        ge=1,
        le=1024,
        unit="threads",
        signed="no",
    )
    deterministic: bool = setting(False, "refuse nondeterministic kernels")
    log_every: int | str = setting(
        50, "updates, or '5000ex', '1ep', '30s'", interval="progress or time", signed="no"
    )
    eval_every: int | str | None = setting(
        "1ep",
        "updates, or '5000ex', '1ep', on the validation split; null: only at the end",
        interval="progress",
    )
    eval_splits: list[str] = setting(
        lambda: ["validation"],
        "evaluated at eval_every: validation, and by choice test and train, which is called "
        "train_eval there",
        signed="no",
    )
    eval_batch_size: int | None = setting(
        None,
        "rows of one rank in a batch of an evaluation; null: batch_size",
        ge=1,
        unit="rows",
        signed="when set",
    )
    stop_grace_s: float | None = setting(
        20,
        "after SIGTERM, once the run is saved, an evaluation ends within this or is left out, and "
        "ranks that wait for a stuck one are ended; null: no limit",
        ge=0,
        unit="seconds",
        signed="no",
    )
    clip: ClipSettings = setting(
        ClipSettings, "bounds of an update's gradients, applied in this order; null: no bound"
    )
    penalties: list[Any] = setting(  # its own parser gives better reasons for a refusal
        list,
        "{pattern: REGEX on names, l1: 0.0, l2: 0.0}: added to the train loss, logged as l1 and l2",
    )
    log_gradients: str | None = setting(
        None,
        "global: mean norm before clipping; parameters: also the norm of each one",
        choices=("global", "parameters"),
        signed="no",
    )
    max_skipped: int | None = setting(
        50,
        "the run fails when so many updates in a row have gradients that are not finite, and are "
        "skipped; null: never",
        ge=1,
        unit="updates",
        signed="no",
    )
    traceback: bool = setting(
        False, "show the traceback of an error, not only its message", signed="no"
    )
    lr_scaling: LrScalingSettings = setting(
        LrScalingSettings, "a factor of all learning rates, by the batches of an update"
    )
    ema: EmaSettings = setting(EmaSettings, "moving average of the dense half's parameters")
    compile: bool = setting(False, "torch.compile of the dense half", signed="no")
    profile: ProfilerSettings = setting(
        ProfilerSettings, "a Chrome trace and the top operators of a window of updates", signed="no"
    )
    yardstick: bool = setting(
        True,
        "at the end, logistic (of numbers linear) regression on the same columns or, where items "
        "are ranked, popularity, for comparison (seconds)",
        signed="no",
    )
    early_stop: EarlyStop = setting(
        EarlyStop,
        "end the run; the best weights are then tested as at any other end",
        signed="when on",
    )
    lr_on_plateau: LrOnPlateau = setting(
        LrOnPlateau,
        "multiply all learning rates by `factor`, on top of the schedule",
        signed="when on",
    )
    batch_on_plateau: BatchOnPlateau = setting(
        BatchOnPlateau,
        "multiply the rows of an update by `factor`, in more micro-batches of batch_size",
        signed="when on",
    )
