"""Trackers, which receive metrics in addition to metrics.jsonl. Libraries are imported on use."""

from runner.reporting.trackers.tracker import Histogram as Histogram
from runner.reporting.trackers.tracker import RunInfo as RunInfo
from runner.reporting.trackers.tracker import Tracker as Tracker
from runner.reporting.trackers.tracker import Trackers as Trackers
from runner.reporting.trackers.tracker import check_tracker as check_tracker
