"""A label of several classes, by the two commands, to predictions and the exported model."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from runner.cli.schema import schema
from runner.data.columns.schema_file import parse_schema
from runner.errors import ConfigError, UserError
from tests.whole.test_pairs import run_two_commands

NAMES = np.array(["buy", "cart", "view"])


def draw_actions(seed: int, num_rows: int) -> dict[str, np.ndarray]:
    """Draw rows whose action depends on users, items, and which users like which items."""
    rng, effects = np.random.default_rng(seed), np.random.default_rng(0)
    users, items, x = (
        rng.integers(0, 90, num_rows),
        rng.integers(0, 60, num_rows),
        rng.normal(size=num_rows),
    )
    logits = effects.normal(size=(90, 3))[users] + effects.normal(size=(60, 3))[items]
    of_users, of_items = effects.normal(size=(90, 2)), effects.normal(size=(60, 2, 3))
    logits = 0.5 * logits + 1.2 * np.einsum("rd,rdk->rk", of_users[users], of_items[items])
    logits[:, 0] += x
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    classes = (chances.cumsum(1) > rng.random((num_rows, 1))).argmax(1)
    return {"user_id": users, "item_id": items, "x": x, "action": NAMES[classes]}


@pytest.mark.long
def test_classes_are_learnt_and_served_as_they_were_evaluated(tmp_path, runner):
    columns = draw_actions(1, 20_000)
    command, metrics, yardstick = run_two_commands(runner, tmp_path, columns, "action")
    assert {"model.net.pairs=true", "optimizer.sparse.l2_lookups=0.007"} <= set(command)
    assert '"action": {classes: ["buy", "cart", "view"]}' in (tmp_path / "s.yaml").read_text()
    assert metrics["test/log_loss"] == metrics["test/log_loss/action"]
    assert metrics["test/log_loss"] < 0.95 * yardstick["test/log_loss"]
    assert metrics["test/auc"] > yardstick["test/auc"] + 0.03
    assert metrics["test/accuracy/action"] > 0.5

    env = {"RUNNER_CACHE": str(tmp_path / "cache")}
    words = ("export", str(tmp_path / "run"), "--out", str(tmp_path / "model"))
    assert "the same exported" in runner.run(*words, env=env).check().text
    out = tmp_path / "scores.parquet"
    rows = str(tmp_path / "rows.parquet")
    words = ("predict", str(tmp_path / "run"), rows, "--out", str(out), "--keep", "action")
    runner.run(*words, env=env).check()
    scores = pq.read_table(out)
    assert scores.column_names == ["action", *(f"score_action.{n}" for n in NAMES), "class_action"]
    score_RK = np.column_stack([scores[f"score_action.{name}"] for name in NAMES])
    np.testing.assert_allclose(score_RK.sum(1), 1, atol=1e-6)
    assert (NAMES[score_RK.argmax(1)] == scores["class_action"].to_pylist()).all()
    assert np.mean(columns["action"] == scores["class_action"].to_pylist()) > 0.5


@pytest.mark.long
def test_an_update_of_classes_resumes_to_the_bit(tmp_path, runner):
    """The first of two runs ends after four updates and goes on; metrics and weights are equal."""
    pacsv.write_csv(pa.table(draw_actions(2, 2000)), tmp_path / "x.csv")
    assert (
        schema(
            [str(tmp_path / "x.csv"), "--label", "action", "--out", str(tmp_path / "s.yaml")], ()
        )
        == 0
    )
    env = {"RUNNER_CACHE": str(tmp_path / "cache")}
    words = (
        "dataset=csv",
        f"dataset.schema={tmp_path}/s.yaml",
        "model=deepfm",
        "trainer.batch_size=200",
    )
    words += ("trainer.num_threads=1", "checkpoint.save_every=4", "trainer.log_every=2")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    runner.run(*words, "trainer.max_steps=8", f"hydra.run.dir={whole}", env=env).check()
    runner.run(*words, "trainer.max_steps=4", f"hydra.run.dir={parts}", env=env).check()
    runner.run("resume", str(parts), "trainer.max_steps=8", env=env).check()
    rows = [(run / "metrics.jsonl").read_text().splitlines()[-1] for run in (whole, parts)]
    assert rows[0] == rows[1]


def parse(**label):
    return parse_schema({"labels": {"action": label}, "numeric": ["x"]}, "s.yaml")


def test_each_class_is_a_task_in_the_order_of_the_declaration():
    labels = parse(classes=["view", "buy", 3], column="what").labels
    assert [label.name for label in labels] == ["action.view", "action.buy", "action.3"]
    assert {(label.column, label.one_of) for label in labels} == {("what", "action")}


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ({"classes": ["a"]}, "classes"),
        ({"classes": ["a", "a "]}, "names each value once"),
        ({"classes": ["a", "b"], "default": 0}, "without other settings than `column`"),
        ({"classes": ["a", "b"], "positive": ["a"]}, "without other settings than `column`"),
        ({"classes": ["a", 1.5]}, "expected a list of texts"),
        ({"clases": ["a", "b"]}, "nearest: 'classes'"),
        ({"one_of": "b"}, "one_of"),
    ],
)
def test_a_wrong_declaration_of_classes_is_told(label, told):
    with pytest.raises(ConfigError, match=r"labels\.action") as error:
        parse(**label)
    assert told in str(error.value)


def test_a_value_that_is_no_class_is_named_with_its_row(tmp_path, runner):
    rows = "".join(f"{n % 7},{'abc'[n % 3]}\n" for n in range(300))
    (tmp_path / "x.csv").write_text(f"x,kind\n{rows}1,d\n")
    (tmp_path / "s.yaml").write_text("labels: {kind: {classes: [a, b, c]}}\nnumeric: [x]\n")
    words = ("dataset=csv", f"dataset.path={tmp_path}/x.csv", f"dataset.schema={tmp_path}/s.yaml")
    shown = runner.run(*words, "model=mlp", f"hydra.run.dir={tmp_path}/run").text
    assert "x.csv" in shown
    assert "column 'kind': value 'd': classes are a, b, c" in shown


@pytest.mark.parametrize("value", [("--task", "classes"), ()])
def test_schema_takes_numbers_for_classes_if_it_is_told_so(value, tmp_path, capsys):
    rows = "".join(f"{n * 7 % 9},{n % 4 + 1}\n" for n in range(400))
    (tmp_path / "x.csv").write_text(f"user,segment_id\n{rows}")
    assert schema([str(tmp_path / "x.csv"), "--label", "segment_id", *value], ()) == 0
    shown = capsys.readouterr()
    if value:
        assert '"segment_id": {classes: ["1", "2", "3", "4"]}' in shown.out
    else:
        assert "--task classes takes its 4 values for classes without an order" in shown.err


def test_numbers_with_fractions_are_no_classes(tmp_path):
    rows = "".join(f"{n % 9},{n / 7}\n" for n in range(50))
    (tmp_path / "x.csv").write_text(f"user,y\n{rows}")
    with pytest.raises(UserError, match="--task classes: y has 50 values of type double; classes"):
        schema([str(tmp_path / "x.csv"), "--label", "y", "--task", "classes"], ())


def test_what_was_measured_is_in_the_result_file(tmp_path, runner):
    pq.write_table(pa.table(draw_actions(3, 3000)), tmp_path / "rows.parquet")
    text = "labels: {action: {classes: [buy, cart, view]}}\ncategorical:\n"
    text += "  user_id: {encode: vocabulary}\n  item_id: {encode: vocabulary}\n"
    (tmp_path / "s.yaml").write_text(
        text + "split: {random: {train: 0.6, validation: 0.2, test: 0.2}}\n"
    )
    words = ("dataset=parquet", f"dataset.path={tmp_path}/rows.parquet", "trainer.max_steps=3")
    words += (f"dataset.schema={tmp_path}/s.yaml", f"hydra.run.dir={tmp_path}/run")
    words += (
        "metrics.eval=[accuracy,auc/action.buy]",
        "model/loss=by_kind",
    )
    runner.run(*words, env={"RUNNER_CACHE": str(tmp_path / "cache")}).check()
    metrics = json.loads((tmp_path / "run/result.json").read_text())["metrics"]
    found = {key for key in metrics if key.startswith("test/")}
    assert found == {
        "test/loss",
        "test/accuracy/action",
        "test/accuracy",
        "test/auc/action.buy",
        "test/auc",
    }
