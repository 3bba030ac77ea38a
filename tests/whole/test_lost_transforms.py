"""Fitted transforms that a run directory lost: fitted anew if they come out the same."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
import yaml

from runner.data.core.fitted import FittedTransforms, check_fitted_transforms
from runner.errors import DataError
from tests.data.clicks import SCHEMA, clicks
from tests.whole.compare_runs import differences
from tests.whole.test_edited_run import PAIR, SHORT, again


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> tuple[str, ...]:
    top = tmp_path_factory.mktemp("table")
    pq.write_table(clicks(1200), top / "x.parquet", row_group_size=100)
    split = {"random": {"train": 0.8, "validation": 0.1, "test": 0.1}}
    schema = {**SCHEMA, "labels": {"click": {}}, "split": split}
    (top / "schema.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))
    mine = [word for word in SHORT if not word.startswith("dataset.")]
    return (
        *mine, "dataset=parquet", f"dataset.schema={top / 'schema.yaml'}",
        f"dataset.path={top / 'x.parquet'}",
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("ranks", [(), PAIR], ids=["1 rank", "2 ranks"])
def test_lost_transforms_are_fitted_anew_only_if_they_come_out_the_same(
    runner, table, tmp_path, ranks
):
    run, meanwhile = tmp_path / "run", tmp_path / "whole"
    env = {"TRACE_FILE": f"{tmp_path}/trace"}
    runner.run(*table, *ranks, f"hydra.run.dir={meanwhile}", env=env).check()
    kill = {**env, "TRACE_KILL": "step:18"}
    assert runner.run(*table, *ranks, f"hydra.run.dir={run}", env=kill).code != 0
    learnt = run / "data" / "learnt.json"
    before = learnt.read_bytes()
    learnt.unlink()
    code, told = again(runner, "resume", run)
    assert code == 0, told
    assert "learnt.json was missing: fitted anew, and the same as it was" in told
    assert json.loads(learnt.read_bytes())["sha256"] == json.loads(before)["sha256"]
    assert differences(run, meanwhile) == []

    learnt.unlink()
    code, told = again(runner, "loop=eval", run)
    assert code == 0 and "was missing" in told, told
    assert not learnt.exists()  # an evaluation writes nothing into its source
    other = tmp_path / "other.parquet"
    pq.write_table(clicks(700, seed=5), other, row_group_size=100)
    code, told = again(runner, "loop=eval", run, f"dataset.path={other}")
    assert code == 2, told
    assert f"{learnt} is missing" in told and "put the file" in told


def test_transforms_without_types_of_ids_are_those_of_an_earlier_version(tmp_path):
    with_types = FittedTransforms(num_rows={"a": 3}, id_types={"a": "integer"})
    before = FittedTransforms(num_rows={"a": 3})

    class Data:
        def save_fitted_transforms(self, folder):
            with_types.save(folder)

    for recorded in (with_types, before):
        check_fitted_transforms(Data(), tmp_path, recorded.digest())
    with pytest.raises(DataError, match="is missing, and the transforms fitted"):
        check_fitted_transforms(Data(), tmp_path, FittedTransforms(num_rows={"a": 4}).digest())
    other = FittedTransforms(num_rows={"a": 3}, id_types={"a": "string"})
    with pytest.raises(DataError, match="is missing, and the transforms fitted"):
        check_fitted_transforms(Data(), tmp_path, other.digest())


@pytest.mark.long
def test_transforms_of_another_run_are_refused(runner, table, tmp_path):
    run, env = tmp_path / "run", {"TRACE_FILE": f"{tmp_path}/trace"}
    runner.run(*table, f"hydra.run.dir={run}", env={**env, "TRACE_KILL": "step:18"}).check(-9)
    learnt = run / "data" / "learnt.json"
    values = json.loads(learnt.read_text())
    learnt.write_text(json.dumps({**values, "sha256": "0" * 64}))
    for verb in ("resume", "loop=eval"):
        code, told = again(runner, verb, run)
        assert code == 2, told
        assert "learnt.json is damaged, or of another run" in told
