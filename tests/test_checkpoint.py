"""What a checkpoint gives back, when it is refused, and what a save leaves in the folder."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import Tensor

from runner.checkpoint import (
    Checkpointer,
    CheckpointError,
    DamagedError,
    find_latest,
    load_tensors,
    open_checkpoint,
    read_tensors,
    saved_steps,
    tensor_shapes,
)
from runner.checkpoint import files as checkpoint_files
from runner.checkpoint import saver as checkpoint_saver
from runner.checkpoint.files import FileSum
from runner.checkpoint.manifest import Manifest, encode_manifest
from runner.errors import UserError

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def make(folder: Path, keep: int = 2) -> Checkpointer:
    return Checkpointer(folder, keep=keep, warn=refuse)


def refuse(message: str) -> None:
    raise AssertionError(f"unexpected warning: {message}")


def save(folder: Path, step: int, tensors: dict[str, Tensor] | None = None, **values) -> Path:
    tensors = {"w": torch.full((4, 3), float(step))} if tensors is None else tensors
    make(folder, keep=99).save(step, tensors, values, wait=True)
    return folder / f"step-{step}"


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def every_kind_of_tensor() -> dict[str, Tensor]:
    """Random bits, so signalling NaNs and subnormals too, in all dtypes and awkward shapes."""
    torch.manual_seed(0)
    state = {}
    for dtype in DTYPES:
        top = 2 if dtype == torch.bool else 256
        raw = torch.randint(0, top, (3 * 5 * dtype.itemsize,), dtype=torch.uint8)
        state[f"dense/layers.0.{dtype}"] = raw.view(dtype).view(3, 5)
        state[f"dense/layers.0.{dtype}/scalar"] = raw.view(dtype)[0].clone()
        state[f"empty/{dtype}"] = torch.empty(0, 4, dtype=dtype)
    state["tables/C 1/weight"] = torch.randn(7, 6).t()  # not contiguous
    state["tables/größe.ü/momentum1"] = torch.randn(10)[::3]
    state["dense/parameter"] = torch.nn.Parameter(torch.randn(2, 2))
    return state


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    state = every_kind_of_tensor()
    saved = open_checkpoint(save(tmp_path, 7, state))
    into = {name: torch.ones_like(t).clone() for name, t in state.items()}
    load_tensors(saved, into)
    read = read_tensors(saved, state)
    assert tensor_shapes(saved) == {name: tuple(t.shape) for name, t in state.items()}
    for name, tensor in state.items():
        for found in (into[name], read[name]):
            assert found.dtype == tensor.dtype
            assert found.shape == tensor.shape
            assert bits(found) == bits(tensor), name


def test_tensors_are_loaded_in_place(tmp_path: Path) -> None:
    saved = open_checkpoint(save(tmp_path, 1, {"w": torch.arange(12.0).view(3, 4)}))
    whole = torch.zeros(4, 6)
    load_tensors(saved, {"w": whole[:3, 1:5]})
    assert torch.equal(whole[:3, 1:5], torch.arange(12.0).view(3, 4))
    assert whole.sum() == torch.arange(12.0).sum()


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
    assert repr(saved.values) == repr(dict(sorted(values.items())))  # repr: NaN, signs and types

    def not_standard(word: str) -> None:
        raise AssertionError(word)

    json.loads((path / "state.json").read_text(), parse_constant=not_standard)


@pytest.mark.parametrize(
    "value", [{1: 2}, {"$float": 1}, torch.tensor(1), {1, 2}, b"x", Path("x")], ids=repr
)
def test_values_that_json_would_lose_are_refused_with_their_place(tmp_path: Path, value) -> None:
    with pytest.raises(TypeError, match=r"values\['a'\]\[1\]"):
        make(tmp_path).save(1, {}, {"a": [0, value]})


def test_what_is_no_storable_tensor_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for wrong in (torch.eye(2).to_sparse(), torch.zeros(1, dtype=torch.complex64), 3.0):
        with pytest.raises(TypeError, match="'w'"):
            make(tmp_path).save(1, {"w": wrong}, {})  # type: ignore[dict-item]
    assert list(tmp_path.iterdir()) == []


def test_the_files_are_those_of_torchs_own_safetensors_storage(tmp_path: Path) -> None:
    state = {"a/b.c": torch.randn(3, 4), "n": torch.arange(5), "s": torch.tensor(2.0)}
    ours = save(tmp_path, 1, state) / "shard-00001.safetensors"
    storage = dcp.HuggingFaceStorageWriter(str(tmp_path / "torch"), save_distributed=True)
    dcp.save(dict(state), storage_writer=storage, no_dist=True)
    (theirs,) = (tmp_path / "torch").iterdir()

    def head(path: Path) -> dict:
        raw = path.read_bytes()
        head = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        sharding = head["__metadata__"]["DCP_SHARDING_INFO"]
        head["__metadata__"]["DCP_SHARDING_INFO"] = json.loads(sharding)
        return head

    assert head(ours) == head(theirs)
    assert {k: bits(v) for k, v in load_file(ours).items()} == {
        k: bits(v) for k, v in state.items()
    }


def test_training_may_change_the_state_once_save_has_returned(tmp_path: Path) -> None:
    checkpointer = make(tmp_path)
    weight, values = torch.zeros(1 << 20), {"seen": [1]}
    for step in (1, 2, 3):
        weight.fill_(step)
        checkpointer.save(step, {"w": weight}, values)
        weight.fill_(-1)
        values["seen"].append(step)
    checkpointer.finish()
    saved = open_checkpoint(tmp_path / "step-3")
    assert read_tensors(saved, ["w"])["w"].unique().tolist() == [3.0]
    assert saved.values == {"seen": [1, 1, 2]}


def test_the_second_save_copies_into_the_memory_of_the_first(tmp_path: Path) -> None:
    checkpointer, state = make(tmp_path), {"w": torch.randn(1000), "b": torch.randn(())}
    checkpointer.prepare(state)
    checkpointer.finish()
    places = [checkpointer._buffer.bytes.data_ptr()]
    for step in (1, 2):
        checkpointer.save(step, state, {})
        places.append(checkpointer._buffer.bytes.data_ptr())
    checkpointer.finish()
    assert len(set(places)) == 1


def test_a_further_save_waits_for_the_former(tmp_path: Path, monkeypatch) -> None:
    gate, written = threading.Event(), []

    def slow(path: Path, contents) -> FileSum:
        assert gate.wait(30)
        written.append(path.parent.name.split("-")[2])
        return checkpoint_files.write_file(path, contents)

    monkeypatch.setattr(checkpoint_saver, "write_file", slow)
    checkpointer = make(tmp_path)
    checkpointer.save(1, {"w": torch.ones(3)}, {})
    assert not written  # save returned, and its values are not even written
    threading.Timer(0.2, gate.set).start()
    checkpointer.save(2, {"w": torch.ones(3)}, {})
    assert written[:2] == ["1", "1"]
    assert saved_steps(tmp_path)[0] == 1
    checkpointer.finish()
    assert saved_steps(tmp_path) == [1, 2]


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


def test_old_ones_go_but_the_newest_and_the_protected(tmp_path: Path) -> None:
    checkpointer = make(tmp_path, keep=2)
    for step in range(1, 8):
        checkpointer.save(step, {"w": torch.ones(2)}, {}, protect=(3,) if step >= 3 else ())
    checkpointer.finish()
    assert checkpointer.saved() == [3, 6, 7]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-3", "step-6", "step-7"]


def test_a_step_saved_again_replaces_the_former(tmp_path: Path) -> None:
    save(tmp_path, 5, {"w": torch.zeros(2), "gone": torch.zeros(1)}, turn=1)
    save(tmp_path, 5, {"w": torch.ones(2)}, turn=2)
    saved = make(tmp_path).latest()
    assert saved is not None
    assert saved.values == {"turn": 2}
    assert tensor_shapes(saved) == {"w": (2,)}
    assert [p.name for p in tmp_path.iterdir()] == ["step-5"]


def test_a_replacement_cut_short_is_read_and_put_right(tmp_path: Path) -> None:
    path = save(tmp_path, 5, turn=1)
    path.rename(tmp_path / ".old-step-5")
    assert saved_steps(tmp_path) == [5]
    assert open_checkpoint(path).values == {"turn": 1}
    assert find_latest(tmp_path, refuse).values == {"turn": 1}
    assert make(tmp_path).latest().path == path
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
    make(folder)
    assert [p.name for p in folder.iterdir()] == ["step-1"]
    assert (outside / "file").read_text() == "mine"


def test_reading_changes_nothing_in_the_folder(tmp_path: Path) -> None:
    folder = save(tmp_path, 1).parent
    (folder / ".tmp-step-2-alive").mkdir()
    before = sorted((p, p.stat().st_mtime_ns) for p in [folder, *folder.rglob("*")])
    saved = find_latest(folder, refuse)
    load_tensors(saved, {"w": torch.zeros(4, 3)})
    assert sorted((p, p.stat().st_mtime_ns) for p in [folder, *folder.rglob("*")]) == before


def test_going_on_from_an_earlier_step_removes_the_later_ones(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    (tmp_path / "step-3" / "manifest.json").unlink()
    checkpointer = make(tmp_path)
    checkpointer.discard_after(1)
    assert checkpointer.latest().step == 1
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"]


def test_a_failed_save_is_told_once_by_the_next_call(tmp_path: Path) -> None:
    checkpointer = make(tmp_path / "c")
    checkpointer.save(1, {"w": torch.ones(2)}, {}, wait=True)
    shutil.move(tmp_path / "c", tmp_path / "away")
    checkpointer.warn = checkpointer._warn = lambda note: None
    checkpointer.save(2, {"w": torch.ones(2)}, {})
    with pytest.raises(CheckpointError, match=r"step 2 was not saved.*ENOENT"):
        checkpointer.save(3, {"w": torch.ones(2)}, {})
    shutil.move(tmp_path / "away", tmp_path / "c")
    checkpointer.save(3, {"w": torch.ones(2)}, {}, wait=True)
    assert checkpointer.saved() == [1, 3]


def test_a_damaged_one_is_passed_over_with_a_warning_and_none_good_is_an_error(
    tmp_path: Path,
) -> None:
    assert make(tmp_path).latest() is None
    for step in (1, 2, 10):
        save(tmp_path, step)
    warnings: list[str] = []
    for step in (10, 2):
        with (tmp_path / f"step-{step}" / "shard-00001.safetensors").open("r+b") as file:
            file.write(b"\xff")
    assert find_latest(tmp_path, warnings.append).step == 1
    assert [w.partition(":")[0] for w in warnings] == [
        "checkpoint of step 10 is passed over",
        "checkpoint of step 2 is passed over",
    ]
    assert all("shard-00001.safetensors is damaged" in w for w in warnings)
    (tmp_path / "step-1" / "state.json").write_bytes(b"")
    with pytest.raises(UserError, match=r"none .* is whole \(steps 1, 2, 10\)"):
        find_latest(tmp_path, warnings.append)


def rewrite_manifest(path: Path, change) -> None:
    """A manifest that is right by its own sums, as only a hostile hand makes it."""
    old = json.loads((path / "manifest.json").read_text())
    files = {n: FileSum(f["size"], f["sha256"]) for n, f in old["files"].items()}
    step, files = change(old["step"], files)
    (path / "manifest.json").write_bytes(encode_manifest(Manifest(step, files)))


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "..", "a/b", "a\\b", "", "."])
def test_a_manifest_that_names_a_file_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, 1)
    shutil.copy(path / "state.json", tmp_path / "outside")
    rewrite_manifest(path, lambda step, files: (step, {**files, name: files["state.json"]}))
    with pytest.raises(DamagedError, match="no file of its folder"):
        open_checkpoint(path)
    assert saved_steps(tmp_path) == []


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
        path, lambda step, files: (step, {**files, "state.json": FileSum(0, "0" * 64)})
    )
    with pytest.raises(DamagedError, match=r"state\.json cannot be read: not a regular file"):
        open_checkpoint(path)


def test_another_format_is_refused_and_no_older_one_taken_instead(
    tmp_path: Path, monkeypatch
) -> None:
    save(tmp_path, 1)
    monkeypatch.setattr("runner.checkpoint.manifest.FORMAT", 2)
    save(tmp_path, 2)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"format 2; this version reads 1"):
        find_latest(tmp_path, refuse)


def test_a_path_that_is_no_checkpoint_names_the_nearest(tmp_path: Path) -> None:
    save(tmp_path, 1000)
    with pytest.raises(UserError, match="nearest: 'step-1000'"):
        open_checkpoint(tmp_path / "step-100")


def test_states_that_do_not_fit_are_refused_before_any_is_changed(tmp_path: Path) -> None:
    state = {"dense/mlp.weight": torch.ones(2, 3), "tables/item/weight": torch.ones(4, 2)}
    saved = open_checkpoint(save(tmp_path, 1, state))
    wrong = {
        r"lacks 1 tensors.*'dense/mlp.weigth'; nearest: 'dense/mlp.weight'": {
            "dense/mlp.weigth": torch.zeros(2, 3),
        },
        r"does not, the first is 'dense/mlp.weight'": {},
        r"'dense/mlp.weight' is \(2, 3\).*\(3, 2\)": {"dense/mlp.weight": torch.zeros(3, 2)},
        r"'dense/mlp.weight' is torch.float32.*torch.float64": {
            "dense/mlp.weight": torch.zeros(2, 3).double(),
        },
    }
    for message, part in wrong.items():
        into = {"tables/item/weight": torch.zeros(4, 2), **part}
        with pytest.raises(UserError, match=message):
            load_tensors(saved, into)
        assert all(not t.any() for t in into.values())
    part = {"tables/item/weight": torch.zeros(4, 2)}
    load_tensors(saved, part, partial=True)
    assert part["tables/item/weight"].all()
    with pytest.raises(UserError, match="nearest: 'tables/item/weight'"):
        read_tensors(saved, ["tables/item/wait"])


class _Bomb:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return (os.mkdir, (str(self.canary),))


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
    saved = make(folder).latest()
    load_tensors(saved, {"w": torch.zeros(4, 3)})
    assert read_tensors(saved, ["w"]).keys() == tensor_shapes(saved).keys() == {"w"}
    for name in ("shard-00001.safetensors", "state.json"):  # in the place of what is read
        (path / name).write_bytes(bomb)
        sums = checkpoint_files.sum_file(path / name)
        rewrite_manifest(path, lambda step, files, n=name, s=sums: (step, {**files, n: s}))
    with pytest.raises(DamagedError):
        open_checkpoint(path)
    with pytest.raises(DamagedError):
        load_tensors(saved, {"w": torch.zeros(4, 3)})
    assert not canary.exists()
    pickle.loads(bomb)
    assert canary.exists()  # the bomb would have gone off
