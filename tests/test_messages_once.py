"""What a user reads is said once, and names their files and keys, not our functions."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
import yaml

from tests.conftest import TINY, python
from tests.data.clicks import SCHEMA, clicks

SMALL = [word for word in TINY if not word.startswith(("trainer.eval", "checkpoint"))]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["without log.txt", "with log.txt"])
def test_a_warning_appears_once_although_fbgemm_sets_up_logging(tmp_path, kind):
    run = tmp_path / "run"
    words = [*SMALL, "trainer.max_steps=2", "trainer.log_every=9", f"hydra.run.dir={run}"]
    said = "trainer.log_every: 9 updates is longer"
    if kind == "without log.txt":
        words = ["loop=debug", "loop.max_steps=1", "loop.overfit_one_batch=true", *SMALL]
        words, said = [w for w in words if "max_steps=40" not in w], "one update cannot tell"
    # a process that starts afresh, since the import of FBGEMM is what sets up logging
    done = python("-m", "runner", *words)
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count(said) == 1
    if kind == "with log.txt":
        assert (run / "log.txt").read_text().count(said) == 1


def test_a_mistake_in_the_data_is_told_by_file_without_internal_names(runner, tmp_path):
    table = clicks(300)
    path = tmp_path / "x.parquet"
    pq.write_table(table.set_column(1, "click", [[7] * 300]), path)
    split = {"random": {"train": 0.8, "validation": 0.2}}
    schema = {**SCHEMA, "labels": {"click": {}}, "split": split}
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema, sort_keys=False))
    words = ["dataset=parquet", f"dataset.schema={tmp_path / 'schema.yaml'}"]
    done = runner.run(*words, f"dataset.path={path}", f"hydra.run.dir={tmp_path / 'run'}").check(2)
    [error] = [line for line in done.text.splitlines() if line.startswith("error: ")]
    assert error.startswith(f"error: {path}") and "click" in error
    assert "runner." not in error


def test_a_value_that_a_part_refuses_is_told_by_its_key(runner, tmp_path):
    done = runner.run(*TINY, "+model.net.nonsense=1", f"hydra.run.dir={tmp_path / 'run'}").check(2)
    assert "error: model.net" in done.text and "nonsense" in done.text
    assert "runner.models" not in done.text
