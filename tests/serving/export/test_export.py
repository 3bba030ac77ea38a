"""`export`: what is served is what was evaluated, for whole runs by the command line."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.cli.export import export as export_verb
from runner.data.tabular.parts import iterate_split_chunks
from runner.errors import UserError
from runner.serving.artifact.folder import open_artifact, write_manifest, write_schema
from runner.serving.artifact.raw_rows import encode_chunk_features
from runner.serving.export import plan as export_plan
from runner.serving.export import run_inputs
from runner.serving.export.export import describe
from runner.serving.export.graphs import build_graphs
from runner.serving.rows import selected_rows
from runner.serving.scorer import Scorer
from tests.conftest import TINY, python
from tests.serving import clicks
from tests.tiers import fast
from tests.whole.test_items import FULL, NUM_ITEMS, SETTINGS, beauty  # noqa: F401  (a fixture)


def export(runner, run: Path, out: Path, *words: str) -> dict:
    runner.run("export", str(run), "--out", str(out), *words).check()
    return json.loads((out / "metrics.json").read_text())


def evaluated(runner, run: Path, own: Path, *words: str) -> dict[str, float]:
    runner.run("loop=eval", f"run={run}", f"hydra.run.dir={own}", *words).check()
    found = json.loads((own / "result.json").read_text())["metrics"]
    return {name.removeprefix("test/"): value for name, value in found.items()}


@pytest.fixture(scope="module")
def table_run(runner, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    run = folder / "run"
    runner.run(*clicks.write(folder / "data"), f"hydra.run.dir={run}").check()
    return run


@pytest.fixture(scope="module")
def model(runner, table_run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("model") / "model"
    export(runner, table_run, out)
    return out


@pytest.mark.long
@pytest.mark.parity("E11", "N11")
def test_the_metrics_of_raw_rows_are_those_of_loop_eval(runner, table_run, model, tmp_path):
    expected = evaluated(runner, table_run, tmp_path / "eval")
    measured = json.loads((model / "metrics.json").read_text())
    assert measured["evaluated"] == expected
    found = measured["formats"]["pt2"]["metrics"]
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name
    assert measured["rows"] > 100


@pytest.mark.long
def test_ids_keep_the_type_of_the_training_whatever_type_they_are_given_in(model):
    rows = clicks.table(50, seed=5)
    scorer = Scorer.load(model)
    expected = scorer.score(rows)["click"]
    as_texts = rows.set_column(
        rows.column_names.index("shop"), "shop", rows["shop"].cast(pa.string())
    )
    assert np.array_equal(scorer.score(as_texts)["click"], expected)
    assert {"agent": "string", "city": "string", "brand": "integer"}.items() <= (
        scorer.artifact.raw.fitted.id_types.items()
    )
    for name, type_ in (("brand", pa.string()), ("city", pa.large_string())):
        column = rows[name].cast(type_)
        other = rows.set_column(rows.column_names.index(name), name, column)
        assert np.array_equal(scorer.score(other)["click"], expected)


@pytest.mark.slow
def test_known_data_without_lists_of_weights_repeat_it_to_the_last_digit(runner, tmp_path):
    run, out = tmp_path / "run", tmp_path / "model"
    runner.run(*TINY, f"hydra.run.dir={run}").check()
    measured = export(runner, run, out)
    assert measured["formats"]["pt2"]["metrics"] == measured["evaluated"]
    assert measured["formats"]["pt2"]["largest_logit_difference"] == 0
    assert measured["evaluated"] == evaluated(runner, run, tmp_path / "eval")
    manifest = json.loads((out / "manifest.json").read_text())
    meta = json.loads((run / "meta.json").read_text())
    assert manifest["run"]["signature"] == meta["signature"]
    step = run / "checkpoints" / f"step-{manifest['checkpoint']['step']}" / "manifest.json"
    assert manifest["checkpoint"]["sha256"] == hashlib.sha256(step.read_bytes()).hexdigest()


@pytest.mark.long
def test_an_artifact_of_a_run_with_amp_is_its_model_in_float32(runner, tmp_path):
    """Of so few rows, pr_auc under autocast differs by more than any bound of rounding."""
    run, out = tmp_path / "run", tmp_path / "model"
    words = (*TINY, "dataset.rows.test=64", "trainer.amp=true", "metrics.eval=[auc, pr_auc]")
    runner.run(*words, f"hydra.run.dir={run}").check()
    measured = export(runner, run, out)
    assert measured["evaluated"] == evaluated(runner, run, tmp_path / "amp")
    found = measured["formats"]["pt2"]
    in_float32 = evaluated(runner, run, tmp_path / "fp32", "trainer.amp=false")
    assert found["metrics"] == in_float32 != measured["evaluated"]
    assert found["largest_logit_difference"] == 0


@pytest.mark.long
def test_rows_that_a_run_skips_as_bad_keep_their_place(runner, tmp_path):
    """A value that is no number, and a line with too many values, in each split."""
    random, lines = np.random.default_rng(0), ["click,price,city"]
    for i in range(600):
        price = "x" if i % 50 == 7 else f"{random.gamma(2):.3f}"
        lines.append(f"{random.integers(2)},{price},c{random.integers(9)}")
        lines += ["1,2,3,4,5"] if i % 97 == 5 else []
    (tmp_path / "clicks.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "schema.yaml").write_text(
        "{labels: [click], numeric: [price], categorical: {city: {encode: vocabulary}}}"
    )
    words = (
        "dataset=csv",
        f"dataset.path={tmp_path / 'clicks.csv'}",
        f"dataset.schema={tmp_path / 'schema.yaml'}",
        "dataset.on_bad_rows=skip",
        "dataset.split={random: {train: 0.5, validation: 0.25, test: 0.25}}",
        "model=mlp",
        "trainer.max_steps=20",
        "trainer.batch_size=32",
        "trainer.num_threads=1",
        "report=false",
    )
    run = tmp_path / "run"
    runner.run(*words, f"hydra.run.dir={run}").check()
    measured = export(runner, run, tmp_path / "model")
    assert measured["formats"]["pt2"]["metrics"] == measured["evaluated"]
    assert measured["evaluated"] == evaluated(runner, run, tmp_path / "eval")


@pytest.mark.long
@pytest.mark.parametrize("net", fast("two_tower", of=["sasrec", "hstu", "two_tower", "din"]))
def test_models_of_items_give_the_rankings_of_the_evaluation(runner, beauty, tmp_path, net):  # noqa: F811
    drawn = ("model.net.uniform=9", *FULL)
    more = {"sasrec": drawn, "hstu": drawn, "two_tower": FULL, "din": ()}[net]
    words = (*SETTINGS, beauty, f"model={net}", *more, "report=false")
    run, out = tmp_path / "run", tmp_path / "model"
    runner.run(*words, f"hydra.run.dir={run}").check()
    measured = export(runner, run, out)
    expected = evaluated(runner, run, tmp_path / "eval")
    found = measured["formats"]["pt2"]["metrics"]
    if more:
        assert found["recall@5"] == expected["recall@5"]
        items = Scorer.load(out).vectors("items", {"item": np.arange(NUM_ITEMS)})
        assert len({row.tobytes() for row in items}) == NUM_ITEMS
    # no graph scores the drawn items of a retrieval model's loss, so it is not said to be the same
    assert found.keys() == expected.keys() - ({"loss"} if more else set())
    assert not more or "loss" not in " ".join(describe(measured))
    for name, value in found.items():
        assert value == pytest.approx(expected[name], rel=1e-5), name


@pytest.mark.slow
@pytest.mark.parity("E12")
def test_each_quantisation_reports_before_and_after(runner, table_run, tmp_path):
    sizes = []
    for kind in ("fp16", "int8", "int4"):
        measured = export(runner, table_run, tmp_path / kind, "--quantise", kind)
        before, after = measured["evaluated"], measured["formats"]["pt2"]["metrics"]
        assert before["auc/click"] == pytest.approx(after["auc/click"], abs=0.03)
        assert before["loss"] != after["loss"]
        sizes.append(measured["formats"]["pt2"]["bytes"])
    assert json.loads((tmp_path / "int4" / "manifest.json").read_text())["quantise"] == "int4"


@pytest.mark.slow
def test_several_formats_lie_in_one_folder_and_score_py_needs_nothing_of_ours(
    runner, table_run, tmp_path
):
    pytest.importorskip("onnxruntime")
    out = tmp_path / "model"
    measured = export(runner, table_run, out, "--format", "pt2,onnx")
    assert measured["formats"].keys() == {"pt2", "onnx"}
    blocked = "; ".join(f"sys.modules[{n!r}] = None" for n in BLOCKED)
    run_it = f"runpy.run_path({str(out / 'score.py')!r}, run_name='__main__')"
    code = f"import sys, runpy; {blocked}; {run_it}"
    done = python("-c", code)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout.count("model.click") == 2


BLOCKED = ("runner", "torchrec", "fbgemm_gpu", "hydra", "omegaconf")


@pytest.mark.long
@pytest.mark.parametrize("format_", fast("onnx", of=["pt2", "onnx"]))
def test_raw_rows_are_scored_without_torchrec_fbgemm_and_hydra(
    runner, table_run, model, tmp_path, format_
):
    if format_ == "onnx":
        pytest.importorskip("onnxruntime")
        model = tmp_path / "model"
        export(runner, table_run, model, "--format", "onnx")
    rows = tmp_path / "rows.parquet"
    pq.write_table(clicks.table(40, seed=5).drop(["click", "price"]), rows)
    blocked = [*BLOCKED[1:], *(["torch"] if format_ == "onnx" else [])]
    code = f"""
