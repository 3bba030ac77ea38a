"""The importance of features: against hand calculations, on planted data, and as a verb."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

import runner as public
from runner.batch import TaskSpec
from runner.config.compose import compose_job
from runner.config.targets import allowed_packages
from runner.models.layers.embedding import count_equal_columns
from runner.models.losses import BCE
from runner.reporting.console import View
from runner.training.builder import build_job
from runner.training.feature_importance import (
    Cut,
    find_cut_features,
    first_order_effects,
    permuted_rows,
)
from runner.training.state import restore_weights
from tests.models.scene import TWO_TASKS, make_model
from tests.models.scene import batch_of as tiny_batch
from tests.serving.export.test_graphs import NAMES, NEXT_ITEM, batch_of, model_of
from tests.tiny import make_context
from tests.tiny_job import Rows as TinyRows
from tests.tiny_job import make_job
from tests.whole.test_items import FULL, SETTINGS, beauty  # noqa: F401  (a fixture)

USEFUL = ("strong", "number", "words")
USELESS = ("noise", "zero", "any")
SCHEMA = {
    "labels": {"click": {}},
    "numeric": ["number", "zero"],
    "categorical": {
        "strong": {"num_rows": 20},
        "noise": {"encode": "vocabulary"},
        "words": {"separator": "|", "num_rows": 12},
        "any": {"separator": "|", "num_rows": 12},
    },
    "path": "train.parquet",
    "validation_path": "validation.parquet",
}


def planted(num_rows: int, seed: int) -> pa.Table:
    """Three features of which the label is made, and three of which it is not."""
    random = np.random.default_rng(seed)
    strong, noise = random.integers(0, 20, (2, num_rows))
    number, zero = random.normal(size=(2, num_rows))
    words = [random.integers(0, 12, n) for n in random.integers(1, 4, num_rows)]
    anything = [random.integers(0, 12, n) for n in random.integers(1, 4, num_rows)]
    taste = np.array([(w % 2 * 2 - 1).mean() for w in words])
    logit = 1.2 * (strong % 3 - 1) + 0.8 * number + 0.6 * taste
    return pa.table(
        {
            "click": (random.random(num_rows) < 1 / (1 + np.exp(-logit))).astype(np.int8),
            "number": number,
            "zero": zero,
            "strong": strong,
            "noise": noise,
            "words": ["|".join(map(str, w)) for w in words],
            "any": ["|".join(map(str, w)) for w in anything],
        }
    )


@pytest.fixture(scope="module")
def run(runner, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    for seed, (name, rows) in enumerate((("train", 6000), ("validation", 1500))):
        pq.write_table(planted(rows, seed), folder / f"{name}.parquet")
    (folder / "planted.yaml").write_text(yaml.safe_dump(SCHEMA))
    runner.run(
        *("dataset=parquet", f"dataset.schema={folder / 'planted.yaml'}", "model=deepfm"),
        *("model.net.embedding_dim=4", "model.net.deep=[16]", "optimizer.sparse.lr=0.1"),
        *("trainer.max_epochs=4", "trainer.batch_size=64", "trainer.num_threads=1"),
        f"hydra.run.dir={folder / 'run'}",
    ).check()
    return folder / "run"


@pytest.fixture(scope="module")
def facts(runner, run) -> dict:
    done = runner.run("importance", str(run)).check()
    assert "rank correlation of first_order and permuted" in done.text
    return json.loads((run / "importance.json").read_text())


def column(facts: dict, name: str) -> dict[str, float]:
    return {feature["name"]: feature[name] for feature in facts["features"]}


@pytest.mark.long
@pytest.mark.parity("E19")
def test_useless_columns_come_last_by_every_measure(facts):
    assert facts["split"] == "validation" and facts["rows"] == 1500 and facts["metric"] == "auc"
    for name in ("first_order", "at_mean", "permuted"):
        values = column(facts, name)
        assert max(values[n] for n in USELESS) < min(values[n] for n in USEFUL), name
        assert max(values, key=lambda n: values[n]) == "strong"
    order = list(column(facts, "first_order").values())
    assert order == sorted(order, reverse=True)
    one, two = column(facts, "first_order"), column(facts, "permuted")
    correlation = spearmanr(list(one.values()), list(two.values())).statistic
    assert facts["rank_correlation"]["first_order, permuted"] == pytest.approx(correlation)


@pytest.mark.long
def test_a_permuted_column_loses_what_predictions_of_the_permuted_file_lose(run, facts):
    rows = pq.read_table(run.parent / "validation.parquet")
    trained, labels = public.load(run), rows["click"].to_numpy()
    base = roc_auc_score(labels, trained.predict(rows)["score_click"].to_numpy())
    assert facts["value"] == pytest.approx(base, abs=1e-7)
    seed = trained.config["seed"]
    for name in ("strong", "number", "words", "any"):
        order = permuted_rows(len(labels), name, seed)
        place = rows.column_names.index(name)
        changed = rows.set_column(place, name, rows[name].take(pa.array(order)))
        auc = roc_auc_score(labels, trained.predict(changed)["score_click"].to_numpy())
        assert column(facts, "permuted")[name] == pytest.approx(base - auc, abs=1e-6), name


@pytest.mark.long
def test_a_metric_of_ones_own_loses_in_the_direction_of_the_monitor(runner, run, facts, tmp_path):
    target = tmp_path / "importance.json"
    runner.run(
        *("importance", str(run), "--method", "permutation", "--json", str(target)),
        "+metrics.own.my_auc={_target_: torchmetrics.classification.BinaryAUROC}",
        "checkpoint.monitor.metric=validation/my_auc",
    ).check()
    own = json.loads(target.read_text())
    assert own["metric"] == "my_auc"
    assert column(own, "permuted") == pytest.approx(column(facts, "permuted"), abs=1e-5)


@pytest.fixture(scope="module")
def job(run):
    config = compose_job(["loop=eval", f"run={run}", "trainer.num_threads=1"]).config
    job = build_job(config, None, view=View(), allowed=allowed_packages(()))
    restore_weights(job.context, job.source_checkpoint)
    job.context.model.eval()
    return job


def test_first_order_effects_are_the_slopes_of_the_loss_towards_the_mean(job, facts):
    """Each row's loss a small step towards the mean, by finite differences in double precision."""
    cut = Cut.of(job, "validation", 1500)
    features = find_cut_features(job.context.model, job.dataset.schema)
    effects = first_order_effects(job, cut, features)
    assert effects == pytest.approx([column(facts, "first_order")[f.name] for f in features])
    step = 1e-2

    def loss(part: Cut) -> torch.Tensor:
        with torch.no_grad():
            prediction = job.context.model.dense(part.embeddings, part.batch)
        logits, labels = prediction.logits_BT.double(), prediction.labels_BT.double()
        binary = torch.nn.functional.binary_cross_entropy_with_logits
        return binary(logits, labels, reduction="none")[:, 0]

    for feature, effect in zip(features, effects):
        values = cut.values(feature)
        mean = values.mean(0)
        ends = [
            loss(cut._with_values(feature, values + sign * step * (mean - values)))
            for sign in (-1, 1)
        ]
        slopes = (ends[1] - ends[0]) / (2 * step)
        assert effect == pytest.approx(float(slopes.abs().mean()), rel=0.02, abs=2e-5), feature


