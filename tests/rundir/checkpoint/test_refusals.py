"""Checkpoints that are damaged, hostile or of another format are refused."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from runner.errors import UserError
from runner.rundir.checkpoint import (
    DamagedError,
    find_latest,
    load_tensors,
    open_checkpoint,
    read_tensors,
    saved_steps,
    tensor_shapes,
)
from runner.rundir.checkpoint import files as checkpoint_files
from runner.rundir.checkpoint.files import FileDigest
from runner.rundir.checkpoint.manifest import Manifest, encode_manifest
from runner.rundir.find_checkpoint import describe_large, find_checkpoint
from tests.rundir.checkpoint.saving import fail_on_warning, make_checkpointer, save


def test_a_damaged_one_is_passed_over_with_a_warning_and_none_good_is_an_error(
    tmp_path: Path, caplog
) -> None:
    assert make_checkpointer(tmp_path).open_latest() is None
    for step in (1, 2, 10):
        save(tmp_path, step)
    for step in (10, 2):
        with (tmp_path / f"step-{step}" / "shard-00001.safetensors").open("r+b") as file:
            file.write(b"\xff")
    assert find_latest(tmp_path, logging.warning).step == 1
    warnings = caplog.messages
    assert [w.partition(":")[0] for w in warnings] == [
        "checkpoint of step 10 is passed over",
        "checkpoint of step 2 is passed over",
    ]
    assert all("shard-00001.safetensors is damaged" in w for w in warnings)
    (tmp_path / "step-1" / "state.json").write_bytes(b"")
    with pytest.raises(UserError, match=r"none .* is whole \(steps 1, 2, 10\)"):
        find_latest(tmp_path, logging.warning)


def rewrite_manifest(path: Path, change) -> None:
    """Write a manifest that is valid but wrong, as an attacker would."""
    old = json.loads((path / "manifest.json").read_text())
    files = {n: FileDigest(f["size"], f["sha256"]) for n, f in old["files"].items()}
    step, files = change(old["step"], files)
    (path / "manifest.json").write_bytes(encode_manifest(Manifest(step, files)))


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "..", "a/b", "a\\b", "", "."])
def test_a_manifest_that_names_a_file_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, 1)
    shutil.copy(path / "state.json", tmp_path / "outside")
    rewrite_manifest(path, lambda step, files: (step, {**files, name: files["state.json"]}))
    with pytest.raises(DamagedError, match="not a file of its folder"):
        open_checkpoint(path)
    assert saved_steps(tmp_path) == []


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            lambda path: (path / "manifest.json").unlink(),
            "step-1 has no manifest.json: not a whole",
        ),
        (
            lambda path: rewrite_manifest(path, lambda step, files: (str(step), files)),
            "manifest.json is damaged: its step is not a whole number",
        ),
        (
            lambda path: shutil.copy(path / "shard-00001.safetensors", path / "x.safetensors"),
            "step-1 holds 'x.safetensors', which its manifest does not name",
        ),
        (
            lambda path: (path / "manifest.json").write_bytes(
                (path / "manifest.json").read_bytes().replace(b'"step": 1', b'"step": 2')
            ),
            "manifest.json is damaged: it does not match its own sha256",
        ),
    ],
)
def test_a_damaged_manifest_says_what_is_wrong_with_it(tmp_path: Path, damage, told) -> None:
    path = save(tmp_path, 1)
    damage(path)
    with pytest.raises(DamagedError) as refused:
        open_checkpoint(path)
    assert told in str(refused.value)


def test_a_run_without_a_whole_checkpoint_is_told_and_a_newer_one_that_is_none_passed_over(
    tmp_path: Path, caplog
) -> None:
    with pytest.raises(UserError, match="holds no whole checkpoint; give a run directory that has"):
        find_checkpoint(tmp_path)
    save(tmp_path / "checkpoints", 1)
    (save(tmp_path / "checkpoints", 2) / "state.json").write_bytes(b"")
    assert find_checkpoint(tmp_path, "last", warn=logging.warning).step == 1
    assert [m.partition(":")[0] for m in caplog.messages] == ["checkpoint of step 2 is passed over"]


def test_a_best_checkpoint_that_is_damaged_or_gone_is_named_with_those_that_are_whole(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "checkpoints"
    best = save(folder, 1)
    save(folder, 2, best={"step": 1})
    (best / "state.json").write_bytes(b"{}")
    told = r"checkpoint.step=best \(step 1\): .*step-1/state.json has 2 bytes .*; whole are 2$"
    with pytest.raises(UserError, match=told):
        find_checkpoint(tmp_path)
    shutil.rmtree(best)
    told = r"checkpoint.step=best \(step 1\): there is no .*/step-1; whole are 2$"
    with pytest.raises(UserError, match=told):
        find_checkpoint(tmp_path)
    with pytest.raises(UserError, match=r"checkpoint.step=7: there is no .*/step-7; whole are 2$"):
        find_checkpoint(tmp_path, 7)


def test_a_checkpoint_with_another_byte_is_named_with_those_that_are_whole(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step in (1, 2):
        save(folder, step, best={"step": 1})
    for step, asked in ((1, "best"), (2, "last")):
        with (folder / f"step-{step}" / "shard-00001.safetensors").open("r+b") as file:
            file.write(b"\xff")
        told = rf"checkpoint.step={asked} \(step {step}\): .*/shard-.* is damaged: .*; whole are "
        with pytest.raises(DamagedError, match=told):
            find_checkpoint(tmp_path, asked)
    shutil.rmtree(folder / "step-1")
    with pytest.raises(DamagedError, match=r"step-2/shard-\S+ is damaged: .* it was saved with$"):
        find_checkpoint(tmp_path, "last")


def test_a_checkpoint_under_another_steps_name_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1).rename(tmp_path / "step-2")
    with pytest.raises(DamagedError, match="holds step 1"):
        open_checkpoint(tmp_path / "step-2")
    (tmp_path / "step-2").rename(tmp_path / "kept-for-later")
    assert open_checkpoint(tmp_path / "kept-for-later").step == 1


def test_a_pipe_in_the_place_of_a_file_is_refused_without_waiting(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    (path / "state.json").unlink()
    os.mkfifo(path / "state.json")
    rewrite_manifest(
        path, lambda step, files: (step, {**files, "state.json": FileDigest(0, "0" * 64)})
    )
    with pytest.raises(DamagedError, match=r"state\.json cannot be read: not a regular file"):
        open_checkpoint(path)


def test_another_format_is_refused_and_no_older_one_taken_instead(
    tmp_path: Path, monkeypatch
) -> None:
    save(tmp_path, 1)
    monkeypatch.setattr("runner.rundir.checkpoint.manifest.FORMAT", 2)
    save(tmp_path, 2)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"format 2; this version reads 1"):
        find_latest(tmp_path, fail_on_warning)


def test_a_path_that_is_no_checkpoint_names_the_nearest(tmp_path: Path) -> None:
    save(tmp_path, 1000)
    with pytest.raises(UserError, match="nearest: 'step-1000'"):
        open_checkpoint(tmp_path / "step-100")


class _Bomb:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return (os.mkdir, (str(self.canary),))


@pytest.mark.parity("N10")
def test_nothing_in_a_checkpoint_is_ever_unpickled(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    bomb = pickle.dumps(_Bomb(canary))
    folder = tmp_path / "checkpoints"
    path = save(folder, 1)
    assert {p.name for p in path.iterdir()} == {
        "manifest.json",
        "shard-00001.safetensors",
        "state.json",
    }
    for name in (".metadata", "__0.metadata", "__0_0.distcp", "data.pkl", "model.pt", "state.pkl"):
        (path / name).write_bytes(bomb)
        (folder / name).write_bytes(bomb)
    saved = make_checkpointer(folder).open_latest()
    load_tensors(saved, {"w": torch.zeros(4, 3)})
    assert read_tensors(saved, ["w"]).keys() == tensor_shapes(saved).keys() == {"w"}
    for name in ("shard-00001.safetensors", "state.json"):  # in the place of what is read
        (path / name).write_bytes(bomb)
        sums = checkpoint_files.digest_file(path / name)
        rewrite_manifest(path, lambda step, files, n=name, s=sums: (step, {**files, n: s}))
    with pytest.raises(DamagedError):
        open_checkpoint(path)
    with pytest.raises(DamagedError):
        load_tensors(saved, {"w": torch.zeros(4, 3)})
    assert not canary.exists()
    pickle.loads(bomb)
    assert canary.exists()  # the bomb would have gone off


def test_the_newest_checkpoint_is_checked_once_if_it_is_the_best(
    tmp_path: Path, monkeypatch
) -> None:
    checked = []
    monkeypatch.setattr(
        "runner.rundir.find_checkpoint.open_checkpoint",
        lambda path: checked.append(path.name) or open_checkpoint(path),
    )
    folder = tmp_path / "checkpoints"
    for step in (1, 2):
        save(folder, step, best={"step": step})
    assert find_checkpoint(tmp_path).step == 2
    assert checked == ["step-2"]
    save(folder, 3, best={"step": 2})
    assert find_checkpoint(tmp_path).step == 2
    assert checked[1:] == ["step-3", "step-2"]


def test_the_wait_for_a_large_checkpoint_is_explained(tmp_path: Path, monkeypatch) -> None:
    assert describe_large(tmp_path) is None
    path = save(tmp_path / "checkpoints", 1)
    assert describe_large(tmp_path) is None
    monkeypatch.setattr("runner.rundir.find_checkpoint.LARGE_BYTES", 10)
    for given in (tmp_path, path):
        assert f"reading the checkpoint of {given}: 0.0 GB" in str(describe_large(given))
