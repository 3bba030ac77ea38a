"""The keys of conf/trainer/. The rules that wait for a metric are in config/early_stopping.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from runner.config.early_stopping import BatchOnPlateau, EarlyStop, LrOnPlateau
from runner.config_key import Key
from runner.optim.lr_scaling import LR_SCALING_RULES
from runner.optim.settings import ClipSettings


@dataclass(frozen=True)
class LrScalingSettings:
    """A factor of all full learning rates, by the batches that an update adds up."""

    rule: Annotated[
        str, Key("constant, sqrt or linear in the batches", choices=tuple(LR_SCALING_RULES))
    ] = "constant"
    batches: Annotated[
        int | None,
        Key("batches that an update adds up; null: ranks * accumulate when the run is new", ge=1),
    ] = None


@dataclass(frozen=True)
class EmaSettings:
    """An exponential moving average of the dense half's parameters."""

    decay: Annotated[
        float | None,
        Key(
            "such as 0.999; null: no average is kept",
            ge=0,
            lt=1,
            note="0 is the weights themselves, null keeps no average",
        ),
    ] = None
    warmup: Annotated[bool, Key("the decay of update k is at most (1 + k) / (10 + k)")] = True
    evaluate: Annotated[bool, Key("evaluations take the average in place of the weights")] = True


@dataclass(frozen=True)
class ProfilerSettings:
    """A window of updates that torch's profiler records."""

    updates: Annotated[int, Key("updates that are recorded; 0: none", ge=0, unit="updates")] = 0
    after: Annotated[int, Key("updates of this process that come before", ge=0, unit="updates")] = (
        10
    )


