import pytest

from runner.config.intervals import Interval, Progress, is_due, parse_interval
from runner.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (100, Interval("updates", 100)),
        ("100", Interval("updates", 100)),
        ("5000ex", Interval("examples", 5000)),
        ("2ep", Interval("epochs", 2)),
        ("30min", Interval("seconds", 1800)),
        ("45s", Interval("seconds", 45)),
        ("1h", Interval("seconds", 3600)),
        (None, None),
    ],
)
def test_each_way_to_write_an_interval(text, expected):
    assert parse_interval(text, key="k", allow_time=True) == expected


@pytest.mark.parametrize("text", [0, -1, "0ep", "1.5ep", "ep", "", "5 parsecs", True, 2.5])
def test_what_is_no_interval_is_refused_by_key_and_value(text):
    with pytest.raises(ConfigError, match=r"trainer\.log_every="):
        parse_interval(text, key="trainer.log_every", allow_time=True)


def test_the_clock_never_decides_when_to_evaluate():
    with pytest.raises(ConfigError, match="must not be a time: this key changes the result"):
        parse_interval("30min", key="trainer.eval_every")


def test_due_at_every_multiple_and_nowhere_else():
    every = Interval("updates", 7)
    steps = [k for k in range(1, 50) if is_due(every, Progress(step=k - 1), Progress(step=k))]
    assert steps == [7, 14, 21, 28, 35, 42, 49]


def test_due_once_when_an_update_jumps_over_multiples():
    every = Interval("examples", 100)
    sizes = [64] * 10  # 64, 128, ..., 640: multiples of 100 are passed, never met
    seen, hits = 0, []
    for k, size in enumerate(sizes, 1):
        if is_due(every, Progress(examples=seen), Progress(examples=seen + size)):
            hits.append(k)
        seen += size
    assert hits == [k for k in range(1, 11) if (64 * k) // 100 > (64 * (k - 1)) // 100]
    assert len(hits) == 6


def test_due_after_a_resume_is_due_as_in_an_unbroken_run():
    """It is a function of the position alone, so nothing of it needs saving."""
    every = Interval("seconds", 60)
    assert not is_due(every, Progress(active_s=61.0), Progress(active_s=119.9))
    assert is_due(every, Progress(active_s=119.9), Progress(active_s=120.1))


def test_never_is_never_due():
    assert not is_due(None, Progress(), Progress(step=10**6))
