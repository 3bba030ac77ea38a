"""Mergeable metrics. Settings and names are readable without torch, which MetricSet needs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.metrics.metric_set import MetricSet as MetricSet


def __getattr__(name: str) -> Any:
    if name == "MetricSet":
        from runner.metrics.metric_set import MetricSet

        return MetricSet
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
