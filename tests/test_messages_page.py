"""The page of warnings and errors is that of the source; its examples are what tests provoke."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from optuna.exceptions import StorageInternalError

from docs.messages import EXAMPLES, HOLE, PAGE, Message, find_examples, find_messages, render
from runner.cli.importance import _find_table
from runner.cli.prepare import _prepare
from runner.config.rules import warm_start
from runner.config.rules.warm_start import check_warm_start_sources
from runner.data.columns.split_setting import Split
from runner.data.files import text_blocks
from runner.data.files.file_list import DataFile
from runner.data.flight.dataset import FlightDataset
from runner.data.flight.server import DataServer
from runner.data.prepare.fingerprint import build_recipe
from runner.data.streaming.dataset import StreamDataset
from runner.data.streaming.settings import load_declaration
from runner.data.tabular.fit import TransformFitter
from runner.data.tabular.splits import read_seconds
from runner.errors import UserError, raise_combined
from runner.launch.job import is_follow_evaluation
from runner.reporting.report.feature_importance import importance_figure
from runner.reporting.report.run_data import read_data_facts
from runner.reporting.trackers.wandb import TrackedExport
from runner.rundir.checkpoint.manifest import check_sizes
from runner.rundir.mirror import fetch
from runner.rundir.mirror.fetch import _is_current
from runner.rundir.mirror.push import MirrorWriter
from runner.serving.write_aside import write_aside
from runner.sweep.optuna_trials import database_errors
from tests.conftest import ROOT

RATE = "optimizer.dense.lr=…: a learning rate is a number from 0"


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    return find_messages()


@pytest.mark.long
def test_the_page_has_every_message_of_the_source(messages):
    examples = json.loads(EXAMPLES.read_text())
    assert PAGE.read_text() == render(messages, examples), "python -m docs.messages writes it anew"


def test_the_page_shortens_a_name_that_a_test_has_made_of_one_letter():
    message = Message("runner/errors.py", False, f"{HOLE}: no file is named so")
    page = render([message], {message.form: {"text": f"a/{'x' * 250}: no file is named so"}})
    assert f"- `a/xxx{HOLE}: no file is named so`" in page.splitlines()


def test_messages_are_found_wherever_an_error_takes_them_from(messages):
    forms = {(message.module, message.form) for message in messages}
    of_a_function = f"{HOLE} {HOLE}: exists already; nothing was written. Name another, or "
    assert {
        ("runner/cli/diff.py", "diff: name two runs: diff A B"),  # a plain text
        ("runner/errors.py", f"{of_a_function}remove it first: rm -r {HOLE}"),
        ("runner/config/rules/check.py", RATE),
    } <= forms
    warned = [message.form for message in messages if message.is_warning]
    assert "stopped; the same command goes on from here" in warned


def test_an_example_is_of_its_message_and_of_a_test_that_is_there(messages):
    examples = json.loads(EXAMPLES.read_text())
    patterns = {message.form: message.pattern for message in messages}
    assert len(examples) > 200
    for form, example in examples.items():
        assert form in patterns, f"{form!r} is gone or was changed: take it out of {EXAMPLES.name}"
        assert patterns[form].search(example["text"]), form
    named = {example["test"].partition("[")[0].partition("::") for example in examples.values()}
    texts = {file: (ROOT / file).read_text() for file, _, _ in named}
    assert not {t for file, _, t in named if f"def {t.split('::')[-1]}(" not in texts[file]}


def test_the_shortest_text_that_was_heard_becomes_the_example(messages):
    heard = {
        "2 mistakes\n  1. model=x: no such thing\n  2. optimizer.dense.lr=-1: a learning rate is a "
        "number from 0": "a",
        "optimizer.dense.lr=x: a learning rate is a number from 0": "b",
    }
    assert find_examples(messages, heard)[RATE]["test"] == "b"


NUMBERS = {"labels": {"y": {}}, "numeric": {"x": {"standardise": True}}}
UNFITTED = SimpleNamespace(transforms_dir=None)
UNMEASURED = {"name": "a", "rows": 1, "permuted": "high"}
UNNAMED = {"sparse": [{"name": "a"}]}


EVIL_SERVER = SimpleNamespace(
    _served=SimpleNamespace(has_transforms=True), act=lambda *_: [b"evil\n"], claim=lambda _: None
)
SEENLESS = SimpleNamespace(dataset=SimpleNamespace(num_rows={}), _reading_seen=nullcontext())
RUN_WITH_MORE = SimpleNamespace(run_id="a", step=1, files={"gone.json": None})
FOLLOWED = {"loop": {"follow": True}, "run": "outputs/a"}


def removed() -> Iterator[Any]:
    raise FileNotFoundError
    yield


def locked_database(folder: Path) -> None:
    with database_errors(folder / "study.db"):
        raise StorageInternalError("database is locked")


def fitter() -> TransformFitter:
    return TransformFitter(load_declaration(NUMBERS), split_seed=0, skip_bad_rows=False)


def from_table(folder: Path) -> dict[str, Any]:
    loop = {"_target_": "runner.training.loops.train.train"}
    return {
        "loop": loop,
        "checkpoint": {"init_tables": {"a": {"from": str(folder), "table": "usr"}}},
    }


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _: fitter().compute(), "has no row to learn from; dataset.split says"),
        (
            lambda _: read_seconds(pa.table({"t": [True]}), Split("time", column="t")),
            "column 't' has type bool, expected a time or a number; name another",
        ),
        (
            lambda folder: list(text_blocks.read_blocks(DataFile(str(folder / "long.csv")), 8)),
            "a line of over .* bytes: is it a text file?",
        ),
        (
            lambda _: next(StreamDataset.batches(SimpleNamespace(), "test", batch_size=1)),
            "a stream has no 'test' split; loop=online scores each row",
        ),
        (
            lambda _: build_recipe({"_target_": "runner.data.sets.criteo.Criteo"}),
            "not a function marked with @runner.dataset_option.*`python -m runner ls dataset`",
        ),
        (
            lambda _: _find_table({"_target_": "mine.Rows"}, 3),
            "dataset mine.Rows has no declaration of columns",
        ),
        (lambda _: _prepare({"_target_": "mine.Rows"}, None, 1, None), "needs no preparation"),
        (
            lambda folder: raise_combined(check_warm_start_sources(from_table(folder), False)),
            "init_tables.a.table=usr: no table 'usr'; nearest: 'user'; .* has user",
        ),
        (
            lambda folder: _is_current(folder, SimpleNamespace(run_id="b"), "s3://bucket/run"),
            "has another run than s3://bucket/run now; move that folder away",
        ),
        (
            lambda folder: check_sizes(folder, SimpleNamespace(files={"gone.json": None})),
            "gone.json is missing",
        ),
        (
            lambda _: next(DataServer._packed_transforms(SimpleNamespace(dataset=UNFITTED))),
            "no transforms were fitted to these data",
        ),
        (
            lambda folder: read_data_facts(SimpleNamespace(folder=folder)),
            "data.json: damaged: a feature has no name, table or num_rows",
        ),
        (
            lambda _: importance_figure(
                {"features": [{"name": "a", "rows": 1, "permuted": "high"}]}
            ),
            "of a feature is no number; `python -m runner importance DIR` writes it anew",
        ),
        (
            lambda folder: TrackedExport(folder),
            "was not trained with tracker=wandb; leave --wandb out",
        ),
        (
            lambda folder: FlightDataset.save_fitted_transforms(EVIL_SERVER, folder),
            "a data server has sent a file called b'evil': run the same version",
        ),
        (
            lambda _: next(DataServer._find_seen(SEENLESS, SimpleNamespace(rows=[1], split="a"))),
            "what the users of a have seen is not known",
        ),
        (
            lambda folder: write_aside(folder / "long.csv" / "model").__enter__(),
            "--out .*: cannot be written: ",
        ),
        (
            lambda folder: _is_current(folder, RUN_WITH_MORE, "s3://bucket/run"),
            "a run is writing here, and s3://bucket/run has another state; wait for its end",
        ),
        (
            lambda folder: MirrorWriter._open_all(
                SimpleNamespace(folder=folder, _open_each=removed), ExitStack()
            ),
            "its files change too fast to be mirrored",
        ),
        (locked_database, "database is locked; once that is mended, the same command goes on"),
        (
            lambda _: is_follow_evaluation(SimpleNamespace(config=FOLLOWED, run_dir="here")),
            "with loop.follow=true the results lie beside the training's, in .*/follow",
        ),
    ],
)
def test_a_rare_mistake_is_told_with_a_way_on(tmp_path, monkeypatch, make, said):
    monkeypatch.setattr(text_blocks, "MAX_LINE_BYTES", 64)
    checkpoint = SimpleNamespace(tensor_names=["tables/user/weight"])
    monkeypatch.setattr(warm_start, "peek_checkpoint", lambda folder: checkpoint)
    monkeypatch.setattr(fetch, "is_locked", lambda folder: True)
    (tmp_path / "long.csv").write_text("x" * 200)
    (tmp_path / "data.json").write_text(json.dumps(UNNAMED))
    (tmp_path / "meta.json").write_text(json.dumps({"run_id": "a"}))
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    with pytest.raises(UserError, match=said):
        make(tmp_path)
