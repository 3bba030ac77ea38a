"""The experiment on kept features: its rows, its table, and the page that it writes."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from experiments import kept_features
from runner.data.columns.schema_file import parse_schema


def test_half_of_the_generated_features_make_the_label(tmp_path):
    content = kept_features.write_generated(tmp_path, 20_000)
    rows = pq.read_table(tmp_path / "generated.parquet").to_pandas()
    spread = {name: rows.groupby(name)["label"].mean().std() for name in content["categorical"]}
    useful, useless = list(spread)[:6], list(spread)[6:]
    assert min(spread[n] for n in useful) > max(spread[n] for n in useless)
    assert np.argmax(list(spread.values())) == 0
    assert len(parse_schema(kept_features.CRITEO).ids) == 26


def test_the_table_has_means_over_the_seeds():
    facts = {"rank_correlation": {"first_order, permuted": 0.912}, "rows": 4000}
    facts["seconds"] = {"first_order": 0.5, "permuted": 6.71}
    counts = kept_features.COUNTS["generated"]
    found = {"shark": {n: [0.7, 0.72] for n in counts}, "random": {n: [0.6] for n in counts}}
    text = kept_features.table("generated", found, facts)
    assert "| shark | 0.7100 ± 0.0141 |" in text and "| random | 0.6000 |" in text
    assert "0.91, over 4,000 rows; 0.5 s and 6.7 s" in text


@pytest.mark.slow
def test_the_page_is_written_between_its_marks(tmp_path, monkeypatch):
    rows = kept_features.write_generated
    monkeypatch.setattr(kept_features, "write_generated", lambda folder: rows(folder, 4000))
    monkeypatch.setattr(kept_features, "COUNTS", {"generated": (2, 6)})
    page = tmp_path / "page.md"
    page.write_text(f"before\n{kept_features.BEGIN}\nold\n{kept_features.END}\nafter\n")
    words = ["--out", str(tmp_path / "out"), "--seeds", "1", "--page", str(page)]
    assert kept_features.main(words) == 0
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    [shark] = [line for line in text.splitlines() if line.startswith("| shark")]
    [chance] = [line for line in text.splitlines() if line.startswith("| random")]
    best, drawn = ([float(c) for c in line.split("|")[2:-1]] for line in (shark, chance))
    assert best[1] > drawn[1] and best[1] > 0.6
