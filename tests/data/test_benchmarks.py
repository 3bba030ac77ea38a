"""The benchmarks of order and memory run; what they say of orders is right. Nothing is timed."""

from __future__ import annotations

import numpy as np
import pytest

from bench import memory, order
from tests.data.tables import dataset, read, table, write


def test_the_order_that_is_measured_is_the_one_that_batches_have(tmp_path, monkeypatch):
    monkeypatch.setattr(order, "BLOCK_ROWS", 32)
    data = dataset(write(tmp_path, table(2048), block_rows=32), window_rows=256)
    [batch] = read(data, batch_size=2048)
    assert order.ours(2048, 256).tolist() == batch.rows_B.tolist()


def test_distances_of_a_full_shuffle_and_of_none():
    num_rows = 50 * order.BATCH_SIZE
    full = np.random.default_rng(0).permutation(num_rows)
    moved, neighbours, apart, worst = map(float, order.distances(full))
    assert moved == pytest.approx(1 / 3, abs=0.01)
    assert neighbours == pytest.approx(order.BLOCK_ROWS / num_rows, abs=0.002)
    # the distance of n uniform draws from the uniform distribution: 0.869 / sqrt(n) on average
    assert apart == pytest.approx(0.869 / order.BATCH_SIZE**0.5, abs=0.002) and worst < 0.04
    moved, neighbours, apart, _ = map(float, order.distances(np.arange(num_rows)))
    assert moved == 0 and neighbours > 0.999 and apart > 0.7


def test_memory_is_shown_for_rows_and_entries(tmp_path, capsys):
    memory.write_rows(tmp_path, 3 * memory.BLOCK_ROWS)
    memory.read(tmp_path, 2, None)
    memory.count(1000)
    rows, entries = capsys.readouterr().out.splitlines()
    assert rows.split()[0] == "24,576" and "after each epoch" in rows
    assert entries.split()[0] == "1,000" and "0 MB kept" in entries
