"""A table of another run is taken only if its ids have the form that ours have."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import runner
from runner.__main__ import main

SCHEMA = """
path: {name}.parquet
labels: {{click: {{}}}}
categorical: {{user: {{{user}}}}}
"""
HASH = "encode: hash, num_rows: 97"


def train(name: str, users: list, user: str, *more: str, code: int = 0) -> None:
    click = np.random.default_rng(0).integers(0, 2, len(users))
    pq.write_table(pa.table({"user": users, "click": click}), f"{name}.parquet")
    with open(f"{name}.yaml", "w") as file:
        file.write(SCHEMA.format(name=name, user=user))
    words = ["dataset=parquet", "model=mlp", f"dataset.schema={name}.yaml", f"hydra.run.dir={name}"]
    words += ["trainer.batch_size=16", "report=false", "trainer.yardstick=false"]
    assert main([*words, *more]) == code


@pytest.mark.parametrize(
    ("there", "here", "told"),
    [
        (HASH, HASH, "are texts, hashed with salt 0 to 97 rows, here and integers, hashed"),
        (HASH, f"{HASH}, input: integer", None),
        (HASH, f"{HASH}, input: integer, salt: 7", "integers, hashed with salt 7 to 97 rows, here"),
        (f"{HASH}, input: string", HASH, None),
        ("encode: growing, num_rows: 99", "encode: growing, num_rows: 99", "texts here and int"),
        ("encode: vocabulary", "encode: vocabulary", "are texts here and integers there"),
    ],
)
def test_rows_of_ids_in_another_form_are_not_taken(tmp_path, monkeypatch, there, here, told):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    numbers = [n % 40 for n in range(80)]
    train("a", numbers, there, "trainer.max_steps=4")
    still = [f"optimizer.{side}.lr=1e-12" for side in ("sparse", "dense")]
    source = "checkpoint.init_from=a/checkpoints/step-4"
    train("b", [str(n) for n in numbers], here, "trainer.max_steps=1", source, *still)
    lines = json.loads((tmp_path / "b" / "warm_start.json").read_text())["lines"]
    found = [line for line in lines if "not taken: ids of table 'user'" in line]
    assert len(found) == bool(told)
    assert (told or "") in "".join(found)

    users = pa.table({"user": list(range(40))})
    pooled = runner.Outputs(embeddings=("pooled",))
    vectors = [
        np.stack(runner.load(name).predict(users, outputs=pooled)["embedding_pooled"].to_pylist())
        for name in "ab"
    ]
    same = np.isclose(*vectors, atol=1e-6).all(axis=1)
    assert same.all() if told is None else same.sum() <= 1


def test_a_single_hashed_table_of_another_length_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    numbers = [n % 40 for n in range(80)]
    train("a", numbers, HASH, "trainer.max_steps=2")
    table = "checkpoint.init_tables={user: {from: a}}"
    train("b", numbers, HASH, "trainer.max_steps=2", table)
    capsys.readouterr()
    longer = HASH.replace("97", "98")
    train("c", numbers, longer, "trainer.max_steps=2", table, code=2)
    assert "to 98 rows, here and integers, hashed with salt 0 to 97" in capsys.readouterr().err
