"""A loop of one's own: the example of docs/own_model.md evaluates, saves and resumes exactly."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from runner.rundir.json_files import iterate_jsonl
from tests.conftest import ROOT, TINY, Zygote


def write_example(folder: Path) -> None:
    page = (ROOT / "docs" / "own_model.md").read_text()
    [code] = re.findall(r"```python\n# myloops/doubling.py\n(.*?)```", page, flags=re.DOTALL)
    (folder / "myloops").mkdir()
    (folder / "myloops" / "doubling.py").write_text(code)


def test_the_loop_of_the_page_evaluates_at_its_own_steps_and_resumes_exactly(
    runner: Zygote, tmp_path: Path
):
    write_example(tmp_path)
    words = [
        "--allow",
        "myloops",
        "loop._target_=myloops.doubling.doubling",
        "+loop.first=2",
        *TINY,
    ]
    words += ["trainer.max_steps=11", "checkpoint.save_every=3", "checkpoint.keep=9"]
    runner.run(*words, "hydra.run.dir=run", cwd=tmp_path).check()
    rows = tmp_path / "run" / "metrics.jsonl"
    steps = [row["step"] for row in iterate_jsonl(rows) if row["split"] == "validation"]
    assert steps == [2, 4, 8, 11]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "completed"
    assert {"validation/auc", "test/auc", "train/loss"} <= result["metrics"].keys()
    uninterrupted = rows.read_bytes()
    for folder in (tmp_path / "run" / "checkpoints").glob("step-*"):
        if int(folder.name.removeprefix("step-")) > 3:
            shutil.rmtree(folder)
    (tmp_path / "run" / "result.json").unlink()
    ended = runner.run("resume", "run", "--allow", "myloops", cwd=tmp_path).check()
    assert "resuming from step" in ended.text
    assert rows.read_bytes() == uninterrupted
