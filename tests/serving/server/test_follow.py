"""`serve --follow`: deltas arrive while requests are answered."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import shutil
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from runner.errors import UserError
from runner.serving.artifact.delta import DeltaFolder, open_delta
from runner.serving.scorer import Scorer
from runner.serving.server import follow
from runner.serving.server.counters import Counters
from tests.reliability.cases import fault_seed
from tests.serving.served import serving
from tests.serving.versions import ROWS, Versions, served

NUM_DELTAS = 4
KINDS = {"age": "FP64", "a": "INT64", "b": "INT64", "tags": "INT64"}
BODY = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": kind, "shape": [2], "data": ROWS[name]}
            for name, kind in KINDS.items()
        ]
    }
)


def ask(connection: http.client.HTTPConnection) -> tuple[str, np.ndarray]:
    connection.request("POST", "/v2/models/base/infer", BODY)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    assert answer.status == 200, found
    assert answer.headers["model-version"] == found["model_version"]
    return found["model_version"], np.float32(found["outputs"][0]["data"])


def write_versions(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a model and deltas on it; return it, and what each version answers."""
    versions = Versions(folder)
    base = versions.write_whole("base")
    scorer = Scorer.load(base)
    expected = {scorer.version: served(scorer)}
    for n in range(NUM_DELTAS):
        versions.train()
        path = versions.write_delta(f"delta-{n}", scorer.artifact)
        scorer.apply_delta(path)
        expected[scorer.version] = served(scorer)
    assert len({values.tobytes() for values in expected.values()}) == NUM_DELTAS + 1
    return base, expected


def deliver(folder: Path, n: int) -> None:
    shutil.copytree(folder / f"delta-{n}", folder / "deliveries" / f".new-{n}")
    (folder / "deliveries" / f".new-{n}").rename(folder / "deliveries" / f"delta-{n}")


@pytest.mark.long
def test_every_answer_is_that_of_the_version_it_names_while_deltas_arrive(runner, tmp_path):
    base, expected = write_versions(tmp_path)
    deliveries, last = tmp_path / "deliveries", list(expected)[-1]
    deliveries.mkdir()
    found: list[tuple[str, np.ndarray]] = []

    def keep_asking(address: str) -> None:
        connection = http.client.HTTPConnection(address, timeout=60)
        while not found or found[-1][0] != last:
            found.append(ask(connection))

    with serving(runner, base, "--follow", str(deliveries)) as server:
        client = threading.Thread(target=keep_asking, args=(server.address,))
        client.start()
        damaged = deliveries / "delta-damaged"
        shutil.copytree(tmp_path / "delta-0", damaged)
        weights = next(p for p in damaged.iterdir() if p.suffix == ".safetensors")
        weights.write_bytes(weights.read_bytes()[:-1] + b"\x00\x01")
        while "version" not in server.process.text.partition("--follow: ")[2]:
            time.sleep(0.05)
        shutil.rmtree(damaged)
        for n in range(NUM_DELTAS):
            deliver(tmp_path, n)
        client.join(120)
        assert not client.is_alive(), server.process.text
        connection = http.client.HTTPConnection(server.address, timeout=60)
        text, end = "", time.monotonic() + 60
        # a version answers a moment before its delta is counted
        while f"runner_deltas_total {NUM_DELTAS}" not in text and time.monotonic() < end:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        assert server.stop() == 143
    assert f"runner_deltas_total {NUM_DELTAS}" in text
    assert "runner_delta_errors_total 1\n" in text
    assert f'version="{last}"}} 1' in text
    assert open_delta(tmp_path / f"delta-{NUM_DELTAS - 1}").version == last
    for version, values in found:
        assert np.array_equal(values, expected[version]), version
    order = list(dict.fromkeys(version for version, _ in found))
    assert order == [version for version in expected if version in order]
    assert order[0] == next(iter(expected)) and order[-1] == last


def test_an_error_of_any_kind_is_told_once_and_the_next_delta_is_applied(monkeypatch, caplog):
    looks = iter([RuntimeError("no memory"), RuntimeError("no memory"), Path("delta-1"), None])

    def look(scorer: object, deltas: object) -> Path | None:
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        if found is None:
            task.cancel()
        return found

    async def main() -> None:
        nonlocal task
        task = asyncio.create_task(follow.follow(scorer, Path("deliveries"), counters))
        with pytest.raises(asyncio.CancelledError):
            await task

    task: asyncio.Task[None]
    scorer, counters = SimpleNamespace(version="v0"), Counters(1).row(0, "v0")
    monkeypatch.setattr(follow, "POLL_S", 0.0)
    monkeypatch.setattr(follow, "_apply_next", look)
    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "--follow: RuntimeError: no memory; version v0 is still served",
        "delta-1 applied: version v0 is served",
    ]
    assert (counters.get("delta_errors"), counters.get("deltas")) == (1, 1)


def test_a_folder_that_is_gone_is_told(tmp_path):
    scorer = SimpleNamespace(version="v0", artifact=SimpleNamespace(step=1))
    with pytest.raises(UserError, match="in: no such folder"):
        follow._apply_next(scorer, DeltaFolder(tmp_path / "in"))
    (tmp_path / "in").mkdir()
    assert follow._apply_next(scorer, DeltaFolder(tmp_path / "in")) is None


@pytest.mark.slow
def test_a_server_killed_at_random_moments_answers_from_exactly_one_version(runner, tmp_path):
    base, expected = write_versions(tmp_path)
    deliveries, chance = tmp_path / "deliveries", random.Random(fault_seed())
    deliveries.mkdir()
    versions: list[str] = []
    for n in range(NUM_DELTAS):
        with serving(runner, base, "--follow", str(deliveries)) as server:
            deliver(tmp_path, n)
            killer = threading.Timer(chance.uniform(0, 0.5), server.process.kill)
            killer.start()
            try:
                connection = http.client.HTTPConnection(server.address, timeout=60)
                while True:
                    version, values = ask(connection)
                    assert np.array_equal(values, expected[version]), version
                    versions.append(version)
            except (OSError, http.client.HTTPException):
                killer.join()  # cut off within an answer, or before one
            assert server.wait() == -signal.SIGKILL
    with serving(runner, base, "--follow", str(deliveries)) as server:
        connection = http.client.HTTPConnection(server.address, timeout=60)
        last = list(expected)[-1]
        while (answer := ask(connection))[0] != last:  # it takes up all deltas that lie there
            versions.append(answer[0])
        assert np.array_equal(answer[1], expected[last])
        assert server.stop() == 143
    assert set(versions) <= set(expected)


def test_a_delta_that_is_missing_in_the_middle_is_told(tmp_path):
    base, _ = write_versions(tmp_path)
    scorer, deltas = Scorer.load(base), DeltaFolder(tmp_path / "deliveries")
    (tmp_path / "deliveries").mkdir()
    for n in (0, 2, 3):
        deliver(tmp_path, n)
    assert follow._apply_next(scorer, deltas) == tmp_path / "deliveries" / "delta-0"
    for _ in range(2):
        with pytest.raises(UserError, match=r"delta-2: is a delta on another version \(step 20\)"):
            follow._apply_next(scorer, deltas)
    deliver(tmp_path, 1)
    for n in (1, 2, 3):
        assert follow._apply_next(scorer, deltas) == tmp_path / "deliveries" / f"delta-{n}"
    assert follow._apply_next(scorer, deltas) is None  # those that were applied wait for nothing
