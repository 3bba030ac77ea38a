"""A run's mirror in a real object store: always one complete state, whatever is killed."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import shutil
import time
from pathlib import Path

import pytest

from runner.errors import UserError
from runner.rundir.checkpoint import saved_steps
from runner.rundir.checkpoint.files import FileDigest
from runner.rundir.mirror import fetch
from runner.rundir.mirror.fetch import local_run
from runner.rundir.mirror.index import read_index
from runner.rundir.mirror.push import MirrorWriter
from tests.conftest import TINY
from tests.stores.pushing import files_of, push, write_state
from tests.stores.server import CREDENTIALS
from tests.whole.compare_runs import differences

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.stores.pushing", "pyarrow.fs"])


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """The working directory, below which runs are fetched."""
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


def objects(store, url: str) -> set[str]:
    """Names of all objects below a URL, without the marks of folders."""
    from pyarrow import fs

    from runner.object_store import open_store

    files, root = open_store(url)
    found = files.get_file_info(fs.FileSelector(root, recursive=True))
    return {info.path.removeprefix(f"{root}/") for info in found if info.is_file}


def check_killed_uploads(tmp_path, store, numbers) -> None:
    """Kill the upload of a second state at these requests; the mirror has the one or the other."""
    run, before, after = tmp_path / "run", tmp_path / "before", tmp_path / "after"
    write_state(run, 5)
    shutil.copytree(run, before)
    write_state(run, 10)
    shutil.copytree(run, after)
    states = [files_of(before), files_of(after)]
    seen = []
    for number in numbers:
        url = f"{store.url}/{number}"
        MirrorWriter(before, url).push()
        fault = str(number) if isinstance(number, int) else f"{number} 0"
        process = FORKS.Process(target=push, args=(str(after), url, store.environment, fault))
        process.start()
        process.join()
        assert process.exitcode == -9, number
        store.set_faults()
        fetched = files_of(local_run(url))
        assert fetched in states, number
        seen.append(states.index(fetched))
        MirrorWriter(after, url).push()
        index = read_index(url)
        assert index is not None and index.step == 10
        named = {f"objects/{digest.sha256}" for digest in index.files.values()}
        assert objects(store, url) == {"run.json", *named}  # nothing of the killed one is left
        assert files_of(local_run(url)) == states[1]
    assert seen == sorted(seen)
    assert set(seen) == {0, 1}


@pytest.mark.long
def test_a_killed_upload_leaves_the_old_or_the_new_state(tmp_path, store, home):
    check_killed_uploads(tmp_path, store, ["PUT run.json", "GET bucket"])


@pytest.mark.slow
@pytest.mark.parity("E13")
def test_an_upload_killed_at_any_request_leaves_the_old_or_the_new_state(tmp_path, store, home):
    write_state(tmp_path / "count", 5)
    url = f"{store.url}/count"
    MirrorWriter(tmp_path / "count", url).push()
    write_state(tmp_path / "count", 10)
    store.set_faults()
    MirrorWriter(tmp_path / "count", url).push()
    check_killed_uploads(tmp_path, store, range(len(store.log())))


def test_a_writer_goes_on_after_requests_that_failed(tmp_path, store, home):
    """Also after one of which nobody knows whether the store has done it."""
    run = tmp_path / "run"
    write_state(run, 5)
    writer = MirrorWriter(run, store.url)
    store.set_faults({"PUT run.json 0": 400})
    with pytest.raises(UserError, match=r"s3://.*400"):
        writer.push()
    assert read_index(store.url) is None
    writer.push()
    assert read_index(store.url).step == 5
    write_state(run, 10)
    store.set_faults({"PUT run.json 0": 503, "PUT run.json 1": "drop", 2: 503})
    writer.push()
    assert read_index(store.url).step == 10
    write_state(tmp_path / "other", 10)
    with (tmp_path / "other" / "log.txt").open("w") as log:
        log.write("from another machine")
    MirrorWriter(tmp_path / "other", store.url).push()
    write_state(run, 15)
    with pytest.raises(UserError, match="another process has written there"):
        writer.push()


def test_what_a_mirror_does_not_take(tmp_path, store, home):
    run, other = tmp_path / "run", tmp_path / "other"
    write_state(run, 10)
    MirrorWriter(run, store.url).push()
    write_state(other, 20, seed=1)
    with pytest.raises(UserError, match=rf"holds another run .step 10.; .*resume {store.url}"):
        MirrorWriter(other, store.url)
    write_state(tmp_path / "behind", 5)
    with pytest.raises(
        UserError, match=r"has step 10, which is later than step 5 of .*behind; " ".*resume"
    ):
        MirrorWriter(tmp_path / "behind", store.url)
    with pytest.raises(UserError, match="no run is mirrored there"):
        local_run(f"{store.url}x")
    with pytest.raises(UserError, match="there is no bucket 'buckett'; nearest: 'bucket'"):
        local_run("s3://buckett/run")


def test_a_damaged_mirror_is_noticed_and_leads_nowhere_else(tmp_path, store, home):
    write_state(tmp_path / "run", 10)
    MirrorWriter(tmp_path / "run", store.url).push()
    index = read_index(store.url)
    content = json.loads(index.encode())
    digest = index.files["checkpoints/step-10/shard-00001.safetensors"]
    key = f"{store.folder}/objects/{digest.sha256}"
    store.put(key, b"x" * digest.size)
    with pytest.raises(UserError, match=r"shard-00001\.safetensors is damaged"):
        local_run(store.url)
    store.ask(f"/bucket/{key}", method="DELETE")
    with pytest.raises(UserError, match="is not complete"):
        local_run(store.url)
    assert not list(home.rglob("meta.json"))
    outside = ("../x", "data/../../x", "/etc/x", "checkpoints/step-1/.x", "data/a/b")
    impossible = ("data/\0", "data/\ud800", f"data/{'é' * 128}", f"checkpoints/step-{'9' * 99}/x")
    for name in (*outside, *impossible, "checkpoints/step-٣/x", "checkpoints/step-010/x"):
        bad = {**content, "files": {name: content["files"]["meta.json"]}}
        store.put(f"{store.folder}/run.json", json.dumps(bad).encode())
        with pytest.raises(UserError, match="is no file of a run directory"):
            local_run(store.url)


def test_an_object_larger_than_its_index_says_is_not_written(tmp_path, store, home):
    write_state(tmp_path / "run", 10)
    MirrorWriter(tmp_path / "run", store.url).push()
    content = json.loads(read_index(store.url).encode())
    large = b"x" * (64 << 10)
    digest = {"size": 3, "sha256": hashlib.sha256(large).hexdigest()}
    store.put(f"{store.folder}/objects/{digest['sha256']}", large)
    content["files"]["log.txt"] = digest
    store.put(f"{store.folder}/run.json", json.dumps(content).encode())
    chunks = fetch._chunks(store.url, FileDigest(**digest))
    assert sum(map(len, chunks)) == 4  # one byte tells that it is another
    with pytest.raises(UserError, match=r"log\.txt is damaged"):
        local_run(store.url)
    assert not [path for path in home.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_folder_that_is_ahead_of_the_mirror_is_kept(tmp_path, store, home):
    write_state(tmp_path / "run", 10)
    MirrorWriter(tmp_path / "run", store.url).push()
    fetched = local_run(store.url)
    assert files_of(fetched) == files_of(tmp_path / "run")
    write_state(fetched, 15)  # the run went on here, and the store was not to be reached
    assert saved_steps(local_run(store.url) / "checkpoints") == [15]
    write_state(tmp_path / "run", 20)
    MirrorWriter(tmp_path / "run", store.url).push()
    assert files_of(local_run(store.url)) == files_of(tmp_path / "run")
    assert [path.name for path in fetched.parent.iterdir() if path.is_dir()] == [fetched.name]


@pytest.mark.slow
def test_training_does_not_wait_for_the_store(tmp_path, store, runner):
    """It is held from the second state on, until the training of two ranks has its result."""
    folder = tmp_path / "run"
    process = runner.start(
        *(*TINY, f"hydra.run.dir={folder}", f"checkpoint.mirror={store.url}"),
        "trainer.num_processes=2",
        env=store.environment,
    )
    while not any(e["method"] == "PUT" and "run.json" in e["path"] for e in store.log()):
        time.sleep(0.05)
    store.ask("/_hold", b"")
    try:
        while not (folder / "result.json").exists():
            assert not (process.output.exists() and "error:" in process.text), process.text
            time.sleep(0.05)
    finally:
        store.ask("/_release", b"")
    assert process.wait() == 0, process.text
    index = read_index(store.url)
    assert index is not None and index.step == 40 and "result.json" in index.files


@pytest.mark.slow
@pytest.mark.parity("E13")
def test_a_killed_run_goes_on_elsewhere_from_its_mirror(tmp_path, store, runner):
    """Its machine is lost. The result equals that of a run that was never killed, bit for bit."""
    whole, lost, home = (tmp_path / name for name in ("whole", "lost", "home"))
    home.mkdir()
    # evaluations make it last for seconds, so that a state in its middle is mirrored
    job = (*TINY, "trainer.max_steps=80", "trainer.eval_every=1")
    runner.run(*job, f"hydra.run.dir={whole}", env=store.environment).check()
    mirror = f"checkpoint.mirror={store.url}"
    process = runner.start(*job, f"hydra.run.dir={lost}", mirror, env=store.environment)
    store.set_faults({"PUT run.json 2": process.pid})
    process.wait()
    assert not (lost / "result.json").exists()
    shutil.rmtree(lost)
    index = read_index(store.url)
    assert index is not None and 0 < index.step < 80
    command = ("resume", store.url)
    resumed = runner.run(*command, cwd=home, env=store.environment).check()
    assert f"resuming from step {index.step}" in resumed.text
    [folder] = [path for path in (home / "outputs" / "mirrors").iterdir() if path.is_dir()]
    assert differences(whole, folder) == []
    metrics = [
        json.loads((path / "result.json").read_text())["metrics"]["test/auc"]
        for path in (whole, evaluate(runner, store, home))
    ]
    assert metrics[0] == metrics[1]
    secret = CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode()
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and secret in p.read_bytes()]
    names = objects(store, store.url)
    assert not [n for n in names if secret in store.ask(f"/bucket/{store.folder}/{n}")]


def evaluate(runner, store, home: Path) -> Path:
    out = home / "evaluation"
    words = ("loop=eval", f"run={store.url}", f"hydra.run.dir={out}", "report=false")
    runner.run(*words, cwd=home, env=store.environment).check()
    return out


def test_outputs_are_folders_of_this_machine(tmp_path, runner):
    words = (
        f"hydra.run.dir=s3://bucket/{tmp_path.name}",
        "checkpoint.mirror=s3://key:hush@bucket/x",
    )
    done = runner.run(*words, cwd=tmp_path).check(2)
    assert "checkpoint.mirror=s3://bucket/runs/mine copies a run" in done.text
    assert "with a bucket and without credentials" in done.text
    assert not list(tmp_path.iterdir())
