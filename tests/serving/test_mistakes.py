"""What a user does wrong with a model that is exported, served or predicted with, and is told."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace as Made
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import runner as public
from runner.data.columns.schema_file import parse_schema
from runner.errors import UserError
from runner.reporting.console import View
from runner.rundir.find_run import find_run
from runner.serving import api
from runner.serving.apply import apply_deltas
from runner.serving.artifact.check_artifact import check_artifact
from runner.serving.artifact.folder import GraphSpec, LookupGroup, open_artifact
from runner.serving.artifact.formats import save_graph
from runner.serving.artifact.loaded_graph import (
    NativePackages,
    check_same_shapes,
    read_weights,
    write_weights,
)
from runner.serving.delivery import EXPORT_LOG, FolderDelivery
from runner.serving.export import plan as export_plan
from runner.serving.export.export import raise_problems
from runner.serving.export.graphs import TableChoice, build_graphs, export_graph
from runner.serving.export.plan import ExportSettings, settings_of_base
from runner.serving.export.promise import Comparison, _find_problems
from runner.serving.export.run_inputs import find_run_inputs
from runner.serving.index import evaluate_index
from runner.serving.index.build_index import IndexSettings, check_index_settings
from runner.serving.items.item_table import read_queries, read_query_rows
from runner.serving.predict.model import RunModel
from runner.serving.predict.parts import open_output, summarize_parts, write_part
from runner.serving.predict.run import _finish
from runner.serving.rows.encode import check_input_types, load_transforms
from runner.serving.rows.input import check_kept_columns
from runner.serving.rows.outputs import Outputs
from runner.serving.rows.transforms import read_transforms
from runner.serving.server.settings import ServeSettings, check_settings
from runner.serving.write_aside import write_aside
from tests.models.scene import from_yaml
from tests.serving.served import ITEMS
from tests.tiny import SCHEMA
from tests.tiny_job import Rows

DECLARED = parse_schema({"labels": ["click"], "categorical": {"user": {"encode": "vocabulary"}}})
SPEC = GraphSpec("model", ("age",), (LookupGroup(("a",)),), (), ("logits",))


class Branches(torch.nn.Module):
    """Asks for the value of a tensor, which a graph does not know."""

    def forward(self, dense, values, lengths):
        return dense if dense.sum() > 0 else -dense


def write_into(out: Path) -> None:
    with write_aside(out):
        out.mkdir()


def write_below_a_file(folder: Path) -> None:
    with write_aside(folder / "file" / "model"):
        raise AssertionError("not reached")


def deliver_below_a_file(folder: Path) -> None:
    FolderDelivery(to=str(folder / "file" / "x")).start(Made(run=Made(dir=folder)))


def compare_other_metrics(_: Path, quantise: str | None = None) -> None:
    scorer = Made(artifact=Made(manifest={"quantise": quantise}))
    job = Made(context=Made(amp_dtype=None), dataset=Made(num_rows={"test": 10_000}))
    found = Comparison({"auc": 0.51})
    found.problems = _find_problems(found, {"auc": 0.75}, scorer, job, "test")
    raise_problems({"quantise": quantise, "formats": {"pt2": {"problems": found.problems}}})


def finish_on_fewer_rows(folder: Path) -> None:
    for number in range(2):
        write_part(folder, number, pa.table({"score": [0.5] * 3}), 0, ())
    _finish(Made(folder=folder, part_rows=3), summarize_parts(folder), 5, 0.0)


def finish_without_rows(folder: Path) -> None:
    plan = Made(table=Made(path="/data/clicks.parquet"), split="test")
    _finish(plan, summarize_parts(folder), 0, 0.0)


def read_a_foreign_part(folder: Path) -> None:
    pq.write_table(pa.table({"score": [0.5]}), folder / "part-00000.parquet")
    summarize_parts(folder)


def ask_for_too_many_items(_: Path) -> None:
    model = from_yaml("two_tower", ITEMS, embedding_dim=4, item=["item"])
    RunModel.check_outputs(Made(model=model), Outputs(top_k=99))


def input_of_unknown_type(_: Path) -> None:
    transforms = Made(features=DECLARED, fitted=Made(id_types={}))
    types = pa.schema({"user": pa.string(), "click": pa.int64()})
    check_input_types(transforms, types, "rows.csv", same_format=False)


def run_a_package_of_other_weights(folder: Path) -> None:
    packages = NativePackages(folder / "model.aoti.pt2")
    packages.idle = [(Made(get_constant_fqns=lambda: ["deep.0.weight"]), {})]
    packages.take({})


MISTAKES = [
    (
        lambda p: check_index_settings(p / "x", IndexSettings(top_k=0)),
        "--top-k 0: must be at least 1",
    ),
    (lambda _: Outputs(top_k=-1), "--top-k -1: must be a number of items, 0 for none"),
    (lambda _: Outputs(top_k=1.5), "--top-k 1.5: must be a number of items, 0 for none"),
    (lambda _: check_kept_columns(["score"], ["score"]), "--keep score: is the name of a column"),
    (lambda p: find_run(p / "latest"), "nothing was trained in .*; `python -m runner` tr"),
    (write_below_a_file, "--out .*file/model: cannot be written: "),
    (lambda p: write_into(p / "model"), "--out .*model: exists by now; nothing was written. Name"),
    (deliver_below_a_file, "delivery.to=.*/file/x: cannot be written: "),
    (compare_other_metrics, r"\n  pt2: test/auc is 0\.510000, and 0\.750000 in the evaluation$"),
    (
        lambda p: compare_other_metrics(p, "int8"),
        "tables in int8 are too coarse for this model: --quantise fp16 or none:",
    ),
    (
        lambda p: compare_other_metrics(p, "fp16"),
        "tables in fp16 are too coarse for this model: leave out --quantise:",
    ),
    (lambda p: open_output(p / "file", {}), "--out .*file: cannot be written: "),
    (read_a_foreign_part, r"after `rm .*part-00000\.parquet` the same command writes it anew"),
    (finish_on_fewer_rows, "has 6 rows and the input 5: a file was changed meanwhile; another --o"),
    (finish_without_rows, "^--split test: has no rows; name another split or files with rows$"),
    (ask_for_too_many_items, "--top-k 99: there are 40 items; ask for as many at most"),
    (input_of_unknown_type, "rows.csv: column 'user' has type string, and the files of the train"),
    (lambda p: load_transforms(DECLARED, p), "has no fitted transform of user, .*undo that, or t"),
    (
        lambda p: read_transforms({"_target_": "mine.Rows"}, p),
        "dataset._target_=mine.Rows: declares no columns, .*train with dataset=parquet",
    ),
    (
        lambda p: find_run_inputs({"dataset": {"_target_": "mine.Rows"}}, Rows(), p),
        "dataset mine.Rows: cannot be exported: it gives batches, and no raw columns",
    ),
    (
        lambda p: check_settings(ServeSettings(Path("model"), follow=p / "in")),
        "--follow .*/in: no such folder; `mkdir -p .*/in` makes it",
    ),
    (
        lambda _: check_same_shapes({"user": np.ones((4, 2))}, {"user": np.ones((9, 2))}),
        "the ONNX graph has user with 4 rows, and the delta makes them 9: export the model whole",
    ),
    (
        lambda _: build_graphs(torch.nn.Linear(2, 1), SCHEMA, TableChoice()),
        "model Linear cannot be exported: it has 0 TableLookups, and `embed` must be the look-up",
    ),
    (
        lambda _: export_graph(SPEC, Branches()),
        "torch.export: .*its forward must not branch on the values of tensors",
    ),
    (run_a_package_of_other_weights, r"aoti\.pt2: its weights lack 'deep\.0\.weight'; export the"),
    (
        lambda _: export_plan._compose_with_rows([], {}, ["rows.csv"]),
        "--rows-from: the columns of this run's dataset are declared by no schema; without this",
    ),
    (lambda _: public.train(["search=random"]), "search: a sweep has jobs of its own: `python -m"),
    (lambda _: public.train(["loop=debug"]), "loop=debug: makes no run directory to return; `py"),
    (
        lambda p: write_weights(p / "no" / "x", {"w": np.ones(1)}),
        "no/x: cannot be written: Error while serializing: I/O error",
    ),
    (lambda p: read_weights(p / "x"), "x: needs safetensors: pip install safetensors"),
    (
        lambda p: public.TrainedRun(p).history,
        r"history: needs pandas: pip install 'runner\[pandas\]'",
    ),
]


@pytest.mark.parametrize(("mistake", "told"), MISTAKES)
def test_a_mistake_is_told_with_what_to_do(mistake, told, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(api, "launch_run", lambda *_, **__: (0, None))
    for name in ("safetensors", "pandas"):
        if name in told:
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=told):
        mistake(tmp_path)


def test_a_package_that_a_format_needs_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("runner.machine.imports.is_installed", lambda module: False)
    problems = [*export_plan._find_problems("run", None, ExportSettings(formats=("onnx",)))]
    assert problems[-1].startswith("--format onnx: needs onnx") and "pip install" in problems[-1]


CHANGED: list[tuple[dict[str, Any], str]] = [
    ({"formats": "pt2"}, r"manifest\.json: damaged: its formats are no list of pt2, aoti, onnx; e"),
    ({"formats": []}, r"manifest\.json: damaged: its formats are no list of pt2, aoti, onnx; exp"),
    ({"formats": [["pt2"]]}, r"manifest\.json: damaged: its formats are no list of pt2, aoti, o"),
    ({"files": []}, r"manifest\.json: damaged: its files are no mapping; export the run again: `"),
    ({"files": {}}, r"manifest\.json: lists no schema\.json; export the run again: `python -m"),
    ({"files": "schema"}, r"manifest\.json lists no model\.pt2; export the run again: `python -m"),
]


@pytest.fixture
def copy(clicks_model, tmp_path):
    """Return a function that copies the model with other values in its manifest."""

    def copied(values: dict[str, Any]) -> Path:
        shutil.copytree(clicks_model, tmp_path / "copy")
        manifest = json.loads((tmp_path / "copy" / "manifest.json").read_text())
        del manifest["sha256"]  # of one that is damaged nothing else is told
        if values.get("files") == "schema":
            files = {"schema.json": manifest["files"]["schema.json"]}
            values = {"files": files}
        (tmp_path / "copy" / "manifest.json").write_text(json.dumps({**manifest, **values}))
        return tmp_path / "copy"

    return copied


@pytest.mark.parametrize(("values", "told"), CHANGED)
def test_a_manifest_that_lacks_something_leads_to_another_export(copy, values, told):
    with pytest.raises(UserError, match=told):
        check_artifact(copy(values), None, trust_native_code=False)


def test_a_fact_of_a_manifest_that_was_changed_is_damage(clicks_model, tmp_path):
    for was, now in (('"quantise"', '"puantise"'), (": null", ": nul1")):
        folder = tmp_path / now[1:3]
        shutil.copytree(clicks_model, folder)
        text = (folder / "manifest.json").read_text()
        assert was in text
        (folder / "manifest.json").write_text(text.replace(was, now))
        with pytest.raises(UserError, match=r"manifest\.json: .*; copy the folder again, or wri"):
            open_artifact(folder)
    for damage in ("[" * 100_000, "[]"):
        (folder / "manifest.json").write_text(damage)
        with pytest.raises(UserError, match=r"manifest\.json: cannot be read: .*; copy the folder"):
            open_artifact(folder)
    (folder / "manifest.json").write_text('{"format_version": 1, "files": {}}')
    with pytest.raises(UserError, match=r"manifest\.json: cannot be read: it has no 'version'; co"):
        open_artifact(folder)


def test_machine_code_is_run_for_nothing_without_a_word(copy, tmp_path):
    folder = copy({"formats": ["aoti"]})
    with pytest.raises(UserError, match=r"run once for .*--trust-native-code allows it for an art"):
        apply_deltas(folder, [], tmp_path / "new", trust_native_code=False)
    since = ExportSettings(since=str(folder))
    with pytest.raises(UserError, match=r"only machine code, .*--trust-native-code allows it"):
        settings_of_base(since, None)
    with pytest.raises(UserError, match="--since: a delta has no format: leave out --format"):
        settings_of_base(since, ("pt2",))


def test_a_model_without_items_and_of_another_run_is_told(
    clicks_model, clicks_scorer, tmp_path, monkeypatch
):
    artifact = open_artifact(clicks_model)
    with pytest.raises(UserError, match=r"lists no queries\.parquet; export the run again"):
        read_queries(artifact)
    with pytest.raises(UserError, match=r"lists no query_rows\.parquet; export the run again"):
        read_query_rows(artifact)
    with pytest.raises(UserError, match="top_k=0: must be at least 1"):
        clicks_scorer.top_k({}, 0)
    with pytest.raises(UserError, match=r"top_k=1\.5: must be at least 1, and whole"):
        clicks_scorer.top_k({}, 1.5)
    (tmp_path / "manifest.json").write_text("{}")  # of a checkpoint that is another one
    artifact.manifest["checkpoint"] = {"step": 3, "sha256": "0"}
    monkeypatch.setattr(evaluate_index.Scorer, "load", lambda *_, **__: Made(artifact=artifact))
    job = Made(source_checkpoint=Made(path=tmp_path))
    monkeypatch.setattr(evaluate_index, "build_job", lambda *_, **__: job)
    with pytest.raises(UserError, match=r"--evaluate run: model was exported .*checkpoint\.step=3"):
        evaluate_index.evaluate_index({"run": "run"}, Path("model"), "pt2", Made(), ())


def test_a_graph_that_cannot_be_written_names_its_format(clicks_model, tmp_path):
    program = torch.export.load(str(clicks_model / "model.pt2"))
    with pytest.raises(UserError, match=r"--format pt2: the graph model cannot be written: .*aoti"):
        save_graph(program, SPEC, tmp_path / "none" / "x.pt2", "pt2", portable=False)


def test_a_disk_that_becomes_full_is_no_matter_of_the_format(clicks_model, tmp_path, monkeypatch):
    program = torch.export.load(str(clicks_model / "model.pt2"))
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.onnx")

    def save_onnx(*_: Any) -> None:
        raise full

    monkeypatch.setattr("runner.serving.artifact.formats._save_onnx", save_onnx)
    with pytest.raises(OSError, match=r"No space left on device: 'model\.onnx'") as told:
        save_graph(program, SPEC, tmp_path / "model.onnx", "onnx", portable=False)
    assert told.value is full  # of which a command ends with 1, and says that it may go on


def test_a_graph_that_has_no_room_is_refused_before_it_is_written(
    clicks_model, tmp_path, monkeypatch
):
    program = torch.export.load(str(clicks_model / "model.pt2"))
    monkeypatch.setattr("shutil.disk_usage", lambda path: Made(free=100_000))
    with pytest.raises(UserError, match=r"no space left on device: .* and 0\.1 MB are free"):
        save_graph(program, SPEC, tmp_path / "x.pt2", "pt2", portable=False)
    with pytest.raises(UserError, match=r"no space left on device: .* and 0\.1 MB are free"):
        apply_deltas(clicks_model, [], tmp_path / "newer")
    assert not any(tmp_path.iterdir())


def test_a_graph_beyond_a_limit_of_file_sizes_is_refused_and_aborts_nothing(clicks_model, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    program = torch.export.load(str(clicks_model / "model.pt2"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(UserError, match=r"File too large: .* a limit \(ulimit -f\) forbids"):
            save_graph(program, SPEC, tmp_path / "x.pt2", "pt2", portable=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not any(tmp_path.iterdir())


def test_weights_that_were_not_delivered_can_be_exported(tmp_path, capsys):
    (tmp_path / EXPORT_LOG).write_text("error: no room on the disk\n")
    delivery = FolderDelivery(to=str(tmp_path / "to"))
    delivery._run, delivery._job = Made(dir=tmp_path), Made(view=View())
    delivery._lock = Made(release=lambda: None)
    delivery._export = (5, Made(poll=lambda: 1, wait=lambda: 1, returncode=1))
    delivery.finish(tmp_path / "step-9")
    said = capsys.readouterr().err
    assert "the last weights were not delivered: the export of step 5 has failed, as " in said
    assert "export.log says: error: no room on the disk; `python -m runner export " in said
    delivery._export = (5, Made(poll=lambda: 0, wait=lambda: 0, returncode=0))
    delivery.folder = None  # so that the error is of a kind that nobody expects
    delivery.finish(tmp_path / "step-9")
    assert "the last weights were not delivered: TypeError: " in capsys.readouterr().err
