"""Two commands on a table, with no setting touched, end no worse than logistic regression.

`schema` and the command that it prints run on the tables of `tests.data.shapes`, whose labels
follow a logistic model: nothing can beat logistic regression there by much, and whoever falls
behind has lost something. There are two judges, both scikit-learn's on the same split: its default,
C=1, and the C of three that has the least loss on validation.

A few hundred test rows tell little: the sampling error of a difference is measured by a paired
bootstrap of the test rows, and each table is made with several seeds. A table is below if its mean
difference over the seeds is, by more standard errors than chance alone makes in one of 40 tries at
all tables together.

    python -m tests.whole.test_never_below_yardstick [SEEDS [TABLE...]]  # experiments/YARDSTICK.md
"""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from runner import load
from runner.__main__ import main
from runner.batch import Batch
from runner.data.tabular.table import open_table
from runner.data.tabular.table_recipe import TableRecipe
from tests.conftest import shared_data
from tests.data.shapes import SHAPES, make

pytestmark = pytest.mark.usefixtures("own_cache")
ROWS, SEEDS = 5000, 3
DRAWS = 1000  # of the bootstrap
JUDGES = (1.0, 0.2, 0.04)  # C; the first is the default
ERRORS = -NormalDist().inv_cdf(0.025 / len(SHAPES))  # standard errors: 3.2 for 42 tables


@dataclass(frozen=True)
class Comparison:
    """Test AUCs, means over tasks, with the standard errors of our differences to the others."""

    ours: float
    default: float
    tuned: float
    default_error: float
    tuned_error: float


def mean_of(found: Sequence[Comparison]) -> Comparison:
    """Return the mean over tables of several seeds, which are independent."""
    columns = np.array([list(vars(one).values()) for one in found])
    errors = np.sqrt((columns[:, 3:] ** 2).sum(0)) / len(found)
    return Comparison(*map(float, [*columns[:, :3].mean(0), *errors]))


def draw_aucs(scores_N: np.ndarray, y_N: np.ndarray, weights_BN: np.ndarray) -> np.ndarray:
    """Return the AUC for each of B weightings of the rows; equal scores count one half."""
    order = np.argsort(scores_N, kind="stable")
    starts = np.flatnonzero(np.diff(scores_N[order], prepend=-np.inf))
    positive_BG = np.add.reduceat((weights_BN * y_N)[:, order], starts, axis=1)
    negative_BG = np.add.reduceat((weights_BN * (1 - y_N))[:, order], starts, axis=1)
    below_BG = np.cumsum(negative_BG, axis=1) - negative_BG / 2
    return (positive_BG * below_BG).sum(1) / (positive_BG.sum(1) * negative_BG.sum(1))


def compare(scores: Sequence[np.ndarray], y_NT: np.ndarray, weights_N: np.ndarray) -> Comparison:
    """Compare our scores, those of the default and those of the tuned regression, [N, T] each."""
    rng = np.random.default_rng(0)
    draws_BN = rng.multinomial(len(y_NT), np.full(len(y_NT), 1 / len(y_NT)), DRAWS)
    weights_BN = np.concatenate([weights_N[None], draws_BN * weights_N])
    tasks = range(y_NT.shape[1])
    aucs_MB = np.array(
        [
            np.mean([draw_aucs(own[:, t], y_NT[:, t], weights_BN) for t in tasks], axis=0)
            for own in scores
        ]
    )
    errors = (aucs_MB[0, 1:] - aucs_MB[1:, 1:]).std(axis=1)
    return Comparison(*map(float, [*aucs_MB[:, 0], *errors]))


def command(*words: str) -> str:
    """Run a command line in this process and return what it printed."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = main(list(words))
    assert code == 0, out.getvalue()
    return out.getvalue()


def run_two_commands(path: str, flags: tuple[str, ...], folder: Path) -> Comparison:
    """Run `schema` and the command that it prints, and compare the result with the judges'."""
    yaml, run = folder / "schema.yaml", folder / "run"
    said = command("schema", path, *flags, "--out", str(yaml))
    words = shlex.split(said.strip().splitlines()[-1].partition("next: python -m runner ")[2])
    quiet = ("report=false", "trainer.num_threads=1", "trainer.yardstick=false")
    command(*words, *quiet, f"hydra.run.dir={run}")
    recipe = TableRecipe(format=words[0].partition("=")[2], path=None, schema=str(yaml))
    data = open_table(recipe, window_rows=1 << 17, prefetch=0)
    batches = {split: next(data.batches(split, batch_size=1 << 20)) for split in data.num_rows}
    test = batches["test"]
    with torch.no_grad():
        ours_NT = load(run).model()(test).logits_BT.double().numpy()
    scores = [ours_NT, *judge(batches, [f.num_rows for f in data.schema.sparse])]
    found = compare(scores, test.labels_BT.numpy(), test.weights_B.numpy())
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    assert found.ours == pytest.approx(metrics["test/auc"], abs=1e-5)  # the scores are the run's
    return found


