"""Two commands on a table, with no setting touched, end no worse than logistic regression.

`schema` and the command that it prints run on the tables of `tests.data.shapes`, whose labels
follow a logistic model: nothing can beat logistic regression there by much, and whoever falls
behind has lost something. The judge is scikit-learn's, on the same split, with the C of three that
has the least loss on validation; its default, C=1, is a weaker one in the mean.

A table may fall TOLERANCE behind, plus what 500 test rows cannot tell: the standard error of an AUC
is 0.02 there, and that of the difference of two models with nearly equal predictions about a tenth
of that. On the mean over all tables, where this evens out, TOLERANCE alone holds.

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
from sklearn.metrics import log_loss, roc_auc_score

from runner.__main__ import main
from runner.data.tabular.table import TableRecipe, open_table
from tests.conftest import ROOT
from tests.data.shapes import SHAPES, make

ROWS = 5000
TOLERANCE = 0.002
NOISE = 0.002  # of the difference of two AUCs on one test split, see above
CRITEO = ROOT.parent / "shared" / "data" / "criteo10k" / "train.txt"


def command(*words: str) -> str:
    """Run a command line in this process and return what it printed."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = main(list(words))
    assert code == 0, out.getvalue()
    return out.getvalue()


def run_two_commands(path: str, flags: tuple[str, ...], folder: Path) -> tuple[float, float, float]:
    """Return the test AUC of the run and those of scikit-learn's logistic regression."""
    yaml = folder / "schema.yaml"
    said = command("schema", path, *flags, "--out", str(yaml))
    words = shlex.split(said.strip().splitlines()[-1].partition("next: python -m runner ")[2])
    quiet = ("report=false", "trainer.num_threads=1", "trainer.yardstick=false")
    command(*words, *quiet, f"hydra.run.dir={folder / 'run'}")
    metrics = json.loads((folder / "run" / "result.json").read_text())["metrics"]
    format_ = words[0].partition("=")[2]
    return metrics["test/auc"], *judge(format_, yaml)


def judge(format_: str, yaml: Path) -> tuple[float, float]:
    """Return test AUCs of scikit-learn on the rows of the run, means over tasks: tuned, C=1."""
    recipe = TableRecipe(format=format_, path=None, schema=str(yaml))
    data = open_table(recipe, window_rows=1 << 17, prefetch=0)
    rows = {}
    for split in ("train", "validation", "test"):
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
    x, val_x, test_x = (
        sp.hstack([ids, (x - mean) / deviation]).tocsr() for ids, x, _, _ in rows.values()
    )
    (y, val_y, test_y), weights = [own[2] for own in rows.values()], rows["train"][3]
    found = []
    for c in (1.0, 0.2, 0.04):
        fits = [LogisticRegression(C=c, max_iter=1000).fit(x, column, weights) for column in y.T]
        losses = [log_loss(v, f.predict_proba(val_x)[:, 1]) for v, f in zip(val_y.T, fits)]
        aucs = [roc_auc_score(t, f.decision_function(test_x)) for t, f in zip(test_y.T, fits)]
        found.append((np.mean(losses), np.mean(aucs)))
    return float(min(found)[1]), float(found[0][1])


def run_shape(name: str, folder: Path, num_rows: int = ROWS) -> tuple[float, float, float]:
    path = make(name, folder, num_rows)
    return run_two_commands(path, SHAPES[name].flags, folder)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["lastfm", "bank", "misleading_quantities"])
def test_a_few_tables_are_learnt_no_worse_than_by_logistic_regression(name, tmp_path):
    ours, theirs, _ = run_shape(name, tmp_path)
    assert ours >= theirs - TOLERANCE - 2 * NOISE


@pytest.mark.slow
def test_every_table_is_learnt_no_worse_than_by_logistic_regression(tmp_path):
    differences = {}
    for name in SHAPES:
        ours, theirs, _ = run_shape(name, tmp_path / name)
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
    ours, theirs, _ = run_two_commands(str(CRITEO), flags, tmp_path)
    assert ours >= theirs - TOLERANCE - 2 * NOISE


def print_table() -> None:
    """Print a row for each table: test AUCs, and the difference to the tuned regression."""
    print("| table | logistic regression, C=1 | tuned | no setting touched | difference |")
    print("|---|---|---|---|---|")
    for name in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["RUNNER_CACHE"] = os.path.join(folder, "cache")
            ours, tuned, plain = run_shape(name, Path(folder))
        gain = f"{ours - tuned:+.4f}"
        print(f"| {name} | {plain:.4f} | {tuned:.4f} | {ours:.4f} | {gain} |", flush=True)


if __name__ == "__main__":
    sys.exit(print_table())
