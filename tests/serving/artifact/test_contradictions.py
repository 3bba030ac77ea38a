"""Exported models with right hashes, whose `schema.json` does not fit itself or a graph."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.errors import UserError
from runner.serving.apply import apply_deltas
from runner.serving.artifact.folder import MANIFEST, SCHEMA, write_manifest
from runner.serving.items.item_table import read_items
from runner.serving.scorer import Scorer
from tests.models.scene import from_yaml
from tests.serving.served import ITEMS, ITEMS_COLUMNS, write_artifact

GROUP = ("graphs", 0, "groups", 0)
# model, place in the schema, what stands there instead (None: nothing), what the refusal says
CASES = [
    ("clicks", ("graphs", 0, "dense"), ["agee"], "reads the number 'agee', which its columns"),
    ("clicks", ("graphs", 0, "dense"), ["age", "age"], "does not take its inputs"),
    ("clicks", ("graphs", 0, "outputs"), ["logits"], "its tasks need"),
    ("clicks", ("graphs",), [], "its graphs are none"),
    ("clicks", (*GROUP, "features"), ["b", "a", "city", "tags"], "the table of 'b' has 6 rows"),
    ("clicks", (*GROUP, "weighted"), False, "the inputs of 'model' are not those"),
    ("clicks", ("numeric",), [], "reads the number 'age'"),
    ("clicks", ("numeric", 0, "standardise"), True, "column 'age' is standardised"),
    ("clicks", ("numeric", 0, "clip"), ["low", 1], "contradicts itself or the graphs"),
    ("clicks", ("numeric", 0, "default"), "old", "contradicts itself or the graphs"),
    ("clicks", ("fitted", "moments"), {"age": [1.0]}, "column 'age' has no mean"),
    ("clicks", ("ids", 0), None, "reads the ids 'a', which its columns"),
    ("clicks", ("ids", 0, "encode"), "vocabulary", "column 'a': its table 'a' has no vocabulary"),
    ("clicks", ("ids", 0, "encode"), "bucketise", "column 'a': has no boundaries"),
    ("clicks", ("ids", 3, "weights"), "", "reads column 'a' with weights"),
    ("clicks", ("fitted", "num_rows", "city"), None, "'city' has None rows"),
    ("clicks", ("fitted", "num_rows", "city"), -3, "'city' has -3 rows"),
    ("clicks", ("fitted", "num_rows", "city"), 10, "'city' has 10 rows, and in 'model' 20"),
    ("clicks", ("fitted", "num_rows", "a"), 5, "'a' has 5 rows, and in 'model' 4"),
    ("clicks", ("tasks", 0, "kind"), "rank", "task 'click' is of kind 'rank'"),
    ("clicks", ("tasks", 1), None, "its tasks need"),
    ("items", ("graphs", 0, "sequences", 0, "max_length"), 9, "does not take its inputs"),
    ("items", ("graphs", 0, "sequences", 0, "name"), "item", "whose column has 0"),
    ("items", ("graphs", 1, *GROUP[2:], "features"), ["user"], "the table of 'user' has 9 rows"),
    ("items", ("ids", 2, "max_length"), 9, "reads 6 ids of 'history', whose column has 9"),
    ("items", ("tasks",), [{"name": "a", "kind": "binary"}] * 2, "it has 2 tasks"),
]


@pytest.fixture(scope="module")
def models(clicks_model, tmp_path_factory) -> dict[str, Path]:
    model = from_yaml("two_tower", ITEMS, embedding_dim=4, item=["item"])
    folder = tmp_path_factory.mktemp("items")
    return {
        "clicks": clicks_model,
        "items": write_artifact(folder, model, ITEMS, ITEMS_COLUMNS),
    }


def write_contradiction(model: Path, folder: Path, place: tuple[Any, ...], instead: Any) -> None:
    """Copy a model with another schema, and with the hashes that belong to it."""
    shutil.copytree(model, folder)
    content = json.loads((folder / SCHEMA).read_text())
    *path, last = place
    inner = content
    for key in path:
        inner = inner[key]
    if instead is None:
        del inner[last]
    else:
        inner[last] = instead
    (folder / SCHEMA).write_text(json.dumps(content))
    (folder / MANIFEST).unlink()
    write_manifest(folder, {"formats": ["pt2"], "quantise": None})


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[1])))
def test_a_schema_that_contradicts_is_refused_when_it_is_loaded(models, tmp_path, case):
    name, place, instead, said = case
    write_contradiction(models[name], tmp_path / "model", place, instead)
    with pytest.raises(UserError) as refused:
        Scorer.load(tmp_path / "model")
    assert str(refused.value).startswith(str(tmp_path / "model" / SCHEMA))
    assert said in str(refused.value) and "export the run again" in str(refused.value)


def test_apply_refuses_a_model_whose_columns_contradict(models, tmp_path):
    write_contradiction(models["clicks"], tmp_path / "model", ("ids", 0), None)
    with pytest.raises(UserError, match=r"schema.json: contradicts .* the ids 'a'"):
        apply_deltas(tmp_path / "model", [], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_items_without_their_columns_are_named(tmp_path):
    file = tmp_path / "items.parquet"
    for columns in ({"id": [1], "row": [2]}, {"id": [1], "row": [2], "vector": [[0.5, 1.0]]}):
        pq.write_table(pa.table(columns), file)
        with pytest.raises(UserError, match=rf"{file}: has not the columns .*; make it again"):
            read_items(file, "make it again")
