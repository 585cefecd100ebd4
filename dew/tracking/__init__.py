"""Where a run's values go: local journals, several places at once."""

from dew.tracking.local import LocalTracker
from dew.tracking.tracker import Tracker
from dew.tracking.trackers import Trackers

__all__ = ["LocalTracker", "Tracker", "Trackers"]
