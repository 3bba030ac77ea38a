"""The benchmarks of order, memory, growth and loaders run, and say what is right. No timing."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from bench import loaders, memory, order
from bench.data import write_rows
from bench.growth import axes
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


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    write_rows(path, 10_000)
    return path


@pytest.mark.parametrize("name", ["ours", "torch-rows", "torch-tensors"])
def test_every_loader_gives_each_row_once(rows_file, name, capsys):
    assert sum(loaders.LOADERS[name][1](rows_file)()) == 10_000
    loaders.measure(name, rows_file)
    before_s, of_row, peak = map(float, capsys.readouterr().out.split())
    assert before_s >= 0 and of_row >= 0 and peak > 1


@pytest.mark.parametrize(
    ("name", "module"), [("deepctr-torch", "deepctr_torch"), ("fuxictr-npz", "fuxictr")]
)
def test_a_loader_that_is_not_installed_says_so(rows_file, name, module, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit) as ended:
        loaders.measure(name, rows_file)
    assert ended.value.code == loaders.NOT_INSTALLED
    said = capsys.readouterr().out.strip()
    assert said.startswith(f"not installed: {module}")
    found = {"ours": [[1.0, 1e-6, 100.0], [1.0, 2e-6, 100.0]], "torch-rows": [[0, 3e-6, 9]] * 2}
    ours, rows, missing = loaders.rows_of(found, {name: said})
    assert ours[:3] == ["this data layer", "667k", "1.0"]
    assert rows[1:4] == ["333k", "2.2", "1.5 to 3.0"], "the pairs' ratios are 3 and 1.5"
    assert missing[1] == said


def test_processor_time_counts_processes_that_were_started():
    before = loaders.processor_s()
    subprocess.run([sys.executable, "-c", "for _ in range(10**7): pass"], check=True)
    assert loaders.processor_s() - before > 0.05


def test_growth_reads_a_file_under_several_names(tmp_path, monkeypatch):
    monkeypatch.setattr(axes, "FILE_ROWS", 20_000)
    seen = []
    monkeypatch.setattr(
        "bench.data.read", lambda data, seed: seen.append(data.num_rows["train"]) or 1.0
    )
    costs = [axes.measure_rows(size, tmp_path) for size in (20_000, 60_000)]
    assert seen == [20_000, 60_000]
    assert [cost["an epoch"] for cost in costs] == [1.0, 1.0] and costs[1]["the index"] > 0
