"""The drift of a stream: the loss of its windows, restarts included."""

import math

import pytest

from runner.training.loops.online import MAX_SHOWN_WINDOWS, compute_drift


def windows(losses, size=10):
    return [{"loss": loss, "examples": size * (n + 1)} for n, loss in enumerate(losses)]


def test_windows_weigh_by_their_examples():
    rows = [{"loss": 1.0, "examples": 30}, {"loss": 2.0, "examples": 40}]
    drift = compute_drift(rows)
    assert drift is not None
    assert drift.losses == [1.0, 2.0]
    assert drift.so_far == pytest.approx((30 * 1.0 + 10 * 2.0) / 40)
    assert (drift.last, drift.num_windows) == (2.0, 2)


def test_a_window_without_a_defined_loss_is_left_out_of_the_mean():
    rows = windows([1.0, "nan", 3.0])
    drift = compute_drift(rows)
    assert drift is not None
    assert drift.losses == [1.0, pytest.approx(math.nan, nan_ok=True), 3.0]
    assert (drift.so_far, drift.last, drift.num_windows) == (2.0, 3.0, 3)
    drift = compute_drift(rows[1:2])
    assert drift is not None and math.isnan(drift.so_far) and math.isnan(drift.last)


def test_a_long_stream_is_drawn_more_coarsely_and_still_shows_a_change():
    count = 4 * MAX_SHOWN_WINDOWS
    drift = compute_drift(windows([0.4] * (count // 2) + [0.7] * (count // 2)))
    assert drift is not None
    assert drift.num_windows == count
    assert MAX_SHOWN_WINDOWS <= len(drift.losses) <= 2 * MAX_SHOWN_WINDOWS
    assert drift.losses[0] == pytest.approx(0.4) and drift.losses[-1] == pytest.approx(0.7)
    assert sorted(drift.losses) == drift.losses
    assert drift.so_far == pytest.approx(0.55)
    assert drift.last == 0.7


def test_a_stream_without_a_window_has_no_drift():
    assert compute_drift([]) is None
