"""Files of a run directory that are no files, lead elsewhere or are made to exhaust the reader."""

from __future__ import annotations

import logging
import os
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.errors import UserError
from runner.reporting.report.records import checkpoint_steps
from runner.rundir.checkpoint.folder import peek_checkpoint
from runner.rundir.checkpoint.manifest import DamagedError, read_manifest
from runner.rundir.json_files import JsonlFile, read_json, read_jsonl, write_text
from runner.rundir.location import check_not_foreign, lock_folder
from runner.rundir.lock import FolderLock, is_locked
from runner.rundir.readers import last_row
from runner.rundir.regular_files import RUN_FILES, RUN_FOLDERS, read_bytes, replacing
from runner.rundir.run_files import read_config
from runner.worker import redirect_to_rank_log

pytestmark = pytest.mark.usefixtures("time_limit")
LIMIT_S = 5


def plant(kind: str, path: Path) -> Path:
    """Put something else in place of a file, and return a file that must not change."""
    outside = path.parent.parent / "outside"
    outside.write_text('{"signature": "x"}\n')
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to(outside)
    return outside


KINDS = ("pipe", "directory", "device", "link")


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.mark.parametrize("kind", KINDS)
def test_readers_and_writers_refuse_what_is_no_file(folder, kind):
    path = folder / "metrics.jsonl"
    outside = plant(kind, path)
    with pytest.raises(UserError, match=r"metrics.jsonl: cannot be read: is a .*, not a regular"):
        read_json(path)
    assert read_jsonl(path) == []
    assert last_row(path) == {}
    if kind != "directory":
        with pytest.raises(OSError, match=r"not a regular file|larger"):
            JsonlFile(path).append({"step": 1})
    assert outside.read_text() == '{"signature": "x"}\n'


@pytest.mark.parametrize("kind", KINDS)
def test_a_configuration_and_a_manifest_are_files(folder, kind):
    outside = plant(kind, folder / "config.yaml")
    with pytest.raises(UserError, match=r"config.yaml: cannot be read: is a .*, not a regular"):
        read_config(folder)
    plant(kind, folder / "manifest.json")
    with pytest.raises(DamagedError, match=r"manifest.json cannot be read: is a"):
        read_manifest(folder)
    assert outside.read_text() == '{"signature": "x"}\n'


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", RUN_FILES)
def test_a_run_is_not_opened_where_something_else_is_in_place_of_a_file(folder, kind, name):
    outside = plant(kind, folder / name)
    with pytest.raises(UserError, match=rf"{name}: is a .*, not a regular file; nothing was"):
        lock_folder(folder)
    assert not is_locked(folder)
    assert outside.read_text() == '{"signature": "x"}\n'
    assert {p.name for p in folder.iterdir()} == {name}


def test_a_lock_does_not_follow_a_link(folder):
    outside = plant("link", folder / ".lock")
    with pytest.raises(OSError, match=r"is a link"):
        FolderLock(folder)
    assert outside.read_text() == '{"signature": "x"}\n'


def bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    return "\n".join(lines)


YAMLS = {
    "aliases": (bomb(), "refused: line 1 has an alias or an anchor"),
    "a tag": ("a: !!python/object/apply:os.getcwd []", "refused: line 1 has the tag"),
    "depth": ("[" * 100_000, "refused: line 1 is nested deeper than 100"),
    "size": ("#" * (1 << 20) + "\na: 1", "cannot be read: has more than 1,048,576 bytes"),
    "no yaml": ("a: [1", "damaged: "),
    "a scalar": ("7", "damaged: "),
    "a key twice": ("a: 1\na: 2", "damaged: "),
    "no mapping": ("- 1", "damaged: it is not a mapping"),
}


@pytest.mark.parametrize(("text", "message"), YAMLS.values(), ids=YAMLS)
def test_yaml_that_is_no_plain_mapping_is_refused(folder, text, message):
    (folder / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"config.yaml: {message}"):
        read_config(folder)


def test_bytes_that_are_no_text_are_refused(folder):
    (folder / "config.yaml").write_bytes(b"a: \xff\xfe")
    with pytest.raises(UserError, match=r"config.yaml: damaged: .*decode"):
        read_config(folder)


def test_references_and_numbers_are_read_as_before(folder):
    (folder / "config.yaml").write_text("a: ${oc.env:HOME}\nb: 1e-3\nc: null\nd: [1, yes]\n")
    assert read_config(folder) == {"a": "${oc.env:HOME}", "b": 1e-3, "c": None, "d": [1, True]}


