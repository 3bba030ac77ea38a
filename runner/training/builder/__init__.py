"""Builds a job from a checked configuration; only here are its parts instantiated.

Order: data schema -> model -> tables with their optimizer -> dense optimizers -> task ->
schedules -> metrics -> trackers -> checkpointer. The builder imports torch; nothing that runs
before it does.
"""

from runner.training.builder.data import count_steps_per_epoch as count_steps_per_epoch
from runner.training.builder.device import join_ranks as join_ranks
from runner.training.builder.instantiate import instantiate as instantiate
from runner.training.builder.job import build_job as build_job
from runner.training.builder.own_schedule import build_any_schedule as build_any_schedule
from runner.training.builder.part_kinds import KINDS as KINDS
from runner.training.builder.part_kinds import check_parts as check_parts
from runner.training.builder.parts_check import check_patterns as check_patterns
from runner.training.builder.parts_check import check_source_weights as check_source_weights
