"""What a save leaves in the folder, and how it runs during training."""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch

from runner.errors import UserError
from runner.rundir.checkpoint import (
    Checkpointer,
    CheckpointError,
    find_latest,
    load_tensors,
    open_checkpoint,
    saved_steps,
    tensor_shapes,
)
from runner.rundir.checkpoint import checkpointer as checkpointer_module
from runner.rundir.checkpoint import files as checkpoint_files
from runner.rundir.checkpoint.files import FileDigest
from tests.rundir.checkpoint.saving import fail_on_warning, make_checkpointer, save


def test_values_come_back_equal_and_are_standard_json(tmp_path: Path) -> None:
    values = {
        "best": {"step": 3, "value": math.nan},
        "list": [math.inf, -math.inf, -0.0, 0.1 + 0.2, 5e-324],
        "text": "NaN \ud800 \u2028 $float",
        "big": 2**128 + 1,
        "none": None,
        "flags": [True, False, 0, 1],
        "empty": {"": {}, "[]": []},
    }
    path = save(tmp_path, 1, **values)
    saved = open_checkpoint(path)
    assert repr(saved.values) == repr(values)  # repr: NaN, signs, types and the order

    def not_standard(word: str) -> None:
        raise AssertionError(word)

    json.loads((path / "state.json").read_text(), parse_constant=not_standard)


@pytest.mark.parametrize(
    "value", [{1: 2}, {"$float": 1}, torch.tensor(1), {1, 2}, b"x", Path("x")], ids=repr
)
def test_values_that_json_would_lose_are_refused_with_their_place(tmp_path: Path, value) -> None:
    with pytest.raises(TypeError, match=r"values\['a'\]\[1\]"):
        make_checkpointer(tmp_path).save(1, {}, {"a": [0, value]})


def test_a_further_save_waits_for_the_former(tmp_path: Path, monkeypatch) -> None:
    gate, written = threading.Event(), []

    def slow(path: Path, contents) -> FileDigest:
        assert gate.wait(30)
        written.append(path.parent.name.split("-")[2])
        return checkpoint_files.write_file(path, contents)

    monkeypatch.setattr(checkpointer_module, "write_file", slow)
    checkpointer = make_checkpointer(tmp_path)
    checkpointer.save(1, {"w": torch.ones(3)}, {})
    assert not written  # save returned, and its values are not even written
    threading.Timer(0.2, gate.set).start()
    checkpointer.save(2, {"w": torch.ones(3)}, {})
    assert written[:2] == ["1", "1"]
    assert saved_steps(tmp_path)[0] == 1
    checkpointer.finish()
    assert saved_steps(tmp_path) == [1, 2]


@pytest.mark.parity("T6")
def test_everything_is_synced_before_the_rename_and_the_manifest_is_last(
    tmp_path: Path, monkeypatch
) -> None:
    calls: list[tuple[str, str]] = []
    names: dict[int, str] = {}
    real_open, real_fsync, real_rename = os.open, os.fsync, os.rename

    def spy_open(path, flags, *more, **options):
        descriptor = real_open(path, flags, *more, **options)
        names[descriptor] = Path(path).name
        if flags & os.O_CREAT:
            calls.append(("create", names[descriptor]))
        return descriptor

    monkeypatch.setattr(os, "open", spy_open)
    monkeypatch.setattr(os, "fsync", lambda d: (calls.append(("fsync", names[d])), real_fsync(d)))
    monkeypatch.setattr(
        os, "rename", lambda a, b: (calls.append(("rename", Path(b).name)), real_rename(a, b))
    )
    folder = tmp_path / "checkpoints"
    save(folder, 1)
    temporary = calls[-3][1]
    assert temporary.startswith(".tmp-step-1-")
    expected = []
    for name in ("shard-00001.safetensors", "state.json", "manifest.json"):
        expected += [("create", name), ("fsync", name)]
    expected += [("fsync", temporary), ("rename", "step-1"), ("fsync", "checkpoints")]
    assert calls == expected


@pytest.mark.parity("E18")
def test_old_ones_go_but_the_newest_and_the_protected(tmp_path: Path) -> None:
    checkpointer = make_checkpointer(tmp_path, keep=2)
    for step in range(1, 8):
        checkpointer.save(step, {"w": torch.ones(2)}, {}, protect=(3,) if step >= 3 else ())
    checkpointer.finish()
    assert checkpointer.saved_steps() == [3, 6, 7]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-3", "step-6", "step-7"]