@pytest.mark.parametrize("stem", NAMES)
def test_the_columns_of_a_feature_are_those_that_its_ids_change(stem):
    model, schema = model_of(stem)
    batch = batch_of(schema, 17)
    features = {f.name: f for f in find_cut_features(model, schema)}
    items = {"item"} if stem in (*NEXT_ITEM, "two_tower") else set()
    names = [f.name for f in (*schema.sparse, *schema.sequences)]
    unread = {"m"} if stem in NEXT_ITEM else set()
    assert features.keys() | items | unread == {*schema.dense, *names}
    with torch.no_grad():
        before = Cut(batch, model.embed(batch), "test")
    for number, sparse in enumerate(schema.sparse):
        if sparse.name in items | unread:
            continue
        counts = batch.sparse.length_per_key()
        values = batch.sparse.values().clone()
        start = sum(counts[:number])
        end = start + counts[number]
        values[start:end] = (values[start:end] + 1) % sparse.num_rows
        other = type(batch.sparse)(
            batch.sparse.keys(), values, lengths=batch.sparse.lengths(), weights=None
        )
        with torch.no_grad():
            after = Cut(batch, model.embed(replace(batch, sparse=other)), "test")
        differ = (before.embeddings.pooled_BE != after.embeddings.pooled_BE).any(0)
        found = differ.nonzero()[:, 0].tolist()
        linear = [c for c in features[sparse.name].columns if c not in found]
        # first-order tables begin at zero, so they do not differ in a model that was not trained
        assert set(found) <= set(features[sparse.name].columns), sparse.name
        assert len(linear) in (0, 4) and found


@pytest.mark.parametrize("num_tasks", [1, 2, 3])
def test_the_effect_of_a_first_order_weight_is_its_own_for_each_task(num_tasks):
    """The model is its first-order term; a loss moves by slope x (mean - weight) of each task."""
    schema = replace(TWO_TASKS, tasks=tuple(TaskSpec(f"t{n}") for n in range(num_tasks)))
    model = make_model("wide_and_deep", schema, linear_weights="own")
    context = make_context(model=model, loss=BCE(schema))
    for parameter in model.parameters():
        parameter.data.zero_()
    batch, equal = tiny_batch(schema, 32), count_equal_columns(num_tasks)
    weight_RT = torch.randn(50, num_tasks, generator=torch.Generator().manual_seed(2))
    table = context.tables.state()["a:linear/weight"]
    assert len(table) == len(weight_RT)
    table.copy_(weight_RT.repeat_interleave(equal, dim=1))
    job = make_job(context, dataset=TinyRows(schema=schema))
    with torch.no_grad():
        cut = Cut(batch, model.embed(batch), "train")
    features = find_cut_features(model, schema)
    effects = dict(zip((f.name for f in features), first_order_effects(job, cut, features)))
    own_BT = weight_RT[batch.sparse["a"].values()]
    share_B = batch.weights_B / batch.weights_B.sum()
    slope_BT = own_BT.sigmoid() - batch.labels_BT
    effect_B = (slope_BT * (share_B @ own_BT - own_BT)).sum(1).abs()
    assert effects["a"] == pytest.approx(float(effect_B @ share_B), rel=1e-4)
    assert effects["b"] == effects["m"] == 0


