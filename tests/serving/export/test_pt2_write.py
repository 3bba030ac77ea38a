"""A `.pt2` is what PyTorch writes, and neither it nor the stacking of tables copies a weight."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from runner.serving.artifact.formats import save_program
from runner.serving.export.stacked_tables import StackedTables


class Net(torch.nn.Module):
    """Weights of every kind: a parameter, a buffer, a part of it, one without values."""

    def __init__(self) -> None:
        super().__init__()
        self.map = torch.nn.Linear(3, 2)
        self.register_buffer("table", torch.randn(10, 3))
        self.register_buffer("part", self.table[2:5])
        self.register_buffer("empty", torch.zeros(0, 3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        table = torch.cat((self.table, self.part, self.empty))
        return self.map(torch.nn.functional.embedding(rows, table))


def test_the_file_has_the_bytes_of_torch_export_save(tmp_path):
    program = torch.export.export(Net(), (torch.tensor([1, 11]),))
    ours, theirs = tmp_path / "ours" / "model.pt2", tmp_path / "theirs" / "model.pt2"
    ours.parent.mkdir()
    theirs.parent.mkdir()
    save_program(program, ours)
    torch.export.save(program, str(theirs))  # afterwards: nothing stays changed in PyTorch
    assert ours.read_bytes() == theirs.read_bytes()


PEAK = """
import resource, sys, torch
from pathlib import Path
from runner.serving.artifact.formats import save_program

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.ones(2_000_000, 16))

    def forward(self, rows):
        return torch.nn.functional.embedding(rows, self.table)

net = Net()
save_program(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), Path(sys.argv[1]))
program = torch.export.export(net, (torch.tensor([1]),))
before = peak()
save_program(program, Path(sys.argv[1]))
print((peak() - before) / net.table.nbytes)
"""


@pytest.mark.long
def test_a_large_weight_is_not_copied(tmp_path):
    command = [sys.executable, "-c", PEAK, str(tmp_path / "model.pt2")]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert float(told.stdout) < 0.3  # `torch.export.save` by itself: 2


@pytest.mark.parametrize("num_tables", [1, 3])
def test_tables_that_lie_end_to_end_are_not_copied(num_tables):
    values = torch.randn(6, 4)
    tables = [values[1:3], values[3:4], values[4:6]][:num_tables]
    stacked = StackedTables(tables, list(range(num_tables)), [False] * num_tables)
    assert torch.equal(stacked.rows.weight, torch.cat(tables))
    assert stacked.rows.weight.data_ptr() == tables[0].data_ptr()
    # the file gets the storage of a weight, of which the rest is no one's
    assert stacked.rows.weight.untyped_storage().nbytes() == stacked.rows.weight.nbytes


@pytest.mark.parametrize(
    "pick", [lambda x: [x[0:2], x[3:6]], lambda x: [x[3:6], x[0:3]], lambda x: [x[:3], x[3:] + 0]]
)
def test_other_tables_are_copied_in_their_order(pick):
    values = torch.randn(6, 4)
    tables = pick(values)
    stacked = StackedTables(tables, [0, 1], [False, False])
    assert torch.equal(stacked.rows.weight, torch.cat(tables))
