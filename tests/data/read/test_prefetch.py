from __future__ import annotations

import itertools
import threading
import time

import pytest

from runner.data.read.prefetch import prefetch_in_thread


def threads() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


@pytest.mark.parametrize("depth", [1, 3, 100])
def test_items_come_in_order(depth):
    assert list(prefetch_in_thread(iter(range(50)), depth)) == list(range(50))
    assert threads() == 0


def test_an_error_comes_where_its_item_would_have_come():
    def source():
        yield 1
        yield 2
        raise KeyError("third")

    items = prefetch_in_thread(source(), 8)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(KeyError, match="third"):
        next(items)
    assert threads() == 0


def test_no_more_is_made_ahead_than_asked_for():
    made = []
    items = prefetch_in_thread((made.append(n) or n for n in itertools.count()), 3)
    next(items)
    time.sleep(0.2)
    assert 4 <= len(made) <= 6  # one given, three waiting, one in the thread's hand
    items.close()


def test_closing_early_ends_the_thread():
    items = prefetch_in_thread(itertools.count(), 2)
    assert next(items) == 0
    assert threads() == 1
    items.close()
    assert threads() == 0
