from .collection import MetricCollection
from .metric_set import MetricSet
from .protocol import Metrics
from .settings import MetricSettings

__all__ = ["MetricCollection", "MetricSet", "MetricSettings", "Metrics"]
