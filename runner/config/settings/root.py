"""The keys of conf/config.yaml that belong to no group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from runner.config_key import Key


@dataclass(frozen=True)
class RootSettings:
    """The keys that belong to no group."""

    name: Annotated[
        str | None,
        Key("name of the run's folder under outputs/; null: <model>_<dataset>", signed="no"),
    ] = None
    seed: Annotated[
        int,
        Key(
            "of the initial weights and the order of the examples, not of a dataset's splits",
            ge=0,
            lt=2**63,
        ),
    ] = 0
    run: Annotated[
        str | None,
        Key(
            "a run directory, for loops that start from a run: loop=eval run=outputs/...",
            signed="no",
        ),
    ] = None
    report: Annotated[
        bool,
        Key(
            "write report.html (5 MB) when a run ends; a sweep writes one for all its jobs",
            signed="no",
        ),
    ] = True
