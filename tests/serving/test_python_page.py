"""The examples of docs/python.md run, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT, Zygote, python
from tests.test_readme import SMALL


@pytest.mark.slow
def test_every_example_of_the_page_runs(runner: Zygote, tmp_path: Path):
    few = ("trainer.max_steps=10", "report=false", *SMALL)
    words = ("dataset.write_to=rows", "hydra.run.dir=outputs/mine", *few)
    runner.run(*words, cwd=tmp_path).check()
    page = (ROOT / "docs" / "python.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(examples) == 2
    for code in examples:
        ended = python("-c", code, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
