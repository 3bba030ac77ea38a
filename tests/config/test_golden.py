"""What every option and every experiment means is what it meant: held against a golden file.

`python -m tests.golden.record` records anew what is meant to change; the diff is then reviewed.
"""

import json

import pytest

from runner.rundir.moved_targets import current_target
from tests.golden.record import FILE, record


@pytest.fixture(scope="module")
def now():
    return json.loads(json.dumps(record()))


RECORDED = json.loads(FILE.read_text())


def test_every_option_and_experiment_is_in_the_golden_file(now):
    assert now.keys() == RECORDED.keys()


@pytest.mark.parametrize("command", RECORDED)
def test_an_option_composes_and_signs_as_recorded(now, command):
    assert now[command]["signature"] == RECORDED[command]["signature"]
    assert now[command]["signed"] == RECORDED[command]["signed"]
    assert now[command]["config"] == _with_current_names(RECORDED[command]["config"])


def _with_current_names(config):
    """Targets of the file have the names of the day it was recorded."""
    if isinstance(config, dict):
        return {
            k: current_target(v)
            if k.endswith("_target_") and isinstance(v, str)
            else _with_current_names(v)
            for k, v in config.items()
        }
    return config