@pytest.mark.long
@pytest.mark.parametrize("net", ["sasrec", "din"])
def test_sequences_have_an_importance(runner, beauty, tmp_path, net):  # noqa: F811
    more = ("model.net.uniform=9", *FULL) if net == "sasrec" else ()
    words = (*SETTINGS, beauty, f"model={net}", *more, "report=false", "optimizer.sparse.lr=0.5")
    run = tmp_path / "run"
    runner.run(*words, f"hydra.run.dir={run}", "trainer.max_steps=40").check()
    target = tmp_path / "importance.json"
    runner.run("importance", str(run), "--json", str(target), "--rows", "80").check()
    facts = json.loads(target.read_text())
    [history] = [f for f in facts["features"] if f["name"] == "history"]
    assert history["kind"] == "sequence" and history["first_order"] > 0
    assert history["at_mean"] != 0 and history["permuted"] != 0
    assert ("item" in column(facts, "permuted")) == (net == "din")
    assert not (run / "importance.json").exists()


@pytest.mark.long
def test_the_kept_yaml_declares_the_best_columns_and_trains(runner, run, facts, tmp_path):
    out = tmp_path / "kept.yaml"
    words = ("importance", str(run), "--method", "permutation", "--keep", "3", "--out", str(out))
    runner.run(*words, "--json", str(tmp_path / "x.json")).check()
    kept = yaml.safe_load(out.read_text())
    assert {*kept["numeric"], *kept["categorical"]} == set(USEFUL)
    assert kept["categorical"]["words"] == SCHEMA["categorical"]["words"]
    assert kept["labels"] == SCHEMA["labels"]
    own = tmp_path / "run"
    runner.run(
        *("dataset=parquet", f"dataset.schema={out}", f"hydra.run.dir={own}", "report=false"),
        *("trainer.max_steps=5", "trainer.num_threads=1", "trainer.batch_size=64"),
    ).check()
    assert len(json.loads((own / "data.json").read_text())["sparse"]) == 2


def test_the_report_of_the_run_shows_the_bars(run, facts):
    page = (run / "report.html").read_text()
    assert "Importance of features" in page and "auc lost if permuted" in page


@pytest.mark.long
def test_data_that_have_changed_since_the_training_are_told(runner, run, tmp_path):
    path = run.parent / "validation.parquet"
    before = path.read_bytes()
    pq.write_table(planted(1500, 7), path)
    words = ("--method", "shark", "--json", str(tmp_path / "facts.json"))
    said = runner.run("importance", str(run), *words)
    path.write_bytes(before)
    assert said.code == 0 and "have changed since the run was trained on them" in said.text
    assert "have changed since" not in runner.run("importance", str(run), *words).text


@pytest.mark.long
def test_the_folder_of_a_run_may_have_signs_of_the_grammar_in_its_name(runner, run, tmp_path):
    shutil.copytree(run, folder := tmp_path / "lr=0.1 (é)")
    done = runner.run("importance", str(folder), "--method", "shark")
    assert done.code == 0 and (folder / "importance.json").exists(), done.text


@pytest.mark.long
def test_mistakes_are_told_before_anything_is_measured(runner, run, tmp_path):
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.touch()
    for words, message in (
        (("--method", "sharc"), "nearest: 'shark'"),
        (("--keep", "2"), "go together"),
        (("--keep", "7", "--out", "x.yaml"), "there are 6 features"),
        (("--keep", "2", "--out", str(run)), "exists already"),
        (("--keep", "2", "--out", str(pipe)), f"--out {pipe}: is a pipe or a device; nothing was"),
        (
            ("--keep", "2", "--out", f"{file}/new/k.yaml"),
            f"{file} is no folder that can be written",
        ),
        (("--json", str(pipe)), f"--json {pipe}: is a pipe, not a regular file; name another file"),
        (("--rows", "1"), "at least 2"),
        (("--json", "missing/x.json"), "missing/x.json: cannot be written; --json FILE"),
        (("loop.split=test",), "loop.split=test"),
        (("--kep", "2"), "nearest: '--keep'"),
    ):
        done = runner.run("importance", str(run), *words)
        assert done.code == 2 and message in done.text, (words, done.text)
        assert "first_order" not in done.text
    runner.run("importance").check(2)