import sys
for name in {blocked}: sys.modules[name] = None
import json, pyarrow.parquet as pq
from runner.serving import Scorer
scores = Scorer.load({str(model)!r}).score(pq.read_table({str(rows)!r}))
print(json.dumps({{k: v.tolist() for k, v in scores.items()}}))
"""
    done = python("-c", code)
    assert done.returncode == 0 and not done.stderr, done.stderr
    scores = json.loads(done.stdout)
    assert scores.keys() == {"click", "price"}
    assert len(set(scores["click"])) > 30
    assert all(0 < p < 1 for p in scores["click"])


@pytest.mark.slow
def test_the_average_of_the_weights_is_a_choice(runner, tmp_path):
    run = tmp_path / "run"
    runner.run(*TINY, "trainer.ema.decay=0.9", f"hydra.run.dir={run}").check()
    found = {}
    for which in ("ema", "trained"):
        measured = export(runner, run, tmp_path / which, "--weights", which)
        own = (f"trainer.ema.evaluate={'true' if which == 'ema' else 'false'}",)
        assert measured["evaluated"] == evaluated(runner, run, tmp_path / f"eval {which}", *own)
        assert measured["formats"]["pt2"]["metrics"] == measured["evaluated"]
        assert json.loads((tmp_path / which / "manifest.json").read_text())["weights"] == which
        found[which] = measured["evaluated"]["loss"]
    assert found["ema"] != found["trained"]


@pytest.mark.long
def test_mistakes_are_told_together_and_nothing_is_written(runner, table_run, tmp_path):
    out = tmp_path / "out"
    words = ("--out", str(out), "--format", "pt3", "--quantise", "int9", "--weights", "emma")
    done = runner.run("export", str(table_run), *words).check(2)
    for text in ("--format pt3", "nearest: 'pt2'", "--quantise int9", "--weights emma"):
        assert text in done.text
    done = runner.run("export", str(table_run), "--out", str(out), "--quantize", "int8")
    assert (done.code, "nearest: '--quantise'" in done.text) == (2, True)
    done = runner.run("export", str(table_run), "--out", str(out), "--weights", "ema")
    assert (done.code, "kept no moving average" in done.text) == (2, True)
    runner.run("export", str(tmp_path / "nothing"), "--out", str(out)).check(2)
    assert not list(tmp_path.iterdir())
    done = runner.run("export", str(table_run), "--out", str(table_run))
    assert (done.code, "exists already" in done.text) == (2, True)


@pytest.mark.long
@pytest.mark.parametrize("broken", fast("transforms", of=["weights", "transforms"]))
def test_an_artifact_that_is_not_what_was_evaluated_is_not_written(
    table_run, tmp_path, monkeypatch, broken
):
    def with_other_weights(model, schema, choice):
        graphs = build_graphs(model, schema, choice)
        graphs[0][1].lookup.pooled[0].rows.weight.neg_()
        return graphs

    def with_other_transforms(folder, graphs, tasks, raw):
        write_schema(folder, graphs, tasks, raw)
        text = (folder / "schema.json").read_text()
        assert '"salt": 3' in text
        (folder / "schema.json").write_text(text.replace('"salt": 3', '"salt": 4'))

    if broken == "weights":
        monkeypatch.setattr("runner.serving.export.export.build_graphs", with_other_weights)
    else:
        monkeypatch.setattr("runner.serving.export.export.write_schema", with_other_transforms)
    with pytest.raises(UserError, match="not written: the artifact predicts other values than"):
        export_verb([str(table_run), "--out", str(tmp_path / "out")], [])
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_rows_that_are_equal_for_a_model_may_be_ordered_by_rounding(runner, tmp_path, monkeypatch):
    """As ONNX does: of rows with equal ids, those in other places of a batch differ by 1e-7."""
    random = np.random.default_rng(0)
    city = random.integers(0, 4, 900)
    rows = {"click": random.random(900) < 0.2 + 0.1 * city, "city": city}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    (tmp_path / "schema.yaml").write_text("{labels: [click], categorical: {city: {num_rows: 4}}}")
    run = tmp_path / "run"
    runner.run(
        "dataset=parquet",
        f"dataset.path={tmp_path / 'rows.parquet'}",
        f"dataset.schema={tmp_path / 'schema.yaml'}",
        "dataset.split={random: {train: 0.4, validation: 0.2, test: 0.4}}",
        *("model=mlp", "trainer.max_steps=20", "report=false", f"hydra.run.dir={run}"),
    ).check()
    exact = Scorer.logits

    def rounded(self, rows):
        logits_RT = exact(self, rows)
        return logits_RT + np.linspace(-2e-7, 2e-7, len(logits_RT), dtype=np.float32)[:, None]

    monkeypatch.setattr(Scorer, "logits", rounded)
    export_verb([str(run), "--out", str(tmp_path / "model")], [])
    measured = json.loads((tmp_path / "model" / "metrics.json").read_text())
    found = measured["formats"]["pt2"]
    assert 0 < found["largest_logit_difference"] < 1e-6
    assert abs(found["metrics"]["auc"] - measured["evaluated"]["auc"]) > 1e-4


def test_only_rows_of_the_split_are_encoded_and_files_are_read_twice(
    table_run, tmp_path, monkeypatch, capfd
):
    encoded, passes = [], []

    def encode(chunk, *args, **settings):
        encoded.append(chunk.num_rows)
        return encode_chunk_features(chunk, *args, **settings)

    def iterate(*args):
        passes.append(args)
        return iterate_split_chunks(*args)

    monkeypatch.setattr(run_inputs, "encode_chunk_features", encode)
    monkeypatch.setattr(selected_rows, "iterate_split_chunks", iterate)
    export_verb([str(table_run), "--out", str(tmp_path / "model")], [])
    rows = json.loads((tmp_path / "model" / "metrics.json").read_text())["rows"]
    assert encoded == [rows, rows]  # for the rows that are timed and shown, and for the metrics
    assert len(passes) == 2
    said = capfd.readouterr().err
    assert "scoring the test split from its files: done" in said


@pytest.mark.long
def test_tables_for_which_memory_has_no_room_are_told_once(table_run, tmp_path):
    code = (
        "import sys\nimport runner.machine.free_memory\n"
        "runner.machine.free_memory.available_memory_bytes = lambda: 1000.0\n"
        "from runner.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    )
    done = python("-c", code, "export", str(table_run), "--out", str(tmp_path / "out"))
    said = " ".join(done.stderr.split())
    assert done.returncode == 0, said
    assert said.count("GB more while they are written and checked, and 0.0 GB are free") == 1
    assert "the system may end this process; --quantise makes them smaller" in said


def test_a_damaged_file_and_a_path_that_leads_elsewhere_are_refused(model, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    assert open_artifact(copy).version == open_artifact(model).version
    schema = (copy / "schema.json").read_text()
    (copy / "schema.json").write_text(schema.replace("Bern", "Wien") + " ")
    with pytest.raises(UserError, match=r"schema\.json: damaged"):
        open_artifact(copy)
    (copy / "schema.json").write_text(schema)
    manifest = json.loads((copy / "manifest.json").read_text())
    for name in ("../x", "/etc/passwd", "a/../../x", "..\\x"):
        files = {**manifest["files"], name: "0"}
        (copy / "manifest.json").write_text(json.dumps({**manifest, "files": files}))
        with pytest.raises(UserError, match="does not lie in the folder"):
            open_artifact(copy)
    for damage in (b'{"format_version": 1}', b"\xff{}", b'{"format_version"'):
        (copy / "manifest.json").write_bytes(damage)
        with pytest.raises(UserError, match=r"manifest\.json: cannot be read: [^{]*; copy the fo"):
            open_artifact(copy)
    (copy / "manifest.json").write_text(json.dumps({**manifest, "format_version": 9}))
    with pytest.raises(UserError, match="format version 9"):
        open_artifact(copy)
    (copy / "metrics.json").unlink()
    (copy / "metrics.json").symlink_to(model / "metrics.json")
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="no plain file"):
        open_artifact(copy)
    with pytest.raises(UserError, match="no exported model"):
        open_artifact(tmp_path)
    (copy / "metrics.json").unlink()
    content = json.loads(schema)
    content["vocabularies"] = dict.fromkeys(content["vocabularies"], "../x.parquet")
    (copy / "schema.json").write_text(json.dumps(content))
    write_manifest(copy, {k: manifest[k] for k in manifest if k not in ("files", "version")})
    with pytest.raises(UserError, match=r"schema\.json: '../x.parquet' does not lie in the folder"):
        open_artifact(copy)


def test_machine_code_is_loaded_only_where_it_is_trusted(model, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    (copy / "model.pt2").rename(copy / "model.aoti.pt2")
    manifest = json.loads((copy / "manifest.json").read_text())
    facts = {k: v for k, v in manifest.items() if k not in ("files", "version")}
    write_manifest(copy, {**facts, "formats": ["aoti"]})
    with pytest.raises(UserError, match="machine code"):
        Scorer.load(copy)


def test_labelled_rows_are_read_as_those_of_the_training(tmp_path):
    schema = {"labels": ["y"], "delimiter": ";", "path": "train.csv"}
    dataset = {"schema": schema, "format": "csv", "delimiter": None, "quote": "'"}
    dataset |= {"decimal": ",", "on_bad_rows": "skip", "max_bad_rows": 7}
    given = ["dataset.max_bad_rows=9"]  # a word of one's own counts

    def read(name: str) -> dict[str, Any]:
        (tmp_path / name).touch()
        rows = [str(tmp_path / name)]
        return export_plan._compose_with_rows(given, dataset, rows).config["dataset"]

    own = read("rows.csv")
    assert (own["delimiter"], own["quote"], own["decimal"]) == (";", "'", ",")
    assert (own["on_bad_rows"], own["max_bad_rows"]) == ("skip", 9)
    assert own["schema"] == {"labels": ["y"]}
    other = read("rows.tsv")  # of another format, whose texts are written as usual
    assert (other["delimiter"], other["quote"], other["decimal"]) == (None, '"', None)
    assert (other["on_bad_rows"], other["max_bad_rows"]) == ("skip", 9)


def test_an_undefined_metric_on_both_sides_is_the_same():
    """Rows of one label have no AUC, in the run as in the exported model."""
    metrics = {"loss": 0.5, "auc": math.nan}
    formats = {"pt2": {"metrics": metrics | {}}}
    measured = {"evaluated": metrics, "formats": formats, "rows_from": [], "split": "test"}
    assert describe(measured) == [
        "pt2: test loss 0.500000 in the run, the same exported; "
        "auc nan in the run, the same exported"
    ]
