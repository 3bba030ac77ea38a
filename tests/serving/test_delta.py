"""Deltas: a scorer goes on to a later version between two answers, and refuses any other base."""

from __future__ import annotations

import json
import shutil
import threading
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from runner.errors import UserError
from runner.serving.delta import next_delta, open_delta
from runner.serving.scorer import Scorer
from tests.serving.versions import ROWS, Versions, served

FORMATS = ("pt2", *(["onnx"] if find_spec("onnxscript") and find_spec("onnxruntime") else []))


@dataclass
class Delivered:
    """A whole artifact, ten deltas on it, and what a whole export of each version answers."""

    base: Path
    folder: Path
    answers: dict[str, np.ndarray]  # by version, in order


@pytest.fixture(scope="module")
def delivered(tmp_path_factory) -> Delivered:
    folder = tmp_path_factory.mktemp("versions")
    (folder / "deliveries").mkdir()
    versions = Versions(folder, formats=FORMATS)
    base = versions.write_whole("base")
    scorer = Scorer.load(base)
    answers = {scorer.version: served(scorer)}
    versions.formats = ("pt2",)  # ONNX takes seconds to write
    for number in range(10):
        versions.train()
        path = versions.write_delta(f"deliveries/delta-{number:03d}", scorer.artifact)
        scorer.apply_delta(path)
        answers[scorer.version] = served(Scorer.load(versions.write_whole(f"whole-{number}")))
    return Delivered(base, folder / "deliveries", answers)


@pytest.mark.long
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parity("E20")
def test_every_answer_is_that_of_one_version_while_deltas_arrive(delivered, format_):
    expected = delivered.answers
    assert len({x.tobytes() for x in expected.values()}) == 11
    scorer = Scorer.load(delivered.base, format=format_)
    answers: list[tuple[str, np.ndarray]] = []
    seen: list[set[str]] = [set(), set(), set()]  # versions that each thread has had answers of
    done = threading.Event()

    def ask(own: set[str]) -> None:
        while not done.is_set():
            one = scorer.snapshot()
            answers.append((one.version, one.score(ROWS)["click"]))
            whole = scorer.score(ROWS)["click"]  # of whatever version, but of one
            answers.append(("any", whole))
            own.add(one.version)

    threads = [threading.Thread(target=ask, args=(own,)) for own in seen]
    for thread in threads:
        thread.start()
    while True:
        while any(scorer.version not in own for own in seen) and all(t.is_alive() for t in threads):
            time.sleep(0.001)
        if (path := next_delta(scorer, delivered.folder)) is None:
            break
        scorer.apply_delta(path)
    done.set()
    for thread in threads:
        thread.join()
    assert scorer.version == list(expected)[-1]
    assert seen == [set(expected)] * 3
    tolerance = 0 if format_ == "pt2" else 1e-5
    for version, answer in answers:
        allowed = [expected[version]] if version != "any" else list(expected.values())
        assert any(np.allclose(answer, x, rtol=tolerance, atol=0) for x in allowed)


def test_a_delta_on_another_version_is_refused_with_both_named(delivered, tmp_path):
    expected = delivered.answers
    for number in range(2):
        name = f"delta-{number:03d}"
        shutil.copytree(delivered.folder / name, tmp_path / "deliveries" / name)
    scorer = Scorer.load(delivered.base)
    first, second, third, *_ = expected
    with pytest.raises(ValueError, match=f"on version {second}.*and not on version {first}"):
        scorer.apply_delta(tmp_path / "deliveries" / "delta-001")
    assert scorer.version == first
    assert served(scorer).tobytes() == expected[first].tobytes()
    scorer.apply_delta(tmp_path / "deliveries" / "delta-000")
    assert next_delta(scorer, tmp_path / "deliveries") == tmp_path / "deliveries" / "delta-001"
    with pytest.raises(ValueError, match=f"on version {first}.*and not on version {second}"):
        scorer.apply_delta(tmp_path / "deliveries" / "delta-000")
    scorer.apply_delta(tmp_path / "deliveries" / "delta-001")
    assert (scorer.version, next_delta(scorer, tmp_path / "deliveries")) == (third, None)
    assert next_delta(scorer, tmp_path / "nothing") is None


def test_a_damaged_delta_changes_nothing(delivered, tmp_path):
    scorer = Scorer.load(delivered.base)
    path = tmp_path / "delta-000"
    shutil.copytree(delivered.folder / "delta-000", path)
    manifest = json.loads((path / "manifest.json").read_text())
    for change, message in (
        ({"base": {"version": "other", "step": 0}}, "damaged: its version is not the hash"),
        ({"format_version": 9}, "format version 9"),
        ({"kind": None}, "is a whole artifact"),
    ):
        (path / "manifest.json").write_text(json.dumps({**manifest, **change}))
        with pytest.raises(UserError, match=message):
            scorer.apply_delta(path)
    (path / "manifest.json").write_text(json.dumps(manifest))
    data = bytearray((path / "delta.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "delta.safetensors").write_bytes(data)
    with pytest.raises(UserError, match=r"delta\.safetensors: damaged"):
        open_delta(path)
    with pytest.raises(UserError, match=r"delta\.safetensors: damaged"):
        scorer.apply_delta(path)
    assert served(scorer).tobytes() == delivered.answers[scorer.version].tobytes()
    shutil.rmtree(path)
    with pytest.raises(UserError, match="no delta"):
        scorer.apply_delta(path)