def test_a_huge_file_is_refused(folder):
    with (folder / "meta.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match=r"meta.json: cannot be read: has more than"):
        read_json(folder / "meta.json")
    with pytest.raises(OSError, match=r"has more than 10 bytes"):
        read_bytes(folder / "meta.json", 10)


def test_a_link_at_the_old_name_of_a_temporary_file_is_not_followed(folder):
    outside = plant("link", folder / ".meta.json.tmp")
    write_text(folder / "meta.json", "new")
    assert (folder / "meta.json").read_text() == "new"
    assert outside.read_text() == '{"signature": "x"}\n'


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(folder):
    path = folder / "meta.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert [p.name for p in folder.iterdir()] == ["meta.json"]
    assert path.read_text() == "old"


def test_a_new_file_has_the_mode_of_any_other(folder):
    write_text(folder / "one", "")
    (folder / "two").write_text("")
    assert (folder / "one").stat().st_mode == (folder / "two").stat().st_mode


def test_a_start_that_was_killed_while_it_wrote_is_not_foreign(folder):
    with replacing(folder / "config.yaml") as file:
        file.write("a: 1")
        file.flush()
        check_not_foreign(folder)
        assert len(list(folder.iterdir())) == 1
    assert (folder / "config.yaml").read_text() == "a: 1"


MULTIPLIED = {
    "texts": ["x0: lol", *(f"x{i}: ${{x{i - 1}}}${{x{i - 1}}}" for i in range(1, 41))],
    "nodes": ["x0: {}", *(f"x{i}: ['${{x{i - 1}}}', '${{x{i - 1}}}']" for i in range(1, 41))],
    "escapes": ['x0: lol', *(f'x{i}: "\\x24{{x{i - 1}}}\\x24{{x{i - 1}}}"' for i in range(1, 41))],
}  # fmt: skip


@pytest.mark.parametrize("lines", MULTIPLIED.values(), ids=MULTIPLIED)
def test_references_that_multiply_are_refused(folder, lines):
    (folder / "config.yaml").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"config.yaml: refused: more than 12 values refer"):
        read_config(folder)


@pytest.mark.parametrize("name", RUN_FOLDERS)
@pytest.mark.parametrize("kind", ["pipe", "device", "link", "file"])
def test_a_run_is_not_opened_where_a_folder_leads_elsewhere(folder, kind, name):
    if kind == "file":
        (folder / name).write_text("")
    else:
        plant(kind, folder / name)
    with pytest.raises(UserError, match=rf"{name}: is a .*, not a folder; nothing was changed"):
        lock_folder(folder)
    assert not (folder / ".lock").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_the_fitted_values_of_a_run_are_files(folder, kind):
    (folder / "data").mkdir()
    outside = folder / "outside"
    plant(kind, folder / "data" / "vocabulary-0.parquet")
    with pytest.raises(UserError, match=r"vocabulary-0.parquet: is a .*, not a regular file"):
        lock_folder(folder)
    assert outside.read_text() == '{"signature": "x"}\n'


@pytest.mark.parametrize("kind", KINDS)
def test_what_ranks_print_goes_into_a_file_only(folder, kind, caplog):
    caplog.set_level(logging.INFO, "runner.reporting.console")  # which is put back afterwards
    outside = plant(kind, folder / "log.rank0.txt")
    run = SimpleNamespace(dir=folder)
    with pytest.raises(OSError, match=r"not a regular file"), redirect_to_rank_log(run):
        print("printed")
    assert outside.read_text() == '{"signature": "x"}\n'


def test_folders_named_almost_like_checkpoints_are_none_of_them(folder):
    for name in ("step-x", "step-", "step-3", "step-4.5"):
        (folder / "checkpoints" / name).mkdir(parents=True)
        (folder / "checkpoints" / name / "manifest.json").write_text("{}")
    assert checkpoint_steps(folder) == [3]
    assert peek_checkpoint(folder) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_look_into_a_checkpoint_opens_files_only(folder, kind):
    (folder / "manifest.json").write_text("{}")
    outside = plant(kind, folder / "shard-00001.safetensors")
    assert peek_checkpoint(folder) is None
    assert outside.read_text() == '{"signature": "x"}\n'


def test_a_small_file_is_read_in_memory_of_its_size(tmp_path):
    (tmp_path / "meta.json").write_text("{}")
    tracemalloc.start()
    try:
        assert read_bytes(tmp_path / "meta.json") == b"{}"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_a_killed_write_has_left_is_removed_by_a_later_write_of_that_file(folder):
    names = [f".a[1].html.{'0' * 16}.tmp", f".a[1].html.{'1' * 16}.tmp", f".a1.html.{'0' * 16}.tmp"]
    old, fresh, other = (folder / name for name in names)
    for path in (old, fresh, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (0, 0))
    write_text(folder / "a[1].html", "page")
    assert not old.exists()
    assert fresh.exists() and other.exists()  # perhaps still written, and of another file
