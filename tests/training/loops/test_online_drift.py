"""What is told of a stream's windows: their loss over all of it, restarts included."""

import pytest

from runner.training.loops.online import MAX_SHOWN_WINDOWS, compute_drift


def windows(losses, size=10):
    return [{"loss": loss, "examples": size * (n + 1)} for n, loss in enumerate(losses)]


def test_windows_weigh_by_their_examples():
    rows = [{"loss": 1.0, "examples": 30}, {"loss": 2.0, "examples": 40}]
    found = compute_drift(rows)
    assert found is not None
    assert found.losses == [1.0, 2.0]
    assert found.so_far == pytest.approx((30 * 1.0 + 10 * 2.0) / 40)
    assert (found.last, found.num_windows) == (2.0, 2)


def test_a_long_stream_is_drawn_coarser_and_a_change_in_it_stays_to_be_seen():
    count = 4 * MAX_SHOWN_WINDOWS
    found = compute_drift(windows([0.4] * (count // 2) + [0.7] * (count // 2)))
    assert found is not None
    assert found.num_windows == count
    assert MAX_SHOWN_WINDOWS <= len(found.losses) <= 2 * MAX_SHOWN_WINDOWS
    assert found.losses[0] == pytest.approx(0.4) and found.losses[-1] == pytest.approx(0.7)
    assert sorted(found.losses) == found.losses
    assert found.so_far == pytest.approx(0.55)
    assert found.last == 0.7


def test_of_a_stream_without_a_window_there_is_nothing_to_tell():
    assert compute_drift([]) is None
