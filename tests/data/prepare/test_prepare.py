"""Preparation part by part: the same files by any workers, whatever is killed, in little memory."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from runner.__main__ import main
from runner.data.core.blocks import open_blocks
from runner.data.core.cache import PARTS_FOLDER
from runner.data.core.fitted import FittedTransforms
from runner.data.prepare.engine import InProcess, Processes, RayTasks, bytes_of_task
from runner.data.prepare.shuffle import (
    BucketDraws,
    RowSpill,
    group_shards,
    plan_shards,
    take_rows,
    write_shards,
)
from runner.data.tabular.table import prepare_table
from runner.data.tabular.table_recipe import TableRecipe
from runner.errors import DataError, UserError
from tests.data.clicks import SCHEMA, clicks, recipe_settings, write_parquet

ROWS = 900
SHARES = {"random": {"train": 0.7, "validation": 0.2, "test": 0.1}}
BUCKETS = {"column": "age", "encode": "bucketise", "buckets": 5}
FITTED = {**SCHEMA, "categorical": {**SCHEMA["categorical"], "age_level": BUCKETS}}
HASHED = {
    "labels": ["click"],
    "categorical": {"city": {"encode": "hash", "num_rows": 9, "default": 0}},
    "carried": ["id"],
}


class Backwards:
    """Takes all tasks at once and works on the last one first, as several workers might."""

    num_workers, is_bounded, task_bytes = 3, False, 20_000

    def map(self, work, tasks, advance, *, at_once=None):
        tasks = list(tasks)
        results = [work(task, advance) for task in reversed(tasks)]
        yield from reversed(results)


@pytest.fixture
def small_parts(monkeypatch):
    """Parts, buckets and files of few rows; how much memory there is changes nothing."""
    monkeypatch.setattr("runner.data.tabular.parts.PART_ROWS", 100)
    monkeypatch.setattr("runner.data.prepare.shuffle.SHARD_ROWS", 200)
    monkeypatch.setattr("runner.data.prepare.shards.BLOCK_ROWS", 64)


def prepared_files(recipe, root, monkeypatch, engine=None):
    """Return the content of each prepared file, by name."""
    monkeypatch.setenv("RUNNER_CACHE", str(root))
    folder, _ = prepare_table(replace(recipe), engine)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "settings",
    [
        {"schema": FITTED, "split": SHARES},
        {"schema": FITTED, "split": {"time": "time", "validation": 0.1, "test": 0.2}},
        {"schema": HASHED, "split": {"column": "fold", "train": [0, 1, 2, 3], "test": [4]}},
        {"schema": FITTED, "split": SHARES, "mix": False},
    ],
    ids=["random", "time", "nothing fitted", "in order"],
)
def test_the_files_are_the_same_in_any_order_of_the_parts_and_in_little_memory(
    tmp_path, monkeypatch, small_parts, settings
):
    path = write_parquet(tmp_path / "x", clicks(ROWS), 4)
    recipe = TableRecipe(**recipe_settings(path=path, rewrite="always", **settings))
    plain = prepared_files(recipe, tmp_path / "one", monkeypatch)
    assert len([name for name in plain if name.startswith("train")]) > 2
    assert prepared_files(recipe, tmp_path / "several", monkeypatch, Backwards()) == plain
    little = InProcess()
    little.task_bytes = 1000  # each chunk's values and rows are spilled
    assert prepared_files(recipe, tmp_path / "little", monkeypatch, little) == plain
    monkeypatch.setattr("runner.data.tabular.parts.PART_ROWS", 10**9)
    assert prepared_files(recipe, tmp_path / "whole files", monkeypatch) == plain


def test_a_vocabulary_that_is_spilled_is_that_of_a_counter(tmp_path, monkeypatch, small_parts):
    rng = np.random.default_rng(3)
    ids = rng.zipf(1.5, ROWS) % 300 * 10**12
    rows = pa.table({"y": np.arange(ROWS) % 2, "user": ids})
    path = write_parquet(tmp_path / "x", rows, 3)
    schema = {"labels": ["y"], "categorical": {"user": {"encode": "vocabulary", "min_count": 2}}}
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    engine = InProcess()
    engine.task_bytes = 500  # ten values are merged at once
    folder, _ = prepare_table(TableRecipe(**recipe_settings(path=path, schema=schema)), engine)
    expected = sorted(value for value, count in Counter(ids.tolist()).items() if count > 1)
    assert FittedTransforms.load(folder).vocabularies["user"].tolist() == expected


class KilledError(BaseException):
    pass


class DiesAfter(InProcess):
    """Is killed after so many tasks."""

    def __init__(self, count):
        super().__init__()
        self.left = count

    def map(self, work, tasks, advance, *, at_once=None):
        for task in tasks:
            if not self.left:
                raise KilledError
            self.left -= 1
            yield work(task, advance)


def test_a_killed_preparation_goes_on_with_its_parts(tmp_path, monkeypatch, small_parts, capsys):
    path = write_parquet(tmp_path / "x", clicks(ROWS), 4)
    recipe = TableRecipe(**recipe_settings(path=path, schema=FITTED, split=SHARES))
    plain = prepared_files(recipe, tmp_path / "one", monkeypatch)
    counting = DiesAfter(10**6)
    prepared_files(recipe, tmp_path / "counted", monkeypatch, counting)
    num_tasks = 10**6 - counting.left
    done = 0
    for step in (4, 9, 7, 10**6):
        engine = DiesAfter(step)
        try:
            again = prepared_files(recipe, tmp_path / "killed", monkeypatch, engine)
        except KilledError:
            assert list((tmp_path / "killed").glob(f"*.tmp/{PARTS_FOLDER}"))
        done += step - engine.left
    assert again == plain
    assert done == num_tasks  # nothing was done twice
    assert "going on with the parts" in capsys.readouterr().err


@pytest.mark.parametrize("refused", [False, True])
def test_a_kill_while_parts_are_removed_leaves_no_half_of_them(
    tmp_path, monkeypatch, small_parts, refused
):
    path = write_parquet(tmp_path / "x", clicks(ROWS), 4)
    recipe = TableRecipe(**recipe_settings(path=path, schema=FITTED, split=SHARES))
    remove, was_killed = shutil.rmtree, []

    def die_midway(folder, *args, **kwargs):
        if was_killed or not list(folder.rglob("facts.json")):
            return remove(folder, *args, **kwargs)
        for half_of_a_part in folder.rglob("facts.json"):
            half_of_a_part.unlink()
        was_killed.append(folder)
        raise KilledError

    monkeypatch.setattr(shutil, "rmtree", die_midway)
    with monkeypatch.context() as patch:
        if refused:  # when all parts are done
            error = DataError("no room")
            patch.setattr("runner.data.tabular.rewrite.write_shards", Mock(side_effect=error))
        with pytest.raises(KilledError):
            prepared_files(recipe, tmp_path / "killed", monkeypatch)
    again = prepared_files(recipe, tmp_path / "killed", monkeypatch)
    assert again == prepared_files(recipe, tmp_path / "one", monkeypatch)


@pytest.mark.parametrize("is_mixed", [True, False])
def test_several_files_are_written_after_one_pass_over_the_spilled_rows(
    tmp_path, monkeypatch, small_parts, is_mixed
):
    """Of thousands of small parts, each file opened all; they hold the same bytes as one by one."""
    monkeypatch.setattr("runner.data.prepare.shuffle._MAX_SMALL_TABLES", 3)
    draws = BucketDraws(num_rows=ROWS, seed=5) if is_mixed else None
    rows, spilled = clicks(ROWS).select(["id", "age", "city"]), []
    for number in range(30):
        spill = RowSpill(tmp_path / f"{number}.arrow", draws)
        spill.write(rows.slice(30 * number, 30))
        spilled.append(spill.close())
    shards = plan_shards(tmp_path, "train", spilled, draws)
    opened = Counter()

    def count_opens(path):
        opened[path] += 1
        return open_blocks(path)

    monkeypatch.setattr("runner.data.prepare.shuffle.open_blocks", count_opens)
    found = []
    for num_bytes, num_groups in ((1, 5), (10**6, 1)):
        groups = [*group_shards(shards, spilled, num_bytes=num_bytes, num_workers=1)]
        assert len(groups) == num_groups
        opened.clear()
        for group in groups:
            write_shards(group, lambda _: None)
        found.append([shard.path.read_bytes() for shard in shards])
    assert found[0] == found[1]
    assert opened == Counter([part.path for part in spilled])
    assert len([*group_shards(shards, spilled, num_bytes=10**6, num_workers=2)]) == 2


@pytest.mark.parametrize("is_mixed", [True, False])
def test_the_rows_that_are_read_in_one_pass_fit_into_the_memory_for_them(
    tmp_path, small_parts, is_mixed
):
    """A file in order has many small runs of rows; they counted as one, and all were read."""
    draws = BucketDraws(num_rows=ROWS, seed=5) if is_mixed else None
    rows, spilled = clicks(ROWS).select(["id", "age"]), []
    for number in range(30):
        spill = RowSpill(tmp_path / f"{number}.arrow", draws)
        spill.write(rows.slice(30 * number, 30))
        spilled.append(spill.close())
    shards = plan_shards(tmp_path, "train", spilled, draws)
    limit = sum(part.path.stat().st_size for part in spilled) // 2
    groups = [*group_shards(shards, spilled, num_bytes=limit, num_workers=1)]
    assert 1 < len(groups) < len(shards)
    for group in groups:
        needed = {r.blocks: r.num_bytes for shard in group.shards for r in shard.runs}
        assert len(group.shards) == 1 or sum(needed.values()) <= limit


def test_the_first_bad_row_of_all_is_reported_whoever_finds_one(tmp_path, monkeypatch, small_parts):
    rows = clicks(ROWS).to_pandas()
    rows.loc[[350, 600], "click"] = 7
    path = write_parquet(tmp_path / "x", pa.Table.from_pandas(rows, preserve_index=False), 1)
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    settings = recipe_settings(path=path, schema=HASHED)
    messages = set()
    for engine in (InProcess(), Backwards()):
        with pytest.raises(DataError, match="row 350, column 'click': value 7") as error:
            prepare_table(TableRecipe(**settings, rewrite="always"), engine)
        messages.add(str(error.value))
    skipped = {}
    for engine in (InProcess(), Backwards()):
        recipe = TableRecipe(**settings, on_bad_rows="skip", max_bad_rows=1)
        with pytest.raises(DataError, match=r"more than dataset.max_bad_rows=1.*row 600") as error:
            prepare_table(recipe, engine)
        messages.add(str(error.value))
        recipe = replace(recipe, max_bad_rows=2)
        files = prepared_files(recipe, tmp_path / type(engine).__name__, monkeypatch, engine)
        skipped[type(engine)] = files
    assert len(messages) == 2
    assert skipped[InProcess] == skipped[Backwards]
    assert not list((tmp_path / "cache").glob("*.tmp"))


def test_rows_that_only_the_encoding_cannot_read_move_those_behind_them(
    tmp_path, monkeypatch, small_parts
):
    """Their split is not known then: they come to others than the fitting pass has counted."""
    schema = {
        "labels": ["y"],
        "categorical": {"user": {"encode": "vocabulary"}},
        "carried": ["note"],
    }
    rows = pa.table(
        {
            "y": np.arange(ROWS) % 2,
            "user": np.arange(ROWS) % 7,
            "fold": (np.arange(ROWS) % 3 == 0).astype(str),
            "note": [f"note {n}" for n in range(ROWS)],
        }
    )
    path = tmp_path / "x.parquet"
    options = {"row_group_size": 90, "write_page_checksum": True, "use_dictionary": False}
    pq.write_table(rows, path, compression="none", **options)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"note 185")] ^= 1  # of the third row group
    path.write_bytes(raw)
    split = {"column": "fold", "train": ["False"], "test": ["True"]}
    settings = recipe_settings(path=str(path), schema=schema, split=split, on_bad_rows="skip")
    plain, several = (
        prepared_files(TableRecipe(**settings), tmp_path / name, monkeypatch, engine)
        for name, engine in (("one", InProcess()), ("several", Backwards()))
    )
    assert plain == several
    assert b'"count": 90' in plain["prepared.json"]


def test_how_much_memory_is_needed_is_said(tmp_path, monkeypatch, small_parts):
    with pytest.raises(UserError, match=r"--memory 400MB: 2 workers need at least 500MB"):
        bytes_of_task(400_000_000, 2)
    path = write_parquet(tmp_path / "x", clicks(ROWS), 4)
    engine = InProcess()
    engine.is_bounded, engine.task_bytes = True, 3000
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="--memory: the rows of a file take"):
        prepare_table(TableRecipe(**recipe_settings(path=path, split=SHARES)), engine)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "name the data: --schema FILE"),
        (["dataset=parquet", "--memory", "4"], "--memory 4: must be a number with a unit"),
        (["dataset=parquet", "--workers", "0"], "--workers 0: must be at least 1"),
        (["--schema", "no.yaml"], "no.yaml"),
    ],
)
def test_mistakes_are_refused_by_name(words, problem, capsys):
    assert main(["prepare", *words]) == 2
    assert problem in capsys.readouterr().err


def test_ray_that_is_not_there_is_said(monkeypatch, capsys):
    monkeypatch.setattr("runner.machine.imports.is_installed", lambda module: False)
    assert main(["prepare", "dataset=parquet", "--ray", "auto"]) == 2
    assert "pip install 'runner[ray]'" in capsys.readouterr().err


def test_the_verb_says_what_it_made_and_where(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    schema = write_table(tmp_path, 200)
    assert main(["prepare", "--schema", str(schema), "--workers", "1"]) == 0
    shown = capsys.readouterr().err
    assert "preparing table: done" in shown
    assert "prepared data in" in shown and "a training finds them there" in shown
    assert main(["prepare", "--schema", str(schema), "--workers", "1"]) == 0
    assert "preparing" not in capsys.readouterr().err
    plain = write_table(tmp_path / "plain", 200, split=False)
    assert main(["prepare", "--schema", str(plain), "--workers", "1"]) == 0
    assert "nothing to prepare" in capsys.readouterr().err


def write_table(folder: Path, num_rows: int, *, num_files: int = 1, split: bool = True) -> Path:
    """Write a table and its schema, which has vocabularies if it is split."""
    rng = np.random.default_rng(0)
    (folder / "rows").mkdir(parents=True)
    for number in range(num_files):
        ids = {name: rng.integers(0, 50, num_rows) for name in ("user", "item")}
        rows = {"y": rng.integers(0, 2, num_rows), **ids}
        pq.write_table(pa.table(rows), folder / "rows" / f"{number}.parquet")
    encode = {"encode": "vocabulary"} if split else {"num_rows": 50}
    schema = {
        "path": "rows",
        "labels": ["y"],
        "categorical": dict.fromkeys(("user", "item"), encode),
    }
    if split:
        schema["split"] = {"random": {"train": 0.8, "validation": 0.2}}
    else:
        schema["validation_path"] = "rows"
    (folder / "table.yaml").write_text(yaml.safe_dump(schema))
    return folder / "table.yaml"


def run(*words, cache):
    return subprocess.Popen(
        [sys.executable, "-m", "runner", *words],
        env={**os.environ, "RAY_raylet_start_wait_time_s": "600", "RUNNER_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def contents(cache):
    [folder] = cache.glob("table-*/")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def prepare_by(cache, schema, *words):
    job = run("prepare", "--schema", str(schema), *words, cache=cache)
    shown, _ = job.communicate()
    assert job.returncode == 0, shown
    return contents(cache)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parity("E13")
def test_two_processes_killed_and_gone_on_with_make_what_one_makes_and_a_training_takes(tmp_path):
    schema = write_table(tmp_path, 300_000, num_files=6)
    plain = prepare_by(tmp_path / "one", schema, "--workers", "1")
    assert prepare_by(tmp_path / "two", schema, "--workers", "2") == plain
    cache = tmp_path / "killed"
    for name in ("fit-*", "rows-*"):
        job = run("prepare", "--schema", str(schema), "--workers", "2", cache=cache)
        while not list(cache.glob(f"*.tmp/{PARTS_FOLDER}/{name}")):
            assert job.poll() is None, job.stdout.read()
            time.sleep(0.01)
        workers = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        assert len(workers) >= 2
        job.send_signal(signal.SIGKILL)
        job.wait()
        deadline = time.monotonic() + 60
        while any(is_alive(pid) for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert prepare_by(cache, schema, "--workers", "3", "--memory", "1GB") == plain
    words = ["dataset=parquet", f"dataset.schema={schema}", "trainer.max_steps=2"]
    training = run(*words, f"hydra.run.dir={tmp_path / 'run'}", cache=cache)
    shown, _ = training.communicate()
    assert training.returncode == 0, shown
    assert "preparing" not in shown


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _end_at_once(task, advance):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_process_that_is_killed_is_an_error_that_says_how_to_go_on():
    engine = Processes(1)
    with pytest.raises(DataError, match=r"was killed, perhaps for want of memory.*fewer --workers"):
        list(engine.map(_end_at_once, [1], lambda _: None))
    engine.close()


def test_ray_tasks_carry_what_pickles_and_raise_the_error_of_the_first_one(
    tmp_path, monkeypatch, small_parts
):
    """Ray's interface as far as it is used; a task is pickled, as on its way to a node."""

    class TaskError(Exception):
        def __init__(self, cause):
            self.cause = cause

    def get(answer):
        if isinstance(answer, Exception):
            raise TaskError(answer)
        return pickle.loads(answer)

    def remote(work):
        def call(*given):
            try:
                return pickle.dumps(work(*pickle.loads(pickle.dumps(given))))
            except DataError as error:
                return error

        return SimpleNamespace(options=lambda num_cpus: SimpleNamespace(remote=call))

    errors = SimpleNamespace(RayTaskError=TaskError)
    monkeypatch.setitem(
        sys.modules, "ray", SimpleNamespace(remote=remote, get=get, exceptions=errors)
    )
    path = write_parquet(tmp_path / "x", clicks(ROWS), 4)
    recipe = TableRecipe(**recipe_settings(path=path, schema=FITTED, split=SHARES))
    plain = prepared_files(recipe, tmp_path / "one", monkeypatch)
    assert prepared_files(recipe, tmp_path / "ray", monkeypatch, RayTasks(3)) == plain
    bad = write_parquet(
        tmp_path / "bad", pa.table({"click": [1, 5], "city": ["a", "b"], "id": ["x", "y"]})
    )
    recipe = TableRecipe(**recipe_settings(path=bad, schema=HASHED, rewrite="always"))
    with pytest.raises(DataError, match=r"row 1, column 'click': value 5"):
        prepared_files(recipe, tmp_path / "failed", monkeypatch, RayTasks(2))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parity("E13")
