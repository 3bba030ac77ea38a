"""A label with a log link, by its formulas, and by the two commands to the exported model."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.linear_model import TweedieRegressor
from sklearn.metrics import mean_tweedie_deviance, r2_score, roc_auc_score

from runner.batch import Schema, TaskSpec
from runner.data.columns.schema_file import parse_schema
from runner.data.proposal.columns.schema_hints import Hints
from runner.data.proposal.schema import propose_schema
from runner.errors import ConfigError
from runner.models.layers.recommender import MOST_LOG, exponentials
from runner.models.losses import ByKind, Tweedie
from runner.models.losses.protocol import tweedie_losses
from runner.serving import Scorer
from runner.training.health.linear_regression import deviances, fit_numbers, fit_tweedie_regression
from runner.training.health.logistic_regression import Columns
from tests.models.losses.test_losses import assert_rows, predicted
from tests.training.health.test_yardstick import ROWS, make_sample, with_numbers
from tests.whole.compare_runs import read_rows
from tests.whole.test_pairs import run_two_commands

SPEND = TaskSpec("spend", "regression", link="log")
MEANS, LABELS = [0.3, 2.0, 50.0, 1e4], [0.0, 2.0, 80.0, 3e3]


@pytest.mark.parametrize("power", [1, 1.2, 1.5, 1.9])
def test_the_loss_is_the_deviance_of_scikit_learn(power):
    m, y = (torch.tensor(values, dtype=torch.float64) for values in (MEANS, LABELS))
    found = tweedie_losses(m, y, power)
    expected = [mean_tweedie_deviance([y], [m], power=power) for m, y in zip(MEANS, LABELS)]
    assert_rows(found, expected)
    if power == 1.5:
        of_numpy = deviances(np.array(MEANS), np.array(LABELS), is_log=True)
        np.testing.assert_allclose(of_numpy, expected, rtol=1e-9)


def test_by_kind_takes_it_for_labels_with_the_link_alone():
    tasks = (TaskSpec("click"), SPEND, TaskSpec("stars", "regression"))
    schema = Schema((), (), tasks)
    rows = predicted([[0.0, 4.0, 3.0]], [[1.0, 9.0, 1.0]])
    found = ByKind(schema, weights={"spend": 0.5})(rows)
    assert_rows(torch.cat(list(found.values())), [np.log(2), 0.5 * 4 * (3 - 2) ** 2 / 2, 4.0])
    with pytest.raises(ValueError, match="'stars' has none: `stars: "):
        Tweedie(Schema((), (), tasks[1:]))


def test_predictions_are_exponentials_within_what_losses_can_take():
    x_BT = torch.tensor([[0.5, 1.0, -2.0], [0.5, 1e4, -1e4]], requires_grad=True)
    found_BT = exponentials(x_BT, {1: 0.0, 2: np.log(4)})
    expected = [[0.5, np.exp(1), 4 * np.exp(-2)], [0.5, np.exp(MOST_LOG), np.exp(-MOST_LOG)]]
    torch.testing.assert_close(found_BT, torch.tensor(expected).float(), rtol=1e-5, atol=0)
    tweedie_losses(found_BT[:, 1:], torch.tensor([[1e6, 0.0], [0.0, 1e6]])).sum().backward()
    assert x_BT.grad.isfinite().all()


def test_the_yardstick_is_the_regression_of_scikit_learn_in_any_unit():
    train, test = (with_numbers(make_sample(seed), noise=1) for seed in (1, 2))
    for sample in (train, test):
        sample.labels_NT[:] = np.exp(sample.labels_NT / sample.labels_NT.std())
    columns, l2 = Columns(train), 5.0
    x_NC, y_N = columns.matrix(train), train.labels_NT[:, 0]
    weights_N = np.ones(ROWS)
    other = TweedieRegressor(power=1.5, alpha=l2 / ROWS, link="log", max_iter=1000, tol=1e-7)
    other.fit(x_NC, y_N / y_N.mean())
    for unit in (1.0, 1e5):
        weights_C, intercept = fit_tweedie_regression(x_NC, y_N * unit, weights_N, l2)
        np.testing.assert_allclose(weights_C, other.coef_, atol=5e-3)
        assert intercept == pytest.approx(other.intercept_ + np.log(y_N.mean() * unit), abs=5e-3)
    chosen = fit_numbers(columns, train, test, [0], [0])
    [(weights_C, intercept)], l2 = chosen.fits, chosen.l2
    predicted_N = np.exp(columns.matrix(test) @ weights_C + intercept)
    assert l2 is not None and r2_score(test.labels_NT[:, 0], predicted_N) > 0.9


def test_labels_that_are_all_0_have_their_mean():
    train, test = make_sample(1), make_sample(2)
    train.labels_NT[:] = test.labels_NT[:] = 0
    chosen = fit_numbers(Columns(train), train, test, [0], [0])
    [(weights_C, intercept)], l2 = chosen.fits, chosen.l2
    assert l2 is None and not weights_C.any() and np.exp(intercept) < 1e-9


def draw_spending(num_rows: int) -> dict[str, np.ndarray]:
    """Draw what users spend on items: three factors, and noise with the same share of each mean."""
    rng = np.random.default_rng(1)
    users, items, x = (
        rng.integers(0, 90, num_rows),
        rng.integers(0, 60, num_rows),
        rng.normal(size=num_rows),
    )
    log_mean = 4 + 0.8 * rng.normal(size=90)[users] + 0.8 * rng.normal(size=60)[items] + 0.5 * x
    spent = np.exp(log_mean) * rng.gamma(3, 1 / 3, num_rows)
    return {
        "user_id": users,
        "item_id": items,
        "x": x,
        "spend": spent,
        "expected": np.exp(log_mean),
    }


RANDOM = np.random.default_rng(2)


@pytest.mark.parametrize(
    ("change", "link"),
    [
        (lambda spend, expected: spend, "log"),
        (lambda spend, expected: RANDOM.poisson(expected / 10), "log"),
        (lambda spend, expected: spend * (RANDOM.random(4000) < 0.6), "log"),  # many zeros
        (lambda spend, expected: np.log(expected) + RANDOM.normal(size=4000), None),
        (lambda spend, expected: 1e5 - spend, None),
        (lambda spend, expected: RANDOM.permutation(spend), None),  # of which nothing tells
    ],
)
def test_schema_proposes_it_where_factors_predict_amounts(change, link, tmp_path):
    columns = draw_spending(4000)
    columns["spend"] = change(columns["spend"], columns.pop("expected"))
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    hints = Hints(labels=("spend",), task="regression")
    proposal = propose_schema(str(tmp_path / "rows.parquet"), hints=hints)
    [(_, role)] = proposal.with_role("labels")
    assert role.settings.get("link") == link
    assert any("spend: a few of its numbers" in note for note in proposal.notes) == bool(link)


@pytest.mark.parametrize("link", ["log", None])
def test_factors_of_many_ids_of_few_rows_are_found(link, tmp_path):
    """As of users and artists of Last.fm: learnt by heart, their exponentials are far off."""
    rng = np.random.default_rng(0)
    user, artist = rng.integers(0, 3000, 8000), rng.integers(0, 100, 8000)
    effect = rng.normal(size=3000)[user] + rng.normal(size=100)[artist]
    if link:
        plays = np.exp(0.5 * effect + rng.normal(0, 0.7, 8000))
    else:
        plays = np.maximum(0, 10 + 1.5 * effect + rng.exponential(4, 8000) ** 1.5)
    columns = {"user": user, "artist": artist, "plays": plays}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    proposal = propose_schema(str(tmp_path / "rows.parquet"), hints=Hints(labels=("plays",)))
    [(_, role)] = proposal.with_role("labels")
    assert role.settings["type"] == "regression" and role.settings.get("link") == link


@pytest.mark.long
def test_factors_are_learnt_and_means_are_served_as_they_were_evaluated(tmp_path, runner):
    columns = draw_spending(20_000)
    expected = columns.pop("expected")
    command, metrics, yardstick = run_two_commands(runner, tmp_path, columns, "spend")
    assert not any(word.startswith("model.net.scale") for word in command)
    text = (tmp_path / "s.yaml").read_text()
    assert '"spend": {type: "regression", link: "log", scale: ' in text
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["yardstick"]["name"] == "Tweedie regression"
    assert next(k for k in yardstick if k.startswith("test/")) == "test/mae"  # it is judged by it
    assert metrics["test/mae"] <= 1.01 * yardstick["test/mae"]
    first = read_rows(tmp_path / "run", "validation")[0]
    assert first["step"] == 0
    assert first["r2"] == pytest.approx(yardstick["validation/r2"], abs=1e-2)

    env = {"RUNNER_CACHE": str(tmp_path / "cache")}
    words = ("export", str(tmp_path / "run"), "--out", str(tmp_path / "model"))
    assert "the same exported" in runner.run(*words, env=env).check().text
    out, rows = tmp_path / "scores.parquet", tmp_path / "rows.parquet"
    runner.run("predict", str(tmp_path / "run"), str(rows), "--out", str(out), env=env).check()
    score_R = pq.read_table(out)["score_spend"].to_numpy()
    assert r2_score(np.log(expected), np.log(score_R)) > 0.97
    assert score_R.min() > 0 and score_R.mean() == pytest.approx(columns["spend"].mean(), rel=0.03)
    scorer = Scorer.load(tmp_path / "model")
    served = scorer.score({n: c[:50] for n, c in columns.items() if n != "spend"})
    np.testing.assert_allclose(served["spend"], score_R[:50], rtol=1e-5)


@pytest.mark.long
def test_a_click_and_an_amount_are_learnt_and_served_together(tmp_path, runner):
    columns = draw_spending(20_000)
    expected = columns.pop("expected")
    chance = 1 / (1 + np.exp(4 - np.log(expected)))  # who spends more clicks more often
    columns["click"] = (np.random.default_rng(3).random(20_000) < chance).astype(int)
    _, metrics, yardstick = run_two_commands(runner, tmp_path, columns, "click,spend")
    assert metrics["test/auc/click"] >= yardstick["test/auc/click"] - 0.002
    assert metrics["test/r2/spend"] > 0.5
    env = {"RUNNER_CACHE": str(tmp_path / "cache")}
    words = ("export", str(tmp_path / "run"), "--out", str(tmp_path / "model"))
    assert "the same exported" in runner.run(*words, env=env).check().text
    rows = {n: c[:2000] for n, c in columns.items() if n not in ("click", "spend")}
    served = Scorer.load(tmp_path / "model").score(rows)
    assert roc_auc_score(columns["click"][:2000], served["click"]) > 0.75
    assert r2_score(np.log(expected[:2000]), np.log(served["spend"])) > 0.95


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ({"link": "log"}, "link=log: is for `type: regression` of numbers from 0 on"),
        ({"type": "regression", "grades": ["a", "b"], "link": "log"}, "link=log"),
        ({"type": "regression", "scale": 4}, "scale=4: is for a label with `link: log`"),
        ({"type": "regression", "link": "log", "scale": 0}, "scale=0.0: must be above 0"),
        ({"type": "regression", "link": "logit"}, "link='logit': expected one of log"),
    ],
)
def test_a_wrong_link_is_told(label, told):
    with pytest.raises(ConfigError) as error:
        parse_schema({"labels": {"spend": label}, "numeric": ["x"]}, "s.yaml")
    assert told in str(error.value)


def test_a_label_below_0_is_named_with_its_row(tmp_path, runner):
    pq.write_table(
        pa.table({"x": [1] * 300, "spend": [1.0] * 299 + [-4.0]}), tmp_path / "x.parquet"
    )
    for name, ids in (("read", "num_rows: 9"), ("encoded", "encode: vocabulary")):
        path = tmp_path / f"{name}.yaml"
        label = "labels: {spend: {type: regression, link: log}}"
        split = "split: {random: {train: 0.8, validation: 0.2}}"
        path.write_text(f"{label}\ncategorical: {{x: {{{ids}}}}}\n{split}\n")
        words = ("dataset=parquet", f"dataset.path={tmp_path}/x.parquet", f"dataset.schema={path}")
        run = f"hydra.run.dir={tmp_path}/{name}"
        shown = runner.run(*words, "model=mlp", "model/loss=tweedie", run).text
        assert "x.parquet" in shown and "'spend'" in shown and "-4" in shown
        assert "allowed is a finite number from 0 on, as `link: log` needs" in shown


def test_the_loss_needs_the_link_before_anything_begins(tmp_path, runner):
    pq.write_table(pa.table({"x": [0.5] * 300, "spend": [1.0] * 300}), tmp_path / "x.parquet")
    (tmp_path / "s.yaml").write_text("labels: {spend: {type: regression}}\nnumeric: [x]\n")
    words = ("dataset=parquet", f"dataset.path={tmp_path}/x.parquet")
    words += (f"dataset.schema={tmp_path}/s.yaml", "model=mlp", "model/loss=tweedie")
    done = runner.run(*words, f"hydra.run.dir={tmp_path}/run")
    assert (
        done.code == 2 and "model.loss: Tweedie: loss Tweedie needs labels with a log" in done.text
    )
    assert not (tmp_path / "run").exists()
