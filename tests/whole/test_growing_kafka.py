"""Growing ids, of numbers and of texts, and vocabularies from a topic of the mock broker."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import yaml

from tests.conftest import Zygote
from tests.data.growing import drifting
from tests.data.streaming.files import arrive
from tests.whole.compare_runs import TRACED, differences, read_result
from tests.whole.test_growing import WIDE, maps, train
from tests.whole.test_online import STREAM

pytestmark = pytest.mark.slow
NUM_ROWS = 640
TEXT = {**drifting.ITEM, "input": "string"}
REWRITTEN = {
    **drifting.REWRITTEN,
    "categorical": {**drifting.REWRITTEN["categorical"], "item": TEXT},
    "sequences": {"history": {**TEXT, "separator": "|", "max_length": 4}},
}
ENCODED = {
    **REWRITTEN,
    "categorical": {**REWRITTEN["categorical"], "place": {"encode": "vocabulary"}},
}
SCHEMAS = {"direct": drifting.DIRECT, "texts": REWRITTEN, "vocabulary": ENCODED}


def folder_run(runner: Zygote, folder: Path, *words: str) -> Path:
    """Return a run on the same rows as files."""
    (folder / "files").mkdir()
    arrive(folder / "files", "0.parquet", drifting.table(NUM_ROWS))
    place = f"dataset.path={folder / 'files'}"
    return train(runner, folder / "folder", *STREAM, place, *words)


@pytest.mark.parity("E16")
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_topic_grows_as_files_do_and_resumes_bit_for_bit(runner, tmp_path, name):
    pytest.importorskip("confluent_kafka", reason="the extra `kafka` is not installed")
    from tests.data.streaming.test_kafka import Broker

    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(SCHEMAS[name]))
    words = (f"dataset.schema={tmp_path / 'schema.yaml'}", *drifting.MODEL)
    words += (WIDE,) if name == "direct" else ()
    files = folder_run(runner, tmp_path, *words)
    broker, topic = Broker(), f"{name}-{time.time_ns()}"
    broker.send(topic, drifting.table(NUM_ROWS).to_pylist())
    words += ("loop=online", "dataset=kafka", f"dataset.servers='{broker.servers}'")
    words += (f"dataset.topic={topic}", "dataset.idle_timeout_s=2", *TRACED)
    words += (f"dataset.learnt={files / 'data'}",) if name == "vocabulary" else ()
    run, quiet = tmp_path / "run", tmp_path / "quiet"
    train(runner, quiet, *words, TRACE_FILE=f"{quiet}.trace")
    train(runner, run, *words, code=1, TRACE_FILE=f"{run}.trace", TRACE_KILL="step:13")
    train(runner, run, *words, TRACE_FILE=f"{run}.trace")
    assert differences(run, quiet) == []
    assert read_result(run)["step"] == NUM_ROWS // 32
    ours, theirs = maps(quiet), maps(files)
    assert ours.keys() == theirs.keys() and len(ours) > 4
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
