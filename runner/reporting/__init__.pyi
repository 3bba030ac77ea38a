from .console.view import View as View
from .trackers.tracker import RunInfo as RunInfo
from .trackers.tracker import Tracker as Tracker
from .trackers.tracker import Trackers as Trackers