def test_a_ray_cluster_makes_the_same_files(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    schema = write_table(tmp_path, 200_000, num_files=4)
    plain = prepare_by(tmp_path / "one", schema, "--workers", "1")
    assert prepare_by(tmp_path / "ray", schema, "--workers", "2", "--ray", "local") == plain
    bad = write_table(tmp_path / "bad", 100)
    pq.write_table(
        pa.table({"y": [3], "user": [1], "item": [1]}), tmp_path / "bad" / "rows" / "1.parquet"
    )
    job = run("prepare", "--schema", str(bad), "--ray", "local", cache=tmp_path / "bad" / "cache")
    shown, _ = job.communicate()
    assert job.returncode == 2, shown
    assert "1.parquet: row group 0, row 0, column 'y': value 3" in shown


@pytest.mark.slow
def test_rows_are_taken_from_over_two_gigabytes_of_texts():
    texts = pa.array([letter * 10**8 for letter in "ab"])
    table = pa.table({"text": pa.chunked_array([texts] * 11), "number": range(22)})
    taken = take_rows(table, np.array([21, 0, 2]))
    assert [text[:2] for text in taken["text"].to_pylist()] == ["bb", "aa", "aa"]
    assert taken["number"].to_pylist() == [21, 0, 2]
    assert taken.schema == table.schema
