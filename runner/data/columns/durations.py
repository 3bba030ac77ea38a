"""Durations and times of day that are written as texts, such as 2h 50m, 3:05:12 or 2:35 PM."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

DURATION = "duration"
FEW_TEXTS = 100  # of a column, half of which must be durations before all are parsed
_SECONDS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_HALVES = r"(?P<half>[AaPp])\.?[Mm]\.?"
_CLOCK = (
    r"^\s*(?:(?P<d>\d+) days?,? )?(?P<h>\d{1,4}):(?P<m>[0-5]\d)(?::(?P<s>[0-5]\d(?:\.\d+)?))?"
    rf"(?:\s*{_HALVES})?\s*$"
)
_IN_WORDS = (
    r"(?i)^\s*(?:(?P<d>\d+)\s*d(?:ays?)?\b)?[\s,]*(?:(?P<h>\d+)\s*h(?:ours?|rs?)?)?[\s,]*"
    r"(?:(?P<m>\d+)\s*m(?:in(?:ute)?s?)?)?[\s,]*(?:(?P<s>\d+(?:\.\d+)?)\s*s(?:ec(?:ond)?s?)?)?\s*$"
)


def parse_durations(texts: pa.Array) -> pa.Array:
    """Return texts as seconds: [R] float64, null where a text is missing or is not a duration.

    Of two numbers with a colon the first is hours, since one text cannot show which it is; of
    three they are hours, minutes and seconds. A time of day counts from midnight.
    """
    texts = pc.if_else(pc.match_substring_regex(texts, r"\d"), texts, pa.scalar(None, pa.string()))
    clock = pc.extract_regex(texts, _CLOCK)
    seconds = _sum(clock)
    half = pc.ascii_lower(pc.struct_field(clock, "half"))
    twelve = pc.greater_equal(_number(clock, "h"), 12.0)
    shift = pc.subtract(
        pc.if_else(pc.equal(half, "p"), 43_200.0, 0.0),
        pc.if_else(pc.and_(pc.not_equal(half, ""), twelve), 43_200.0, 0.0),
    )
    return pc.coalesce(pc.add(seconds, shift), _sum(pc.extract_regex(texts, _IN_WORDS)))


def are_durations(texts: pa.Array, least: float) -> bool:
    """Return whether a share of more than `least` of the texts are durations of one kind.

    If some have two numbers with a colon and others three, the first may be minutes or hours.
    """
    few = texts[:: len(texts) // FEW_TEXTS + 1]  # which rule out most columns without durations
    if parse_durations(few).null_count > len(few) / 2:
        return False
    num_parts = pc.count_substring(texts, ":")
    parts = set(pc.unique(num_parts).to_pylist()) - {0}
    num_known = len(texts) - parse_durations(texts).null_count
    return len(parts) < 2 and num_known > least * len(texts)


def _sum(parts: pa.Array) -> pa.Array:
    total = None
    for name, seconds in _SECONDS.items():
        term = pc.multiply(_number(parts, name), seconds)
        total = term if total is None else pc.add(total, term)
    return total


def _number(parts: pa.Array, name: str) -> pa.Array:
    """Return a part as numbers, 0 where a text does not have it."""
    texts = pc.struct_field(parts, name)
    return pc.if_else(pc.equal(texts, ""), "0", texts).cast(pa.float64())
