from .plan import SweepJob, SweepPlan
from .run import run_sweep

__all__ = [
    "SweepJob",
    "SweepPlan",
    "run_sweep",
]
