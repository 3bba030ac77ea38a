"""The keys of the callbacks that only watch: conf/callbacks/. None of them enters a signature."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from runner.config_key import Key

MEASURED_TOGETHER = "all ranks measure after the same update, and their clocks differ"


@dataclass(frozen=True)
class ThroughputSettings:
    """The keys of callbacks=throughput."""

    every: Annotated[
        int | str, Key("updates, or '5000ex', '1ep', '30s'", interval="progress or time")
    ] = 100
    warn_below: Annotated[float, Key("share of the best speed so far; 0: never", ge=0, le=1)] = 0.5


@dataclass(frozen=True)
class MemorySettings:
    """The keys of callbacks=memory."""

    every: Annotated[
        int | str, Key("updates, or '5000ex', '1ep'", interval="progress", note=MEASURED_TOGETHER)
    ] = 100
    warn_free_below: Annotated[
        float, Key("share of the memory that this process may use; 0: never", ge=0, le=1)
    ] = 0.05


@dataclass(frozen=True)
class WeightsSettings:
    """The keys of callbacks=weights."""

    every: Annotated[
        int | str, Key("updates, or '5000ex', '1ep'", interval="progress", note=MEASURED_TOGETHER)
    ] = "1ep"
    parameters: Annotated[
        list[dict[str, Any]],
        Key(
            "of the dense half and the loss; the first match wins; norm, rms, mean, std, min, "
            "max, zeros (a share)"
        ),
    ] = field(default_factory=lambda: [{"pattern": ".*", "statistics": ["norm", "rms"]}])
    tables: Annotated[list[dict[str, Any]], Key("the same of the norms of a table's rows")] = field(
        default_factory=lambda: [{"pattern": ".*", "statistics": ["mean", "max"]}]
    )
    sample_rows: Annotated[
        int | None,
        Key(
            "of a larger table so many rows are read, the same ones every time; null: all",
            ge=1,
            unit="rows",
        ),
    ] = 100_000
    histograms: Annotated[
        list[str],
        Key(
            "patterns such as dense/top.0.weight, tables/C1: weights drawn by "
            "tracker=tensorboard or wandb"
        ),
    ] = field(default_factory=list)
    gradient_histograms: Annotated[
        list[str], Key("patterns of dense parameters, whose gradients of the last update are drawn")
    ] = field(default_factory=list)


@dataclass(frozen=True)
class ActivationsSettings:
    """The keys of callbacks=activations."""

    every: Annotated[int, Key("updates; only these are slower", ge=1, unit="updates")] = 100
    modules: Annotated[
        list[str],
        Key(
            "patterns of whole dotted names, such as top.*; `loop=debug loop.summary=true` lists "
            "them"
        ),
    ] = field(default_factory=lambda: [".*"])
    statistics: Annotated[
        list[str], Key("mean, std, rms, max (magnitude), zeros and bad (shares)")
    ] = field(default_factory=lambda: ["rms", "zeros"])
