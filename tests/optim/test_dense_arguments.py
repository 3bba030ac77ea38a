"""Arguments of torch.optim's classes as read from their source, against the classes themselves."""

from __future__ import annotations

import inspect

import pytest
import torch

from runner.optim.dense_arguments import accepted_arguments
from tests.conftest import python

CLASSES = [
    name
    for name, cls in vars(torch.optim).items()
    if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and name != "Optimizer"
]


@pytest.mark.parametrize("name", CLASSES)
def test_the_source_gives_the_arguments_of_the_class(name):
    signature = inspect.signature(getattr(torch.optim, name).__init__).parameters
    assert accepted_arguments(f"torch.optim.{name}") == [
        key for key in signature if key not in ("self", "params")
    ]


def test_other_classes_give_none():
    assert len(CLASSES) > 10
    assert accepted_arguments("torch.optim.rmsprop.RMSprop") == accepted_arguments(
        "torch.optim.RMSprop"
    )
    for target in ("torch.optim.Rmsprop", "torch.optim", "mine.Adam", "torch.optimal.Adam"):
        assert accepted_arguments(target) is None


def test_it_does_not_import_torch():
    code = (
        "import sys; from runner.optim.dense_arguments import accepted_arguments; "
        "assert accepted_arguments('torch.optim.SGD'); assert 'torch' not in sys.modules"
    )
    python("-c", code).check_returncode()
