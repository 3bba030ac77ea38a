"""Builds a job from a checked configuration; only here are its parts instantiated.

Order: data schema -> model -> tables with their optimizer -> dense optimizers -> task ->
schedules -> metrics -> trackers -> checkpointer. The builder imports torch; nothing that runs
before it does.
"""

from runner.training.builder.data import count_steps_per_epoch
from runner.training.builder.device import join_ranks
from runner.training.builder.instantiate import instantiate
from runner.training.builder.job import build_job
from runner.training.builder.own_schedule import build_any_schedule
from runner.training.builder.part_kinds import KINDS, check_parts
from runner.training.builder.parts_check import check_patterns, check_source_weights

__all__ = [
    "KINDS",
    "build_any_schedule",
    "build_job",
    "check_parts",
    "check_patterns",
    "check_source_weights",
    "count_steps_per_epoch",
    "instantiate",
    "join_ranks",
]