def test_a_step_saved_again_replaces_the_former(tmp_path: Path) -> None:
    save(tmp_path, 5, {"w": torch.zeros(2), "gone": torch.zeros(1)}, turn=1)
    save(tmp_path, 5, {"w": torch.ones(2)}, turn=2)
    saved = make_checkpointer(tmp_path).open_latest()
    assert saved is not None
    assert saved.values == {"turn": 2}
    assert tensor_shapes(saved) == {"w": (2,)}
    assert [p.name for p in tmp_path.iterdir()] == ["step-5"]


def test_a_replacement_cut_short_is_read_and_put_right(tmp_path: Path) -> None:
    path = save(tmp_path, 5, turn=1)
    path.rename(tmp_path / ".old-step-5")
    assert saved_steps(tmp_path) == [5]
    assert open_checkpoint(path).values == {"turn": 1}
    assert find_latest(tmp_path, fail_on_warning).values == {"turn": 1}
    assert make_checkpointer(tmp_path).open_latest().path == path
    assert [p.name for p in tmp_path.iterdir()] == ["step-5"]


def test_a_start_removes_what_dead_saves_left_and_follows_no_link(tmp_path: Path) -> None:
    folder, outside = tmp_path / "checkpoints", tmp_path / "outside"
    save(folder, 1)
    outside.mkdir()
    (outside / "file").write_text("mine")
    (folder / ".tmp-step-2-dead").mkdir()
    (folder / ".tmp-step-2-dead" / "shard-00001.safetensors").write_bytes(b"half")
    (folder / ".tmp-link").symlink_to(outside)
    (folder / ".tmp-file").write_text("")
    make_checkpointer(folder)
    assert [p.name for p in folder.iterdir()] == ["step-1"]
    assert (outside / "file").read_text() == "mine"


def test_reading_changes_nothing_in_the_folder(tmp_path: Path) -> None:
    folder = save(tmp_path, 1).parent
    (folder / ".tmp-step-2-alive").mkdir()
    before = sorted((p, p.stat().st_mtime_ns) for p in [folder, *folder.rglob("*")])
    saved = find_latest(folder, fail_on_warning)
    load_tensors(saved, {"w": torch.zeros(4, 3)})
    assert sorted((p, p.stat().st_mtime_ns) for p in [folder, *folder.rglob("*")]) == before


def test_going_on_from_an_earlier_step_removes_the_later_ones(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    (tmp_path / "step-3" / "manifest.json").unlink()
    checkpointer = make_checkpointer(tmp_path)
    checkpointer.remove_after(1)
    assert checkpointer.open_latest().step == 1
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"]


def test_a_failed_save_is_reported_once_by_the_next_call(tmp_path: Path) -> None:
    notes: list[str] = []
    checkpointer = Checkpointer(tmp_path / "c", keep=2, warn=notes.append)
    checkpointer.save(1, {"w": torch.ones(2)}, {}, wait=True)
    shutil.move(tmp_path / "c", tmp_path / "away")
    checkpointer.save(2, {"w": torch.ones(2)}, {})
    with pytest.raises(CheckpointError, match=r"step 2 was not saved.*ENOENT"):
        checkpointer.save(3, {"w": torch.ones(2)}, {})
    shutil.move(tmp_path / "away", tmp_path / "c")
    checkpointer.save(3, {"w": torch.ones(2)}, {}, wait=True)
    assert checkpointer.saved_steps() == [1, 3]
    assert len(notes) == 1  # the folder was gone, so nothing could be cleared up


@pytest.mark.parametrize("error", [OSError("it is busy"), MemoryError()], ids=repr)
def test_what_fails_after_a_save_is_told_and_does_not_end_the_thread(
    tmp_path: Path, monkeypatch, error
) -> None:
    def fail(*_, **__) -> None:
        raise error

    monkeypatch.setattr(checkpointer_module, "remove_old", fail)
    notes: list[str] = []
    checkpointer = Checkpointer(tmp_path, keep=1, warn=notes.append)
    checkpointer.save(1, {"w": torch.ones(2)}, {}, wait=True)
    told = f"{type(error).__name__}: {error}"
    assert notes == [f"an old checkpoint was not removed: {told}"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UserError("the disk is full"), "the disk is full"),
        (RuntimeError("shapes differ"), "RuntimeError: shapes differ"),
        (KeyError("dense/x"), "KeyError: 'dense/x'"),
    ],
)
def test_a_delivery_that_fails_is_a_warning_and_old_checkpoints_go(tmp_path, error, told) -> None:
    def deliver(checkpoint: Path) -> None:
        raise error

    notes: list[str] = []
    checkpointer = Checkpointer(tmp_path, keep=1, warn=notes.append)
    for step in (1, 2):
        checkpointer.save(step, {}, {}, on_saved=deliver, wait=True)
    assert notes == [f"step {step} was not delivered: {told}" for step in (1, 2)]
    assert checkpointer.saved_steps() == [2]