@dataclass(frozen=True)
class TrainerSettings:
    """How a run goes: length, batch, precision, hardware, cadence."""

    max_steps: Annotated[
        int | None,
        Key(
            "updates; exactly one of max_steps and max_epochs is set, the command line's one wins",
            ge=1,
            unit="updates",
        ),
    ] = None
    max_epochs: Annotated[
        int | None,
        Key(
            "passes over the train split; auto: by the number of its rows",
            ge=1,
            unit="epochs",
            auto=True,
        ),
    ] = 1
    batch_size: Annotated[
        int,
        Key(
            "rows of one rank and micro-batch; auto: by the number of train rows",
            ge=1,
            lt=2**31,
            unit="rows",
            signed="in global_batch",
            auto=True,
        ),
    ] = 4096
    accumulate: Annotated[
        int,
        Key(
            "micro-batches of an update; N equal one batch of N times the size "
            "(see model.loss.within)",
            ge=1,
            le=1_000_000,
            unit="micro-batches",
            signed="in global_batch",
        ),
    ] = 1
    amp: Annotated[bool, Key("autocast of the dense half")] = False
    amp_dtype: Annotated[str, Key("bf16, or fp16 on CUDA", choices=("bf16", "fp16"))] = "bf16"
    tf32: Annotated[bool, Key("TF32 in matrix products of float32 on CUDA")] = False
    device: Annotated[
        str,
        Key(
            "auto, cpu, cuda or cuda:N",
            choices=("auto", "cpu", "cuda"),
            pattern=r"cuda:\d+",
            signed="no",
        ),
    ] = "auto"
    num_processes: Annotated[
        int,
        Key(
            "ranks on this machine; under torchrun its own number holds",
            ge=1,
            unit="ranks",
            signed="in global_batch",
        ),
    ] = 1
    rank_timeout_s: Annotated[
        int,
        Key(
            "a rank that waits longer than this for another one fails",
            ge=1,
            unit="seconds",
            signed="no",
        ),
    ] = 300
    pipeline: Annotated[
        str,
        Key(
            "none; base: a batch is copied to the GPU during the update before it; sparse_dist: "
            "TorchRec's, which also sends its ids to their ranks; auto: the best that works",
            choices=("auto", "none", "base", "sparse_dist"),
            signed="no",
        ),
    ] = "auto"
    num_threads: Annotated[
        int | None,
        Key(
            "each computes some rows of an update, or a share of its operations; null: as many as "
            "this process may use cores, where that is faster than one",
            ge=1,
            le=1024,
            unit="threads",
            signed="no",
        ),
    ] = None
    deterministic: Annotated[bool, Key("refuse nondeterministic kernels")] = False
    log_every: Annotated[
        int | str,
        Key("updates, or '5000ex', '1ep', '30s'", interval="progress or time", signed="no"),
    ] = 50
    eval_every: Annotated[
        int | str | None,
        Key(
            "updates, or '5000ex', '1ep', on the validation split; null: only at the end",
            interval="progress",
        ),
    ] = "1ep"
    eval_splits: Annotated[
        list[str],
        Key(
            "evaluated at eval_every: validation, and by choice test and train, which is called "
            "train_eval there",
            signed="no",
        ),
    ] = field(default_factory=lambda: ["validation"])
    eval_batch_size: Annotated[
        int | None,
        Key(
            "rows of one rank in a batch of an evaluation; null: batch_size",
            ge=1,
            unit="rows",
            signed="when set",
        ),
    ] = None
    stop_grace_s: Annotated[
        float | None,
        Key(
            "after SIGTERM, once the run is saved, an evaluation ends within this or is left out; "
            "null: no limit",
            ge=0,
            unit="seconds",
            signed="no",
        ),
    ] = 20
    clip: Annotated[
        ClipSettings, Key("bounds of an update's gradients, applied in this order; null: no bound")
    ] = field(default_factory=ClipSettings)
    penalties: Annotated[
        list[Any],  # its own parser gives better reasons for a refusal
        Key(
            "{pattern: REGEX on names, l1: 0.0, l2: 0.0}: added to the train loss, logged as l1 "
            "and l2"
        ),
    ] = field(default_factory=list)
    log_gradients: Annotated[
        str | None,
        Key(
            "global: mean norm before clipping; parameters: also the norm of each one",
            choices=("global", "parameters"),
            signed="no",
        ),
    ] = None
    max_skipped: Annotated[
        int | None,
        Key(
            "the run fails when so many updates in a row have gradients that are not finite, and "
            "are skipped; null: never",
            ge=1,
            unit="updates",
            signed="no",
        ),
    ] = 50
    traceback: Annotated[
        bool, Key("show the traceback of an error, not only its message", signed="no")
    ] = False
    lr_scaling: Annotated[
        LrScalingSettings, Key("a factor of all learning rates, by the batches of an update")
    ] = field(default_factory=LrScalingSettings)
    ema: Annotated[EmaSettings, Key("moving average of the dense half's parameters")] = field(
        default_factory=EmaSettings
    )
    compile: Annotated[bool, Key("torch.compile of the dense half", signed="no")] = False
    profile: Annotated[
        ProfilerSettings,
        Key("a Chrome trace and the top operators of a window of updates", signed="no"),
    ] = field(default_factory=ProfilerSettings)
    yardstick: Annotated[
        bool,
        Key(
            "at the end, logistic (of numbers linear) regression on the same columns or, where "
            "items are ranked, popularity, for comparison (seconds)",
            signed="no",
        ),
    ] = True
    early_stop: Annotated[
        EarlyStop,
        Key("end the run; the best weights are then tested as at any other end", signed="when on"),
    ] = field(default_factory=EarlyStop)
    lr_on_plateau: Annotated[
        LrOnPlateau,
        Key("multiply all learning rates by `factor`, on top of the schedule", signed="when on"),
    ] = field(default_factory=LrOnPlateau)
    batch_on_plateau: Annotated[
        BatchOnPlateau,
        Key(
            "multiply the rows of an update by `factor`, in more micro-batches of batch_size",
            signed="when on",
        ),
    ] = field(default_factory=BatchOnPlateau)
