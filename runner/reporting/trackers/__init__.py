"""Where numbers go besides metrics.jsonl. The libraries are imported only when chosen."""

from runner.reporting.trackers.histogram import Histogram as Histogram
from runner.reporting.trackers.tracker import RunInfo as RunInfo
from runner.reporting.trackers.tracker import Tracker as Tracker
from runner.reporting.trackers.tracker import Trackers as Trackers
