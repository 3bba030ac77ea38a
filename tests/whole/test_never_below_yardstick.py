"""Two commands on a table, with no setting touched, end no worse than logistic regression.

`schema` and the command that it prints run on the tables of `tests.data.shapes`, whose labels
follow a logistic model: nothing can beat logistic regression there by much, and whoever falls
behind has lost something. The judge is scikit-learn's, with its defaults, on the same split.

A table may fall TOLERANCE behind, plus what 500 to 1,000 test rows cannot tell: the standard error
of an AUC there is 0.02, that of the difference of two models with nearly equal predictions about a
fifth of that. On the mean over all tables, where this evens out, TOLERANCE alone holds.

    python -m tests.whole.test_never_below_yardstick     # prints the table of all
"""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from runner.__main__ import main
from runner.data.tabular.table import TableRecipe, open_table
from tests.conftest import ROOT
from tests.data.shapes import SHAPES, make

ROWS = 5000
TOLERANCE = 0.002
NOISE = 0.004  # of the difference of two AUCs on one test split, see above
CRITEO = ROOT.parent / "shared" / "data" / "criteo10k" / "train.txt"


def command(*words: str) -> str:
    """Run a command line in this process and return what it printed."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = main(list(words))
    assert code == 0, out.getvalue()
    return out.getvalue()


def run_two_commands(path: str, flags: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """Return the test AUC of the run and that of scikit-learn's logistic regression."""
    yaml = folder / "schema.yaml"
    said = command("schema", path, *flags, "--out", str(yaml))
    words = shlex.split(said.strip().splitlines()[-1].partition("next: python -m runner ")[2])
    quiet = ("report=false", "trainer.num_threads=1", "trainer.yardstick=false")
    command(*words, *quiet, f"hydra.run.dir={folder / 'run'}")
    metrics = json.loads((folder / "run" / "result.json").read_text())["metrics"]
    format_ = words[0].partition("=")[2]
    return metrics["test/auc"], judge(format_, yaml)


def judge(format_: str, yaml: Path) -> float:
    """Return the test AUC of scikit-learn on the rows that the run has seen, mean over tasks."""
    recipe = TableRecipe(format=format_, path=None, schema=str(yaml))
    data = open_table(recipe, window_rows=1 << 17, prefetch=0)
    rows = {}
    for split in ("train", "test"):
        (batch,) = data.batches(split, batch_size=1 << 20)
        lengths_FB = batch.sparse.lengths().numpy().reshape(len(data.schema.sparse), -1)
        offsets_F = np.cumsum([0, *(f.num_rows for f in data.schema.sparse)])
        rows_V = np.concatenate([np.repeat(np.arange(batch.size), n_B) for n_B in lengths_FB])
        ids_V = batch.sparse.values().numpy() + np.repeat(offsets_F[:-1], lengths_FB.sum(1))
        shape = (batch.size, int(offsets_F[-1]))
        ids = sp.csr_matrix((np.ones(len(ids_V)), (rows_V, ids_V)), shape=shape)
        rows[split] = ids, batch.dense_BD.numpy(), batch.labels_BT.numpy(), batch.weights_B.numpy()
    dense = rows["train"][1]
    mean, deviation = dense.mean(0), np.maximum(dense.std(0), 1e-9)
    x, test_x = (sp.hstack([i, (d - mean) / deviation]).tocsr() for i, d, _, _ in rows.values())
    aucs = []
    for y, test_y in zip(rows["train"][2].T, rows["test"][2].T):
        fitted = LogisticRegression(max_iter=1000).fit(x, y, rows["train"][3])
        aucs.append(roc_auc_score(test_y, fitted.decision_function(test_x)))
    return float(np.mean(aucs))


def run_shape(name: str, folder: Path, num_rows: int = ROWS) -> tuple[float, float]:
    path = make(name, folder, num_rows)
    return run_two_commands(path, SHAPES[name].flags, folder)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["lastfm", "bank", "misleading_quantities"])
def test_a_few_tables_are_learnt_no_worse_than_by_logistic_regression(name, tmp_path):
    ours, theirs = run_shape(name, tmp_path)
    assert ours >= theirs - TOLERANCE - 2 * NOISE


@pytest.mark.slow
def test_every_table_is_learnt_no_worse_than_by_logistic_regression(tmp_path):
    differences = {}
    for name in SHAPES:
        ours, theirs = run_shape(name, tmp_path / name)
        differences[name] = ours - theirs
    print({name: round(difference, 4) for name, difference in differences.items()})
    assert len(differences) >= 30
    assert not [n for n, d in differences.items() if d < -TOLERANCE - 2 * NOISE]
    assert np.mean(list(differences.values())) >= -TOLERANCE


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif(not CRITEO.is_file(), reason="the data lie beside the project")
def test_criteo_is_learnt_no_worse_than_by_logistic_regression(tmp_path):
    flags = ("--columns", "label,I{1..13},C{1..26}", "--delimiter", "\t")
    ours, theirs = run_two_commands(str(CRITEO), flags, tmp_path)
    assert ours >= theirs - TOLERANCE - 2 * NOISE


def print_table() -> None:
    """Print a row for each table: rows, test AUC of both, and the difference."""
    print("| table | logistic regression | no setting touched | difference |\n|---|---|---|---|")
    for name in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["RUNNER_CACHE"] = os.path.join(folder, "cache")
            ours, theirs = run_shape(name, Path(folder))
        print(f"| {name} | {theirs:.4f} | {ours:.4f} | {ours - theirs:+.4f} |", flush=True)


if __name__ == "__main__":
    sys.exit(print_table())
