from .factory import MetricCollection as MetricCollection
from .metric_set import MetricSet as MetricSet
from .protocol import Metrics as Metrics
from .settings import MetricSettings as MetricSettings
