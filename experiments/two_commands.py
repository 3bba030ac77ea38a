"""Compares the two commands of the README with gradient boosting and a linear model.

    python -m experiments.two_commands TABLE.csv:LABEL[:classes|:regression] ...

A fifth of the rows is held out. `schema` reads the others and proposes a command, which trains;
`predict` scores the rows held out. The others are scikit-learn's: HistGradientBoosting, which stops
early, and a logistic or ridge regression of standardised numbers and one-hot texts, both on all
rows that are not held out; the two commands learn from 80% of these and choose by 10%. Of classes
the log loss is shown as a share of that of the classes' frequencies, of numbers R².
The results of 27 tables are in experiments/TABLES.md.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss, r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from runner.errors import UserError

HELD_OUT = 5  # one row of so many
MOST_TEXTS = 200  # of a column, as gradient boosting takes at most 255
COLUMNS = ("table", "rows", "label", "measure", "two commands", "gradient boosting", "linear")


def main(arguments: Sequence[str]) -> int:
    """Print a row of a table for each table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tables", nargs="+", metavar="TABLE.csv:LABEL[:TASK]")
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    for given in parser.parse_args(arguments).tables:
        path, label, task = [*given.split(":"), ""][:3]
        rows = pd.read_csv(path, low_memory=False)
        rows = rows[rows[label].notna()].sample(frac=1, random_state=0).reset_index(drop=True)
        found = _regress(rows, label) if task == "regression" else _classify(rows, label, task)
        scores = " | ".join(f"{score:.3f}" for score in found)
        measure = "R²" if task == "regression" else "log loss"
        print(f"| {Path(path).stem} | {len(rows):,} | {label} | {measure} | {scores} |", flush=True)
    return 0


def _classify(rows: pd.DataFrame, label: str, task: str) -> list[float]:
    """Return the share of the log loss of each model."""
    texts = rows[label].astype(str)
    train, held = _halves(rows)
    classes, known = sorted(texts[train].unique()), texts[held]
    scores = _run_two_commands(rows, label, task)
    if len(classes) == 2:
        one_N = scores[f"score_{label}"].to_numpy()
        # which text counts as 1 is for `schema` to say: the one that has the higher scores
        rises = one_N[known == classes[1]].mean() > one_N[known == classes[0]].mean()
        ours = np.stack([1 - one_N, one_N][:: 1 if rises else -1], axis=1)
    else:
        ours = scores[[f"score_{label}.{name}" for name in classes]].to_numpy(float)
        ours = ours / ours.sum(1, keepdims=True)
    shares = [(texts[train] == name).mean() for name in classes]
    features = rows.drop(columns=label)
    boosted = HistGradientBoostingClassifier(
        categorical_features="from_dtype", early_stopping=True, random_state=0
    )
    boosted.fit(_as_categories(features)[train], texts[train])
    linear = make_pipeline(_encoder(features), LogisticRegression(max_iter=500))
    linear.fit(features[train], texts[train])
    found = [ours, boosted.predict_proba(_as_categories(features)[held])]
    found.append(linear.predict_proba(features[held]))
    plain = log_loss(known, np.tile(shares, (len(known), 1)), labels=classes)
    return [log_loss(known, np.clip(p, 1e-7, 1), labels=classes) / plain for p in found]


def _regress(rows: pd.DataFrame, label: str) -> list[float]:
    """Return R² of each model."""
    train, held = _halves(rows)
    features, y = rows.drop(columns=label), rows[label]
    ours = _run_two_commands(rows, label, "regression")[f"score_{label}"]
    boosted = HistGradientBoostingRegressor(
        categorical_features="from_dtype", early_stopping=True, random_state=0
    ).fit(_as_categories(features)[train], y[train])
    linear = make_pipeline(_encoder(features), RidgeCV(np.logspace(-2, 4, 13)))
    linear.fit(features[train], y[train])
    found = [ours, boosted.predict(_as_categories(features)[held]), linear.predict(features[held])]
    return [r2_score(y[held], predicted) for predicted in found]


def _halves(rows: pd.DataFrame) -> tuple[slice, slice]:
    cut = len(rows) - len(rows) // HELD_OUT
    return slice(0, cut), slice(cut, None)


def _run_two_commands(rows: pd.DataFrame, label: str, task: str) -> pd.DataFrame:
    """Return the scores of the rows held out."""
    train, held = _halves(rows)
    with tempfile.TemporaryDirectory() as folder:
        rows[train].to_csv(Path(folder, "train.csv"), index=False)
        rows[held].to_csv(Path(folder, "held.csv"), index=False)
        words = ["--label", label, *(["--task", task] if task else [])]
        said = _run(folder, "schema", "train.csv", *words, "--out", "schema.yaml")
        proposed = said.rpartition("python -m runner dataset=")[2].splitlines()[0]
        _run(folder, *shlex.split(f"dataset={proposed}"), "hydra.run.dir=run")
        _run(folder, "predict", "run", "held.csv", "--out", "scores")
        parts = sorted(Path(folder, "scores").glob("*.parquet"))
        return pd.concat([pd.read_parquet(part) for part in parts])


def _run(folder: str, *words: str) -> str:
    """Run a command of the runner in a folder; return what it printed.

    Raises:
        UserError: if it fails.
    """
    command = [sys.executable, "-m", "runner", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{shlex.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout + done.stderr


def _text_columns(features: pd.DataFrame) -> list[str]:
    return [name for name in features if not pd.api.types.is_numeric_dtype(features[name])]


def _as_categories(features: pd.DataFrame) -> pd.DataFrame:
    """Return features whose texts are categories, rare ones taken together."""
    found = features.copy()
    for name in _text_columns(features):
        texts = features[name].astype(str)
        frequent = texts.value_counts().index[:MOST_TEXTS]
        found[name] = texts.where(texts.isin(frequent), "other").astype("category")
    return found


def _encoder(features: pd.DataFrame) -> object:
    texts = _text_columns(features)
    numbers = [name for name in features if name not in texts]
    filled = SimpleImputer(strategy="median", add_indicator=True)
    one_hot = OneHotEncoder(min_frequency=5, handle_unknown="infrequent_if_exist")
    return make_column_transformer(
        (make_pipeline(filled, StandardScaler()), numbers), (one_hot, texts)
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of scikit-learn, about steps that would gain a little more
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
