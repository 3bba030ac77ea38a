"""A model of clicks that is served to all tests of the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.serving.scorer import Scorer
from tests.serving.served import Server, serving, write_clicks_model


@pytest.fixture(scope="session")
def clicks_model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "clicks"
    folder.mkdir()
    return write_clicks_model(folder)


@pytest.fixture(scope="session")
def clicks_scorer(clicks_model) -> Scorer:
    return Scorer.load(clicks_model)


@pytest.fixture(scope="session")
def server(runner, clicks_model) -> Iterator[Server]:
    with serving(runner, clicks_model, "--max-rows", "500", "--max-body-mb", "1") as found:
        yield found
