"""What must survive: every row with the cases that show it, and how many these are in full."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Faults:
    """A fault of a script that counts them (`tests.fault_table`)."""

    module: str
    fault: str
    full: int  # cases, at least
    repetitions = 1

    @property
    def name(self) -> str:
        return self.fault

    def command(self) -> list[str]:
        return [sys.executable, "-m", self.module, self.fault, "--json"]


@dataclass(frozen=True)
class Tests:
    """Tests, each run so many times."""

    file: str
    test: str  # a function, perhaps with a word of some of its cases in brackets
    full: int
    repetitions: int = 1

    @property
    def name(self) -> str:
        return self.test

    def command(self) -> list[str]:
        test, _, case = self.test.rstrip("]").partition("[")
        chosen = ["-k", case] if case else []
        plugins = ("-p", "no:cacheprovider", "-p", "tests.reliability.repeat")
        return [sys.executable, "-m", "pytest", "-q", *plugins, f"{self.file}::{test}", *chosen]


Part = Faults | Tests


@dataclass(frozen=True)
class Row:
    """A fault, how often it has to be survived, and what shows that."""

    number: int
    fault: str
    asked: str
    parts: tuple[Part, ...]


CHECKPOINT, DATA, WHOLE = (
    "tests.rundir.checkpoint.faults",
    "tests.data.faults",
    "tests.whole.faults",
)
EXACT, SIGNALS = "tests/whole/test_exact_resume.py", "tests/whole/test_signals.py"
SWEEP_KILLED, SWEEP = "tests/sweep/test_killed.py", "tests.sweep.faults"
RANKS, SWEEP_DATABASE = "tests/distributed/test_runs.py", "tests/sweep/test_database.py"
SERVERS_OF_ROWS, SCORER = "tests/whole/test_data_service.py", "tests/serving/server/test_follow.py"
MIRROR, STORED_INPUTS = "tests/stores/test_mirror.py", "tests/stores/test_inputs.py"
WANDB = "tests/reporting/trackers/test_wandb.py"

AT_RANDOM = "test_a_run_killed_at_random_instants_and_resumed_equals_one_never_killed"
AT_A_POINT = "test_a_run_killed_at_a_named_point_and_resumed_equals_one_never_killed"
SWEEP_AT_RANDOM = "test_a_sweep_killed_at_random_moments_ends_every_job_exactly_once"
FULL_DISK_OF_A_SWEEP = "test_a_full_disk_stops_the_sweep_with_a_clear_error"
ONE_SIGNAL = "test_a_signal_saves_the_update_it_interrupts_and_the_resumed_run_is_the_same"
SIGNAL_OF_RANKS = "test_a_signal_stops_all_ranks_after_the_same_update"
ROWS_AT_RANDOM = "test_servers_killed_or_stopped_at_random_moments_change_nothing"
SCORER_AT_RANDOM = "test_a_server_killed_at_random_moments_answers_from_exactly_one_version"
UPLOAD_KILLED = "test_an_upload_killed_at_any_request_leaves_the_old_or_the_new_state"

ROWS = (
    Row(1, "SIGKILL at random: in a step, a checkpoint, an evaluation, a sweep", "200", (
        Tests(EXACT, AT_RANDOM, 160, 4),
        Tests(EXACT, AT_A_POINT, 11),
        Tests(SWEEP_KILLED, SWEEP_AT_RANDOM, 10, 10),
        Faults(CHECKPOINT, "random_kills", 200),
    )),
    Row(2, "SIGKILL at every write, fsync and rename of a checkpoint", "all", (
        Faults(CHECKPOINT, "kills", 60),
        Faults(CHECKPOINT, "strace_kills", 60),
    )),
    Row(3, "a second kill during the resume", "30", (
        Tests(EXACT, "test_a_run_killed_again_while_it_resumes_equals_one_never_killed", 30),
    )),
    Row(4, "disk full for checkpoint, run directory, sweep", "20 sizes", (
        Faults(CHECKPOINT, "full_disk", 20),
        Faults(CHECKPOINT, "file_limit", 20),
        Faults(WHOLE, "full_disk_of_a_run", 20),
        Tests(SWEEP_DATABASE, FULL_DISK_OF_A_SWEEP, 1),
    )),
    Row(5, "I/O error while a checkpoint is written or read", "20", (
        Faults(CHECKPOINT, "io_errors", 20),
        Faults(CHECKPOINT, "read_errors", 20),
    )),
    Row(6, "a checkpoint cut, flipped, with a file deleted or empty", "250", (
        Faults(CHECKPOINT, "damage", 250),
    )),
    Row(7, "Parquet flipped, cut, empty, without rows", "210", (
        Faults(DATA, "damaged_files", 150),
        Faults(DATA, "empty_files", 20),
        Faults(DATA, "damaged_cache", 40),
    )),
    Row(8, "labels and features that are no numbers, infinite or missing", "500", (
        Faults(DATA, "bad_values", 500),
    )),
    Row(9, "ids outside the table, ragged and empty lists", "500", (
        Faults(DATA, "bad_ids", 500),
    )),
    Row(10, "columns missing, renamed, of another type, changing between files", "40", (
        Faults(DATA, "other_columns", 40),
    )),
    Row(11, "SIGINT once and twice", "20 + 20", (
        Tests(SIGNALS, f"{ONE_SIGNAL}[SIGINT]", 20, 20),
        Tests(SIGNALS, "test_a_second_ctrl_c_leaves_at_once_with_the_old_checkpoint_whole", 20, 20),
    )),
    Row(12, "SIGTERM, on one rank and on two", "20", (
        Tests(SIGNALS, f"{ONE_SIGNAL}[SIGTERM]", 15, 15),
        Tests(RANKS, f"{SIGNAL_OF_RANKS}[143]", 5, 5),
    )),
    Row(13, "out of memory in a run and in a job of a sweep", "15", (
        Faults(WHOLE, "out_of_memory", 9),
        Tests("tests/sweep/test_sweep.py", "test_a_job_that_fails_leaves_the_others_alone", 6, 6),
    )),
    Row(14, "one of two ranks killed or stopped: in a step, a collective, a checkpoint", "60", (
        Faults("tests.distributed.faults", "lost_ranks", 60),
    )),
    Row(15, "output folder read-only", "5", (Faults(DATA, "read_only", 5),)),
    Row(16, "two runs in one folder", "20", (Faults(WHOLE, "two_in_one_folder", 20),)),
    Row(17, "tracker: no network, network lost midway, bad key", "12", (
        Tests(WANDB, "test_without_a_key_it_is_offline_and_says_how_to_send_it", 3, 3),
        Tests(WANDB, "test_with_a_refused_key_it_is_offline", 3, 3),
        Tests(WANDB, "test_with_a_key_and_no_server_training_does_not_wait", 3, 3),
        Tests(WANDB, "test_a_network_lost_midway_delays_nothing_and_loses_nothing", 3, 3),
    )),
    Row(18, "a sweep of 10,000 empty jobs, killed 20 times", "10,000 jobs", (
        Faults(SWEEP, "empty_jobs", 10_000),
    )),
    Row(19, "malicious `_target_`, pickles, paths, a canary secret", "50", (
        Faults(DATA, "attacks", 50),
    )),
    Row(20, "0, 2, 4, 8 workers; resume at every step of 40", "40", (
        Faults(DATA, "every_position", 40),
        Faults(DATA, "every_resume", 40),
        Faults(DATA, "every_resume_of_ranks", 40),
    )),
    Row(21, "files of a run directory edited, cut, replaced", "200", (
        Faults(WHOLE, "edits", 200),
    )),
    Row(22, "every public callable named in every group (a case: all names, one group)", "all", (
        Faults(WHOLE, "callables", 26),
    )),
    Row(23, "the same seed: model, loss, optimizer, pipeline, 1 to 3 threads", "all", (
        Faults("tests.models.fault_same_seed", "every_combination", 4_000),
        Faults("tests.models.fault_same_seed", "whole_runs", 55),
    )),
    Row(24, "clock jumps; a run directory moved, copied, linked", "20 + 20", (
        Faults(WHOLE, "clock_jumps", 20),
        Faults(WHOLE, "moved_directories", 20),
    )),
    Row(25, "a sweep under kills of it and of jobs, disk full, memory limits", "2,000 jobs", (
        Faults(SWEEP, "week", 2_000),
    )),
    Row(26, "one node of two lost, killed or cut off, and back (a case: 5 losses)", "20 losses", (
        Faults("tests.distributed.node_faults", "lost_nodes", 4),
    )),
    Row(27, "a server of rows, a scorer, an object store killed or stalled at any request", "60", (
        Tests(SERVERS_OF_ROWS, ROWS_AT_RANDOM, 24, 24),
        Tests(SCORER, SCORER_AT_RANDOM, 24, 24),
        Tests(MIRROR, UPLOAD_KILLED, 1),  # each of its requests, of which there are over 20
        Tests(MIRROR, "test_training_does_not_wait_for_the_store", 1),
        Tests(STORED_INPUTS, "test_a_request_that_fails_twice_is_sent_again", 12, 2),
    )),
)  # fmt: skip
