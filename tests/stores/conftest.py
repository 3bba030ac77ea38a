"""One object store for all tests of a process; each test writes under a name of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.server import BUCKET, StoreServer


@pytest.fixture(scope="session")
def store_server() -> Iterator[StoreServer]:
    pytest.importorskip("moto", reason="the object store of the tests: pip install 'moto[server]'")
    pytest.importorskip("flask", reason="the object store of the tests: pip install 'moto[server]'")
    server = StoreServer()
    yield server
    server.close()


@pytest.fixture
def store(store_server, monkeypatch, tmp_path) -> StoreServer:
    """The store, named by the environment, with a folder `store.url` for this test alone."""
    for name, value in store_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    store_server.set_faults()
    store_server.folder = tmp_path.name
    store_server.url = f"s3://{BUCKET}/{tmp_path.name}"
    return store_server
