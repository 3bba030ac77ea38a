from .plan import SweepJob as SweepJob
from .plan import SweepPlan as SweepPlan
from .run import run_sweep as run_sweep
