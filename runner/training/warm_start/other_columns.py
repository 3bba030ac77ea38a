"""Finds weights of a warm start that belong to other columns or scales than in the source.

The columns of a matrix have no names, only positions: two labels that change places get each
other's last layer, since its shape is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

from runner.data.columns.schema_file import parse_schema
from runner.data.columns.schema_yaml import read_schema_file
from runner.data.core.fitted import FittedTransforms
from runner.models.layers.embedding import LINEAR_SUFFIX

_CLOSE = 0.01  # of the deviation: smaller changes are not told
_CLOSE_BUCKET = 0.05  # of the width of a bucket; a share of its ends would hide days beside years
_MOST_NAMED = 6


def describe_refitted(ours: FittedTransforms, theirs: FittedTransforms) -> Iterator[str]:
    """Yield a line if numbers or buckets are fitted to other rows than in the source.

    The weights that are taken have learnt from numbers of the source's scale.
    """
    changed = []
    for name, (mean, deviation) in ours.moments.items():
        old_mean, old_deviation = theirs.moments.get(name, (mean, deviation))
        moved = max(abs(mean - old_mean), abs(deviation - old_deviation))
        if moved > _CLOSE * old_deviation:
            changed.append(
                f"{name} (mean {mean:.4g} and deviation {deviation:.4g} here, "
                f"{old_mean:.4g} and {old_deviation:.4g} there)"
            )
    for name, ends in ours.boundaries.items():
        if _has_moved(ends, theirs.boundaries.get(name, ends)):
            changed.append(f"{name} (buckets)")
    if changed:
        more = f" and {len(changed) - _MOST_NAMED:,} more" if len(changed) > _MOST_NAMED else ""
        yield (
            f"fitted to the rows of this run, so that its scores differ from the source's from the "
            f"start: {', '.join(changed[:_MOST_NAMED])}{more}; dataset.learnt=SOURCE/data keeps "
            "the source's, and its vocabularies"
        )


def _has_moved(ends: Sequence[float], old: Sequence[float]) -> bool:
    """Tell whether the boundaries of buckets differ by more than a small part of a bucket."""
    if len(ends) != len(old):
        return True
    widths = np.gradient(old) if len(old) > 1 else np.abs(old)
    return bool(np.any(np.abs(np.subtract(ends, old)) > _CLOSE_BUCKET * widths))


def describe_other_columns(schema: object, source: Path, weights: Collection[str]) -> Iterator[str]:
    """Yield a line for labels, numbers and ids whose weights are taken by position but differ.

    Args:
        schema: the declaration of our columns, or its file; without either nothing is known.
        source: the file with the schema of the source, which need not exist.
        weights: names of our weights that are taken.

    Raises:
        ConfigError: if a schema cannot be read.
    """
    ours, theirs = _read_columns(schema), _read_columns(source)
    by_place = {name for name in weights if not name.startswith("tables/")}
    linear = {name for name in weights if name.endswith(f"{LINEAR_SUFFIX}/weight")}
    for role, here in ours.items() if by_place or linear else ():
        there = theirs.get(role, here)
        # linear weights of one label have the width of those of four
        same_shape = len(here) == len(there) or (role == "labels" and linear)
        if here != there and same_shape:
            at, (one, other) = next(
                (at, pair)
                for at, pair in enumerate(zip_longest(there, here, fillvalue="none"))
                if pair[0] != pair[1]
            )
            yield (
                f"{role} differ from place {at + 1} on ({one} there, {other} here), and weights of "
                "layers are taken over by place, not by name: give both schemas the same order, "
                "or leave a weight out by checkpoint.init_names={NAME: null}"
            )


def _read_columns(schema: object) -> dict[str, list[str]]:
    where = "dataset.schema"
    if isinstance(schema, str | Path) and Path(schema).is_file():
        where, schema = str(schema), read_schema_file(Path(schema))
    if not isinstance(schema, Mapping):
        return {}
    declared = parse_schema(schema, where)
    return {
        "labels": [spec.name for spec in declared.labels],
        "numbers": [spec.name for spec in declared.numeric],
        "ids": [spec.name for spec in declared.ids],
    }
