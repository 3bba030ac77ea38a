"""Deltas: a scorer goes on to a later version between two answers, and refuses any other base."""

from __future__ import annotations

import gc
import json
import shutil
import threading
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from runner.data.prepare.recipe import hash_json
from runner.errors import UserError
from runner.serving.apply import in_order
from runner.serving.artifact import delta
from runner.serving.artifact.delta import DeltaFolder, next_delta, open_delta
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


@pytest.mark.long
def test_the_weights_of_a_version_are_freed_with_its_last_answer(delivered):
    def num_weights() -> int:
        return sum(issubclass(type(found), torch.nn.Parameter) for found in gc.get_objects())

    scorer = Scorer.load(delivered.base)
    gc.collect()
    gc.disable()  # it never looks at what a server has loaded at its start
    try:
        before = num_weights()
        for number in range(3):
            scorer.apply_delta(delivered.folder / f"delta-{number:03d}")
        assert num_weights() == before
    finally:
        gc.enable()


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


def test_deltas_are_applied_in_the_order_of_their_versions_whatever_their_names(delivered):
    """Steps begin anew with each run, so that names do not ascend."""
    found = [open_delta(path) for path in sorted(delivered.folder.glob("delta-*"))[:4]]
    first = next(iter(delivered.answers))
    assert list(in_order([found[n] for n in (2, 3, 0, 1)], first)) == found
    gap = list(in_order([found[n] for n in (3, 2, 0)], first))  # 1 is missing: 3 is refused
    assert gap == [found[0], found[3], found[2]]


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


def write_chain(folder: Path, names: dict[str, str]) -> None:
    """Write the manifests of deltas: name -> the version that it is on."""
    for name, base in names.items():
        said = {"format_version": 1, "kind": "delta", "files": {}, "base": {"version": base}}
        (folder / name).mkdir(parents=True, exist_ok=True)
        text = json.dumps({"version": hash_json(said), **said})
        (folder / name / "manifest.json").write_text(text)


def test_each_manifest_of_a_folder_is_read_once_and_again_if_it_changed(tmp_path, monkeypatch):
    read = []
    real = delta._read_manifest
    monkeypatch.setattr(delta, "_read_manifest", lambda path: read.append(path.name) or real(path))
    chain = {f"delta-{n:03d}": f"v{n}" for n in range(50)}
    write_chain(tmp_path, chain)
    deltas = DeltaFolder(tmp_path)
    assert [deltas.take(base).name for base in chain.values()] == list(chain)
    assert deltas.take("v50") is None and DeltaFolder(tmp_path).take("v7").name == "delta-007"
    assert read == list(chain)
    write_chain(tmp_path, {"delta-003": "v50-b", "delta-008-b": "v8"})
    assert deltas.take("v50-b").name == "delta-003"
    assert deltas.take("v8").name == "delta-008-b"  # of two on a version the last
    assert read == [*chain, "delta-003", "delta-008-b"]


def test_a_damaged_manifest_is_told_where_no_other_delta_is_looked_for(tmp_path):
    write_chain(tmp_path, {"delta-1": "v1", "delta-2": "v2", "delta-3": "v3"})
    (tmp_path / "delta-2" / "manifest.json").write_text("{}")
    deltas = DeltaFolder(tmp_path)
    assert deltas.take("v1").name == "delta-1"
    for _ in range(2):
        with pytest.raises(UserError, match="delta-2"):
            deltas.take("v2")
    assert deltas.take("v3").name == "delta-3"


def test_no_delta_waits_behind_versions_that_a_scorer_has_passed_and_steps_may_begin_anew(tmp_path):
    """A run a day delivers into one folder, and each begins at step 0."""

    def write(name: str, base: str, step: int) -> str:
        said = {"format_version": 1, "kind": "delta", "files": {}}
        said["base"] = {"version": base, "step": step}
        (tmp_path / name).mkdir()
        version = hash_json(said)
        (tmp_path / name / "manifest.json").write_text(json.dumps({"version": version, **said}))
        return version

    day_1 = write("delta-45", "full", 44)
    day_2a = write("delta-10", day_1, 45)
    day_2b = write("delta-14", day_2a, 10)
    deltas = DeltaFolder(tmp_path)
    assert [deltas.take(v).name for v in ("full", day_1, day_2a)] == [
        "delta-45",
        "delta-10",
        "delta-14",
    ]
    assert deltas.take(day_2b) is None
    assert deltas.find_waiting(day_2b, 14) is None
    write("delta-30", "lost", 20)
    assert deltas.take(day_2b) is None
    assert deltas.find_waiting(day_2b, 14) == (tmp_path / "delta-30", 20)
