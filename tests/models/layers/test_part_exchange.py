"""Threads with parts of an update's rows see what each of them has found."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from runner.models.layers.part_exchange import PartExchange, current_exchange

PARTS = 3


def in_threads(work, exchange):
    def run(number):
        with exchange.part(number):
            return work(number)

    with ThreadPoolExecutor(PARTS) as pool:
        return [pool.submit(run, number) for number in range(PARTS)]


def test_every_thread_sees_what_all_give_in_the_order_of_the_parts_call_after_call():
    exchange = PartExchange(PARTS)

    def work(number):
        return [exchange.gather((call, number)) for call in range(50)], exchange.is_first

    results = [future.result() for future in in_threads(work, exchange)]
    expected = [[(call, number) for number in range(PARTS)] for call in range(50)]
    assert [seen for seen, _ in results] == [expected] * PARTS
    assert [first for _, first in results] == [True, False, False]


def test_sums_are_in_place_and_have_the_same_bits_in_every_thread():
    values = torch.randn(PARTS, 1000) * 10.0 ** torch.arange(PARTS)[:, None]
    exchange = PartExchange(PARTS)

    def work(number):
        mine = values[number].clone()
        assert exchange.all_reduce_sum(mine) is mine
        return mine

    for future in in_threads(work, exchange):
        assert torch.equal(future.result(), values[0] + values[1] + values[2])


def test_an_error_ends_the_waiting_of_all_others():
    exchange = PartExchange(PARTS)

    def work(number):
        if number == 1:
            raise ValueError("mine")
        exchange.gather(number)

    first, second, third = in_threads(work, exchange)
    with pytest.raises(ValueError, match="mine"):
        second.result()
    for future in (first, third):
        with pytest.raises(threading.BrokenBarrierError):
            future.result()


def test_outside_of_a_part_there_is_none():
    exchange = PartExchange(1)
    assert current_exchange() is None
    with exchange.part(0):
        assert current_exchange() is exchange
    assert current_exchange() is None
