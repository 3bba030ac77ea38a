"""The keys of conf/config.yaml that belong to no group."""

from __future__ import annotations

from dataclasses import dataclass

from runner.config_key import setting


@dataclass(frozen=True)
class RootSettings:
    """The keys that belong to no group."""

    name: str | None = setting(
        None, "name of the run's folder under outputs/; null: <model>_<dataset>", signed="no"
    )
    seed: int = setting(
        0,
        "of the initial weights and the order of the examples, not of a dataset's splits",
        ge=0,
        lt=2**63,
    )
    run: str | None = setting(
        None,
        "a run directory, for loops that start from a run: loop=eval run=outputs/...",
        signed="no",
    )
    report: bool = setting(
        True,
        "write report.html (5 MB) when a run ends; a sweep writes one for all its jobs",
        signed="no",
    )
