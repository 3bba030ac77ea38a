"""Every option and every experiment composes and signs as a golden file has it.

`python -m tests.golden.record` writes the file again after an intended change, whose diff is then
reviewed.
"""

import json

import pytest

from runner.rundir.moved_targets import current_target
from tests.golden.record import FILE, record


@pytest.fixture(scope="module")
def recorded_now():
    return json.loads(json.dumps(record()))


RECORDED = json.loads(FILE.read_text())


def test_every_option_and_experiment_is_in_the_golden_file(recorded_now):
    assert recorded_now.keys() == RECORDED.keys()


@pytest.mark.parametrize("command", RECORDED)
def test_an_option_composes_and_signs_as_recorded(recorded_now, command):
    assert recorded_now[command]["signature"] == RECORDED[command]["signature"]
    assert recorded_now[command]["signed"] == RECORDED[command]["signed"]
    assert recorded_now[command]["config"] == _with_current_names(RECORDED[command]["config"])


def _with_current_names(config):
    """Rename targets: the file has the names of the day on which it was recorded."""
    if isinstance(config, dict):
        return {
            k: current_target(v)
            if k.endswith("_target_") and isinstance(v, str)
            else _with_current_names(v)
            for k, v in config.items()
        }
    return config