def judge(batches: Mapping[str, Batch], sizes_F: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's scores of the test rows, [N, T]: with C=1, and tuned."""
    numbers = batches["train"].dense_BD.numpy()
    mean, deviation = numbers.mean(0), np.maximum(numbers.std(0), 1e-9)
    x, val_x, test_x = (
        sp.hstack([id_counts(b, sizes_F), (b.dense_BD.numpy() - mean) / deviation]).tocsr()
        for b in (batches[split] for split in ("train", "validation", "test"))
    )
    y, val_y = (batches[split].labels_BT.numpy() for split in ("train", "validation"))
    weights = batches["train"].weights_B.numpy()
    found = []
    for c in JUDGES:
        fits = [LogisticRegression(C=c, max_iter=1000).fit(x, column, weights) for column in y.T]
        losses = [log_loss(v, f.predict_proba(val_x)[:, 1]) for v, f in zip(val_y.T, fits)]
        found.append((sum(losses), np.stack([f.decision_function(test_x) for f in fits], axis=1)))
    return found[0][1], min(found, key=lambda one: one[0])[1]


def id_counts(batch: Batch, sizes_F: Sequence[int]) -> sp.csr_matrix:
    """Return how often a row has each id, those of all features side by side."""
    lengths_FB = batch.sparse.lengths().numpy().reshape(len(sizes_F), -1)
    offsets_F = np.cumsum([0, *sizes_F])
    rows_V = np.concatenate([np.repeat(np.arange(batch.size), n_B) for n_B in lengths_FB])
    ids_V = batch.sparse.values().numpy() + np.repeat(offsets_F[:-1], lengths_FB.sum(1))
    shape = (batch.size, int(offsets_F[-1]))
    return sp.csr_matrix((np.ones(len(ids_V)), (rows_V, ids_V)), shape=shape)


def run_shape(name: str, folder: Path, num_seeds: int = 1) -> Comparison:
    """Run the two commands on a table made with each seed."""
    found = []
    for seed in range(num_seeds):
        path = make(name, folder / str(seed), ROWS, seed)
        found.append(run_two_commands(path, SHAPES[name].flags, folder / str(seed)))
    return mean_of(found)


def assert_not_below(found: Comparison) -> None:
    assert found.ours - found.default >= -ERRORS * found.default_error, found
    assert found.ours - found.tuned >= -ERRORS * found.tuned_error, found


@pytest.mark.long
def test_the_bootstrap_has_the_auc_of_scikit_learn_and_the_error_of_many_test_sets():
    rng = np.random.default_rng(3)

    def rows(count: int) -> tuple[np.ndarray, list[np.ndarray]]:
        x_N2 = rng.normal(size=(count, 2))
        y_N = rng.random(count) < 1 / (1 + np.exp(-x_N2.sum(1)))
        scores = [x_N2[:, :1], x_N2[:, :1].round(1), (x_N2[:, :1] + x_N2[:, 1:] / 2)]
        return y_N[:, None].astype(float), scores

    y_NT, scores = rows(400)
    weights_N = rng.uniform(0.5, 2, 400)
    found = compare(scores, y_NT, weights_N)
    expected = [roc_auc_score(y_NT[:, 0], s[:, 0], sample_weight=weights_N) for s in scores]
    np.testing.assert_allclose([found.ours, found.default, found.tuned], expected, atol=1e-9)
    others = [
        compare(scores, y_NT, np.ones(400)) for y_NT, scores in (rows(400) for _ in range(80))
    ]
    spread = np.std([other.ours - other.tuned for other in others])
    assert others[0].tuned_error == pytest.approx(spread, rel=0.3)


@pytest.mark.long
@pytest.mark.parametrize("name", ["lastfm", "bank", "misleading_quantities"])
@pytest.mark.parity("N12")
def test_a_few_tables_are_learnt_no_worse_than_by_logistic_regression(name, tmp_path):
    assert_not_below(run_shape(name, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_never_below_yardstick(name, tmp_path):
    assert_not_below(run_shape(name, tmp_path, SEEDS))


@pytest.mark.slow
@pytest.mark.data
def test_criteo_is_learnt_no_worse_than_by_logistic_regression(tmp_path):
    flags = ("--columns", "label,I{1..13},C{1..26}", "--delimiter", "\t")
    path = str(shared_data("criteo10k/train.txt"))
    assert_not_below(run_two_commands(path, flags, tmp_path))


@pytest.mark.long
def test_what_two_ids_tell_together_is_learnt_before_users_are_learnt_by_heart(tmp_path):
    rng, num_rows = np.random.default_rng(21), 15_000
    sizes = {"layout": 12, "topic": 12, "slot": 8}
    ids = {name: rng.integers(0, size, num_rows) for name, size in sizes.items()}
    shares = 1 / np.arange(1, 2001) ** 0.9
    ids["user"] = rng.choice(2000, num_rows, p=shares / shares.sum())
    pairs, others = rng.normal(size=(12, 12)), rng.normal(size=(12, 8))
    logits_N = 0.9 * pairs[ids["layout"], ids["topic"]] + 0.6 * others[ids["topic"], ids["slot"]]
    logits_N += 0.4 * rng.normal(size=2000)[ids["user"]] - 0.5
    columns = {name: pa.array([f"{name}{n}" for n in found_N]) for name, found_N in ids.items()}
    columns["click"] = pa.array((rng.random(num_rows) < 1 / (1 + np.exp(-logits_N))).astype(int))
    pq.write_table(pa.table(columns), tmp_path / "clicks.parquet")
    found = run_two_commands(str(tmp_path / "clicks.parquet"), (), tmp_path)
    # the judges have the crosses that `schema` proposes; this one has the ids by themselves
    x_NC = OneHotEncoder().fit_transform(np.stack([*ids.values()], axis=1))
    y_N = columns["click"].to_numpy()
    alone = LogisticRegression(C=0.2, max_iter=1000).fit(x_NC[:12_000], y_N[:12_000])
    auc = roc_auc_score(y_N[12_000:], alone.decision_function(x_NC[12_000:]))
    assert found.ours > auc + 0.09, (found, auc)


PAGE = """# Two commands beside logistic regression

Printed by `python -m tests.whole.test_never_below_yardstick`; edit no number here. `python -m
runner schema FILE`, then the command that it prints, with no setting touched, on tables in the
shapes of published data sets ({:,} rows, {} seeds each): AUC on test rows, beside scikit-learn's
logistic regression on the same columns and rows, with its default C=1 and with the C of
{} that has the least loss on validation. The labels follow a logistic model,
which nothing beats by much. ± is the standard error of a difference, by a paired bootstrap of the
test rows. A table counts as below where a difference is less than -{:.1f} standard errors: what
chance alone brings in one of 40 tries at all tables together.
"""


def print_page(num_seeds: int, names: Sequence[str]) -> None:
    """Print a row for each table: test AUCs, and our differences with their standard errors."""
    print(PAGE.format(ROWS, num_seeds, ", ".join(map(str, JUDGES)), ERRORS))
    print("| table | no setting touched | C=1 | difference | tuned | difference |")
    print("|---|---|---|---|---|---|")
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["RUNNER_CACHE"] = os.path.join(folder, "cache")
            rows.append(run_shape(name, Path(folder), num_seeds))
        print(table_row(name, rows[-1]), flush=True)
    print(table_row("mean", mean_of(rows)))


def table_row(name: str, row: Comparison) -> str:
    pairs = ((row.default, row.default_error), (row.tuned, row.tuned_error))
    others = [f"{auc:.4f} | {row.ours - auc:+.4f} ± {error:.4f}" for auc, error in pairs]
    return f"| {name} | {row.ours:.4f} | {' | '.join(others)} |"


if __name__ == "__main__":
    print_page(int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS, sys.argv[2:] or list(SHAPES))
