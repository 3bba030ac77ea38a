"""The only place that instantiates: a checked configuration in, a Job out.

Order: data schema -> model -> tables with their optimizer -> dense optimizers -> task ->
schedules -> metrics -> trackers -> checkpointer. Imports torch; everything before it does not.
"""

from runner.training.builder.device import join_ranks
from runner.training.builder.instantiate import instantiate
from runner.training.builder.job import build_job, count_steps_per_epoch

__all__ = ["build_job", "count_steps_per_epoch", "instantiate", "join_ranks"]
