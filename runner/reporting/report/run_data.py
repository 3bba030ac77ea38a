"""Shows a run's `data.json`: rows and features, coverage of vocabularies, drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.errors import UserError
from runner.reporting.report.html import (
    Cell,
    number_cell,
    render_bullets,
    render_facts,
    render_table,
    render_table_tools,
)
from runner.reporting.report.records import RunRecord
from runner.reporting.report.run_predictions import Calibration, positive_rates
from runner.rundir.readers import check_shapes, numeric_values, read_optional_json

LARGE_DRIFT = 0.25
_FEATURES_SHOWN = 200
_DATA_MAPPINGS = ("num_rows", "reachable", "bad_rows")
_SHOWN = 1000  # rows of the table
_HEADINGS = {"unknown": "unknown in {}", "new": "not in train, {}", "psi": "drift of {}"}


def drift_section(features: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a row for each feature, those that drift most first."""
    measured: list[tuple[Mapping[str, Any], dict[str, dict[str, float]]]] = [
        (f, {s: numeric_values(v) for s, v in (f.get("splits") or {}).items()}) for f in features
    ]
    measured.sort(key=lambda pair: -max((v.get("psi", 0.0) for v in pair[1].values()), default=0.0))
    splits = list(dict.fromkeys(split for _, by_split in measured for split in by_split))
    columns = [
        (fact, split)
        for fact in _HEADINGS
        for split in splits
        if any(fact in by_split.get(split, {}) for _, by_split in measured)
    ]
    if not columns:
        return ""
    rows = [
        [
            Cell(str(feature.get("name"))),
            Cell(str(feature.get("kind"))),
            *(_cell(fact, by_split.get(split, {}).get(fact)) for fact, split in columns),
        ]
        for feature, by_split in measured[:_SHOWN]
    ]
    numeric = [_HEADINGS[fact].format(split) for fact, split in columns]
    header = ["feature", "kind", *numeric]
    left_out = len(measured) - len(rows)
    more = f'<p class="note">and {left_out:,} that drift less</p>' if left_out else ""
    note = (
        '<p class="note">Measured on up to 100,000 rows of each split. Unknown: the share of the '
        "values that have no row of their own in the vocabulary. Not in train: the share of the "
        "values whose id is not in these train rows. Drift: the population stability index "
        "compared with these train rows; below 0.1 counts as no change, above "
        f"{LARGE_DRIFT} (marked ▲) as a large one.</p>"
    )
    table = render_table(header, rows, numeric=numeric, sortable=True)
    return note + render_table_tools(header) + table + more


def _cell(fact: str, value: float | None) -> Cell:
    if value is None or fact != "psi":
        return number_cell(value, "{:.2%}".format)
    is_large = value > LARGE_DRIFT
    return Cell(f"{'▲ ' * is_large}{value:.3f}", value, "num large" if is_large else "num")


def read_data_facts(run: RunRecord) -> dict[str, Any]:
    """Return the content of `data.json`.

    Raises:
        UserError: if it does not have the form that a run writes.
    """
    path = run.folder / "data.json"
    data = read_optional_json(path)
    lists = dict.fromkeys(("dense", "sparse", "sequences", "tasks", "features"), list)
    check_shapes(path, data, {**lists, **dict.fromkeys(_DATA_MAPPINGS, dict)})
    check_shapes(path, data.get("num_rows") or {}, dict.fromkeys(data.get("num_rows") or (), int))
    for feature in data.get("features") or ():
        check_shapes(path, {"a feature": feature}, {"a feature": dict})
        check_shapes(path, feature, {"name": str, "kind": str, "splits": dict})
        splits = feature.get("splits") or {}
        check_shapes(path, splits, dict.fromkeys(splits, dict))
    reachable = data.get("reachable") or {}
    check_shapes(path, reachable, dict.fromkeys(reachable, dict))
    for feature in [*(data.get("sparse") or ()), *(data.get("sequences") or ())]:
        check_shapes(path, {"a feature": feature}, {"a feature": dict})
        if not isinstance(feature.get("num_rows"), int) or {"name", "table"} - feature.keys():
            raise UserError(f"{path}: damaged: a feature has no name, table or num_rows")
    return data


def data_section(data: Mapping[str, Any], calibration: Calibration, findings: Sequence[str]) -> str:
    """Return the rows, the features of ids, and the findings of a run's data."""
    if not data:
        return ""
    counts = data.get("num_rows") or {}
    parts = [(f"{split} rows", f"{rows:,}") for split, rows in counts.items()]
    parts += positive_rates(calibration)
    for name in ("dense", "sparse", "sequences"):
        features = data.get(name) or []
        if features:
            parts.append((f"{name.removesuffix('s')} features", f"{len(features):,}"))
    features = [*(data.get("sparse") or []), *(data.get("sequences") or [])]
    tables = {f["table"]: f["num_rows"] for f in features}
    parts.append(("ids in all tables", f"{sum(tables.values()):,}"))
    bad = data.get("bad_rows") or {}
    if bad.get("count"):
        parts.append(("bad rows left out", f"{bad['count']:,}"))
    rows = [
        [
            Cell(f["name"]),
            Cell(f["table"]),
            number_cell(f["num_rows"]),
            number_cell(f.get("length", 1), "{:,.4g}".format),
        ]
        for f in features[:_FEATURES_SHOWN]
    ]
    header = ["feature", "table", "ids", "mean or longest length"]
    body = render_table(header, rows, numeric=header[2:], sortable=True) if rows else ""
    more = len(features) - _FEATURES_SHOWN
    tail = f'<p class="note">and {more:,} more features</p>' if more > 0 else ""
    findings_html = f"<h3>Findings</h3>{render_bullets(findings)}" if findings else ""
    return render_facts(parts) + findings_html + body + tail
