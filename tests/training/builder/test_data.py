"""What the builder refuses of a dataset."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runner.config.settings import DEBUG_LOOP, ONLINE_LOOP, TRAIN_LOOP, TUNE_LR_LOOP
from runner.errors import ConfigError
from runner.training.builder.data import check_loop_of_stream


@pytest.mark.parametrize("loop", [TRAIN_LOOP, TUNE_LR_LOOP])
def test_a_stream_of_ones_own_is_refused_by_loops_that_count_epochs(loop):
    check_loop_of_stream(SimpleNamespace(), loop)
    with pytest.raises(ConfigError, match=r"SimpleNamespace is a stream .*: loop=online"):
        check_loop_of_stream(SimpleNamespace(is_stream=True), loop)


@pytest.mark.parametrize("loop", [ONLINE_LOOP, DEBUG_LOOP])
def test_a_stream_is_read_by_loops_without_epochs(loop):
    check_loop_of_stream(SimpleNamespace(is_stream=True), loop)
