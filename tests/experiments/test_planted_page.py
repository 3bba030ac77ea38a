"""The page of planted models has the results of run directories; its experiments compose."""

from __future__ import annotations

import json

import pytest

from experiments import planted
from runner.config.compose import compose
from runner.config.composed_checks import check_composed
from runner.config.targets import ALLOWED_PACKAGES


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "model"),
    [(name, model) for name, models in planted.MODELS.items() for model in models],
)
def test_every_model_of_an_experiment_composes(name, model):
    composed = compose([f"experiments={name}", f"model={model}", *planted.MODELS[name][model]])
    check_composed(composed, ALLOWED_PACKAGES)
    assert composed.name == name


def write_run(folder, seed, auc, reachable, status="completed"):
    folder.mkdir(parents=True)
    metrics = {f"test/{k}": v for k, v in auc.items()} | {"validation/auc": 0.9}
    result = {"status": status, "metrics": metrics}
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "meta.json").write_text(json.dumps({"seed": seed}))
    data = {"reachable": {"test": {"log_loss": 0.4, **reachable}}}
    (folder / "data.json").write_text(json.dumps(data))


def test_the_page_has_the_share_of_the_reachable_gain_best_first(tmp_path):
    out, page = tmp_path / "out", tmp_path / "page.md"
    for seed, auc in enumerate((0.70, 0.74)):
        write_run(out / "planted_order" / "mlp" / str(seed), seed, {"auc": auc}, {"auc": 0.9})
    write_run(out / "planted_order" / "mlp" / "2", 2, {"auc": 0.5}, {"auc": 0.9}, "failed")
    write_run(out / "planted_order" / "sasrec" / "0", 0, {"auc": 0.86}, {"auc": 0.9})
    two = {"auc/label": 0.7, "auc/label_2": 0.6}
    best = {"auc/label": 0.75, "auc/label_2": 0.7, "log_loss/label": 0.3}
    write_run(out / "planted_tasks" / "ple" / "0", 0, two, best)
    assert planted.main(["--write-only", "--out", str(out), "--page", str(page)]) == 0
    text = page.read_text()
    order = text.split("## planted_order")[1].split("##")[0]
    rows = [line for line in order.splitlines() if line.startswith("| `")]
    assert rows == [
        "| `sasrec` | 0 | 0.8600 | 0.9000 | 90.0% |",
        "| `mlp` | 0, 1 | 0.7200 ± 0.0283 | 0.9000 | 55.0% |",
        "| `din` | none yet | not run |  |  |",
    ]
    assert "| `ple` | 0 | 0.6500 | 0.7250 | 65.0% |" in text
