from .console.view import View
from .trackers.tracker import RunInfo, Tracker, Trackers

__all__ = [
    "RunInfo",
    "Tracker",
    "Trackers",
    "View",
]
