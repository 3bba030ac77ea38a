"""What a cluster sends back is written only if it is the record of a run. Needs no Ray."""

from __future__ import annotations

import json
import os

import pytest

from runner.config.compose import compose
from runner.config.targets import ALLOWED_PACKAGES
from runner.errors import UserError
from runner.remote import RECORD_FILES, read_answer, run_remotely, train_on_cluster, write_run_dir

META = json.dumps({"signature": "0a1b2c3d"}).encode()
RESULT = json.dumps({"status": "completed", "step": 4, "metrics": {"test/auc": "NaN"}}).encode()


def answer(**files: object) -> dict:
    return {"code": 0, "last": "", "place": None, "files": files}


def test_a_record_is_written_as_it_came(tmp_path):
    found = read_answer(answer(**{"meta.json": META, "result.json": RESULT, "log.txt": b"\xff\n"}))
    assert found.signature == "0a1b2c3d"
    composed = compose([f"hydra.run.dir={tmp_path}/run"])
    folder = write_run_dir(composed, found.files)
    assert (folder / "meta.json").read_bytes() == META
    assert (folder / "log.txt").read_bytes() == "\ufffd\n".encode()
    assert not [p for p in folder.iterdir() if p.name.endswith(".tmp")]


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "checkpoints/x", ".lock", ""])
def test_a_file_that_is_none_of_a_record_is_refused(name):
    with pytest.raises(UserError, match="which is no file of a record"):
        read_answer(answer(**{"meta.json": META, name: b""}))


@pytest.mark.parametrize(
    "meta", [b"", b"[]", b"{", b'{"signature": 3}', b'{"signature": "../x"}', b"[" * 99999, b"\xff"]
)
def test_a_record_of_another_form_is_refused(meta):
    with pytest.raises(UserError, match=r"^remote: the cluster's meta\.json"):
        read_answer(answer(**{"meta.json": meta}))


@pytest.mark.parametrize(
    "sent", [None, [], {}, {"code": "0", "files": {}}, {"code": 0, "files": []}, {"code": True}]
)
def test_an_answer_of_another_form_is_refused(sent):
    with pytest.raises(UserError, match="no record of a job"):
        read_answer(sent)


def test_another_loop_than_a_training_is_for_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("runner.remote.missing_extra", lambda *_: ())
    composed = compose(["remote=ray", "loop=debug", f"remote.dir={tmp_path}"])
    with pytest.raises(UserError, match="is for loop=train and loop=online; leave it out"):
        run_remotely(composed, [], ALLOWED_PACKAGES)


def test_a_link_at_the_name_of_a_file_is_replaced_and_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("kept")
    composed = compose([f"hydra.run.dir={tmp_path}/run"])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.txt").symlink_to(outside)
    with pytest.raises(UserError, match=r"log.txt: is a link"):
        write_run_dir(composed, {"meta.json": META, "log.txt": b"new"})
    assert outside.read_text() == "kept"


def test_on_the_cluster_only_files_are_sent(tmp_path, monkeypatch):
    def job(command, **_):
        run = tmp_path / "run"
        run.mkdir()
        (run / "meta.json").write_bytes(META)
        os.mkfifo(run / "log.txt")
        (run / "perf.jsonl").mkdir()
        (run / "metrics.jsonl").symlink_to("/etc/passwd")
        return type("Done", (), {"returncode": 1})

    monkeypatch.setattr("subprocess.run", job)
    sent = train_on_cluster({"dir": str(tmp_path), "words": []})
    assert sent["files"] == {"meta.json": META}
    assert set(sent["files"]) <= set(RECORD_FILES)
