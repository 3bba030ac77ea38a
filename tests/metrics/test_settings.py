"""Names of metrics are checked before torch is imported."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from runner.batch import Prediction, TaskSpec
from runner.errors import ConfigError
from runner.metrics import MetricSet
from runner.metrics.names import METRICS
from runner.metrics.result_keys import result_keys
from runner.metrics.settings import MetricSettings, find_group_column
from tests.conftest import python

CONF = Path(__file__).parents[2] / "conf" / "metrics"


@pytest.mark.parametrize("key", ["eval", "train"])
def test_an_unknown_name_is_refused_with_the_nearest_one(key):
    names = {"eval": ["auc"], "train": ["auc"]} | {key: ["auc", "logloss"]}
    with pytest.raises(ConfigError, match=rf"metrics\.{key}: .*'logloss'; nearest: 'log_loss'"):
        MetricSettings(**names)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"eval": "auc"}, "must be a list"),
        ({"eval": ["loss"]}, "always measured"),
        (
            {"eval": [3]},
            "metrics.eval: 3 is not the name of a metric; write names, such as",
        ),
        ({"train": ["gauc"]}, "metrics.eval"),
        ({"exact_auroc_rows": -1}, "exact_auroc_rows=-1"),
    ],
)
def test_other_mistakes_name_key_and_rule(values, message):
    with pytest.raises(ConfigError, match=message):
        MetricSettings(**({"eval": [], "train": []} | values))


def test_grouped_metrics_need_a_group_column():
    settings = MetricSettings(eval=["gauc"], train=[])
    with pytest.raises(ConfigError, match="needs a group column"):
        find_group_column(settings, [])
    assert find_group_column(settings, ["user", "item"]) == 0
    named = MetricSettings(eval=["gauc"], train=[], group="item")
    assert find_group_column(named, ["user", "item"]) == 1
    with pytest.raises(ConfigError, match="nearest: 'item'"):
        find_group_column(MetricSettings(eval=[], train=[], group="itme"), ["user", "item"])


def test_the_default_file_holds_good_settings():
    settings = MetricSettings(**OmegaConf.to_container(OmegaConf.load(CONF / "default.yaml")))
    assert set(settings.eval) <= set(METRICS)
    assert find_group_column(settings, []) is None


@pytest.mark.parametrize("num_tasks", [1, 2])
def test_result_keys_are_what_a_metric_set_computes(num_tasks):
    settings = MetricSettings(eval=["auc", "log_loss", "mae"], train=[])
    tasks = [TaskSpec("click"), TaskSpec("rating", "regression")][:num_tasks]
    metrics = MetricSet(tasks, exact=True, device=torch.device("cpu"), settings=settings)
    zeros = torch.zeros(2, num_tasks)
    metrics.update(
        Prediction(zeros, zeros, torch.ones(2), torch.zeros(2, 0, dtype=torch.int64)),
        {"click": torch.zeros(2)},
    )
    assert list(metrics.compute()) == metrics.names() == result_keys(settings.eval, tasks)


def test_settings_import_no_torch():
    code = "import sys, runner.metrics.settings; sys.exit('torch' in sys.modules)"
    assert python("-c", code).returncode == 0
