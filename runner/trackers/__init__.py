"""Where numbers go besides metrics.jsonl. The libraries are imported only when chosen."""

from runner.trackers.fan_out import RunInfo as RunInfo
from runner.trackers.fan_out import Tracker as Tracker
from runner.trackers.fan_out import Trackers as Trackers
from runner.trackers.histogram import Histogram as Histogram
