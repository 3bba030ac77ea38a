"""Numbers as people write them: $1,234.50, 1.234,50 €, 35,7 %, (12.50), 23.4 kmpl, 90+."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from runner.data.columns.durations import DURATION, are_durations, parse_durations
from runner.data.files.text_values import MISSING_NUMBERS, NUMBER_PATTERN, strip_number

# form -> the characters allowed between thousands, and the one before a fraction
_MARKS = {"amount": (r"[,'\x{2019}]", "."), "amount_comma": (r"[. \x{a0}\x{202f}'\x{2019}]", ",")}
AMOUNT_FORMS = (*_MARKS, DURATION)
_CURRENCY = r"(\p{Lu}{0,3}\p{Sc}|USD|EUR|GBP|CHF)"
_SPACE = r"[\s\x{a0}\x{202f}]*"
_BOUND = r"([<>]=?|[≤≥~])"  # before a limit, or a rough number such as ~5
_MAGNITUDES = {"k": 1e3, "m": 1e6, "b": 1e9}  # the suffixes of 1.2M, 350k and 2bn
_MAGNITUDE = r"(?i:k|mn?|bn?)"
# without one of these, a comma may separate the values of a list, not start a fraction
_UNIT = rf"{_CURRENCY}|%"
# a character that shows that a text is an amount, not a plain number
_SIGN = r"[\p{Sc}\p{Lu}%,'(\x{2019}\x{2212}\x{a0}\x{202f}]|\d-\s*$"
# Thousands before a fraction, which no list has: 1,234.50, or 1.234,50; or several points, which
# cannot all start a fraction, as in 1.234.567, or spaces that separate no values of a list.
_THOUSANDS = {
    "amount": r"^-?\d{1,3}(,\d{3})+\.\d+$",
    "amount_comma": (
        r"^-?(\d{1,3}([. \x{a0}\x{202f}]\d{3})+,\d+|[1-9]\d{0,2}(\.\d{3}){2,}"
        r"|[1-9]\d{0,2}([\x{a0}\x{202f}]\d{3})+)$"
    ),
}
_SPACED = r"^-?[1-9]\d{0,2}( \d{3})+$"  # 37 900: an amount of a quantity, else a list of two ids
# a number, or a limit of one; a text with a leading 0 is a code, and so may be 12e5
_PLAIN = rf"^({_BOUND}{_SPACE})?[-+]?(0|[1-9]\d*)(\.\d+([eE][-+]?\d+)?|[eE]-\d+)?\+?$"
_UNIT_NAME = r"[\pL°][\pL°/²³]{0,11}|/\s?\d{1,3}"  # matches also the unit of 4.5/5
_WITH_UNIT = rf"^{_SPACE}{_BOUND}?{_SPACE}[-+]?\d[\d.,]*\+?{_SPACE}({_UNIT_NAME}){_SPACE}$"
LEAST_FITTING = 0.95  # share of the texts of a column of amounts
LEAST_SIGNS = 0.2  # share with a sign; columns of quantities, or with thousands, may have fewer
MOST_WORDS = 10  # distinct texts without a digit that mean a missing number
MOST_LIMITS = 0.5  # share of texts with a limit in front; more, such as <=50K and >50K, are classes
LEAST_KNOWN = 0.5  # share of the texts that are numbers, where others mean missing ones
SAMPLE_TEXTS = 20_000


def _pattern(form: str) -> str:
    between, mark = _MARKS[form]
    # an Indian lakh is 1,00,000
    integer = rf"(\d+|[1-9]\d{{0,2}}({between}\d{{2,3}})*{between}\d{{3}})"
    number = rf"({integer}(\{mark}\d+)?|\{mark}\d+)"
    magnitude = rf"({_SPACE}{_MAGNITUDE})?"
    amount = rf"{_CURRENCY}?{_SPACE}[-\x{{2212}}]?{number}{magnitude}{_SPACE}({_UNIT})?[-+]?"
    return rf"^{_SPACE}{_BOUND}?{_SPACE}([-+\x{{2212}}]?{_SPACE}{amount}|\({amount}\)){_SPACE}$"


_PATTERNS = {form: _pattern(form) for form in _MARKS}


@dataclass(frozen=True)
class Amounts:
    """How the texts of a column are converted to numbers.

    Args:
        form: one of AMOUNT_FORMS: whether a point or a comma stands before a fraction, or a
            duration, which becomes seconds.
        unit: what may follow a number, such as km; empty: nothing.
        missing: texts that mean a missing number, besides MISSING_NUMBERS.
    """

    form: str
    unit: str = ""
    missing: tuple[str, ...] = ()

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> Amounts | None:
        """Return the amounts that the settings of a column declare; None if there are none."""
        if (form := settings.get("input")) not in AMOUNT_FORMS:
            return None
        return cls(form, settings.get("unit", ""), tuple(settings.get("missing", ())))

    def settings(self) -> dict[str, Any]:
        """Return the settings of a column in a schema."""
        more = {"unit": self.unit, "missing": list(self.missing)}
        return {"input": self.form} | {key: value for key, value in more.items() if value}

    def is_missing(self, texts: pa.Array) -> pa.Array:
        """Return which texts mean a missing number."""
        return pc.is_in(texts, pa.array([*MISSING_NUMBERS, *self.missing]))

    def __str__(self) -> str:
        return f"{self.form} of unit {self.unit}" if self.unit else self.form


def parse_amounts(texts: pa.Array, amounts: Amounts) -> pa.Array:
    """Return texts as numbers, those in parentheses as negative ones; 35,7 % is 35.7, 90+ is 90.

    Args:
        texts: with or without signs of money and percent, or of a limit, and the unit.

    Returns:
        [R] float64, null where a text is missing or is not a number.
    """
    form = amounts.form
    if form == DURATION:
        return parse_durations(texts)
    if amounts.unit:
        texts = pc.replace_substring_regex(texts, _end_pattern(amounts.unit), "")
    mark, none = _MARKS[form][1], pa.scalar(None, pa.string())
    is_plain = pc.match_substring_regex(texts, NUMBER_PATTERN.replace(r"\.", rf"\{mark}"))
    plain = strip_number(pc.replace_substring(pc.if_else(is_plain, texts, none), mark, "."))
    fits = pc.match_substring_regex(texts, _PATTERNS[form])
    fitting = pc.if_else(fits, texts, none)
    digits = pc.replace_substring_regex(fitting, rf"[^\d\{mark}]", "")
    numbers = pc.replace_substring(digits, mark, ".").cast(pa.float64())
    is_negative = pc.match_substring_regex(fitting, r"[-(\x{2212}]")
    numbers = pc.if_else(is_negative, pc.negate(numbers), numbers)
    for letter, factor in _MAGNITUDES.items():
        is_so = pc.match_substring_regex(fitting, rf"(?i)\d{_SPACE}{letter}n?\b")
        numbers = pc.if_else(is_so, pc.multiply(numbers, factor), numbers)
    return pc.coalesce(plain.cast(pa.float64()), numbers)


def guess_amounts(texts: pa.Array, *, is_quantity: bool = False) -> Amounts | None:
    """Return how texts are converted to numbers; None if they are not numbers.

    A few texts without a digit, such as `refused`, count as missing numbers. A unit is the text
    that follows nearly all numbers.

    Args:
        texts: of a column, without those of MISSING_NUMBERS; single ones may be no numbers.
        is_quantity: whether the column is named like a quantity, such as a price.
    """
    texts = texts[:SAMPLE_TEXTS].cast(pa.string())
    has_digit = pc.match_substring_regex(texts, r"\d")
    words = sorted(pc.unique(texts.filter(pc.invert(has_digit))).to_pylist())
    if (words and not are_words(words)) or _mean(has_digit) < LEAST_KNOWN:
        return None
    known = texts.filter(has_digit) if words else texts
    if share_matching(known, rf"^{_SPACE}{_BOUND}") > MOST_LIMITS:
        return None
    if unit := _guess_unit(known):  # like signs of money, which the unit may be
        known = pc.replace_substring_regex(known, _end_pattern(unit), "€")
    form = guess_amount_form(known, is_quantity=is_quantity)
    if not (form or unit) and are_durations(known, LEAST_FITTING):
        form = DURATION
    return Amounts(form, unit, tuple(words)) if form else None


def are_words(texts: Sequence[str]) -> bool:
    """Return whether texts that are no numbers may mean missing ones: few, without a digit."""
    return len(texts) <= MOST_WORDS and not any(map(str.isdigit, "".join(texts)))


def _end_pattern(unit: str) -> str:
    return rf"{_SPACE}{re.escape(unit)}{_SPACE}$"


def _guess_unit(texts: pa.Array) -> str:
    """Return what follows nearly all numbers, with or without a space; empty if nothing."""
    with_unit = texts.filter(pc.match_substring_regex(texts, _WITH_UNIT))
    counts = pc.value_counts(pc.replace_substring_regex(with_unit, _WITH_UNIT, r"\2")).to_pylist()
    most = max(counts, key=lambda c: int(c["counts"]), default={"counts": 0})
    return str(most["values"]) if most["counts"] > LEAST_FITTING * len(texts) else ""


def guess_amount_form(texts: pa.Array, *, is_quantity: bool = False) -> str:
    """Return the form of AMOUNT_FORMS in which texts are numbers with signs; empty if in none.

    Plain numbers, as a column of a text file may have them, count as amounts where some have
    a fraction, or the column is named like a quantity. Where all texts fit both, as $1,234 does,
    three digits are thousands; those of percents, as in 1.234 %, are a fraction.

    Args:
        is_quantity: whether the column is named like a quantity, such as a price.
    """
    texts = texts[:SAMPLE_TEXTS].cast(pa.string())
    if are_plain_numbers(texts):
        has_fraction = pc.any(pc.match_substring(texts, ".")).as_py()
        return "amount" if is_quantity or has_fraction else ""
    fits = {form: pc.match_substring_regex(texts, p) for form, p in _PATTERNS.items()}
    has_thousands = {
        form: bool(pc.any(pc.match_substring_regex(texts, p)).as_py())
        for form, p in _THOUSANDS.items()
    }
    has_thousands["amount_comma"] |= is_quantity and share_matching(texts, _SPACED) > 0.2
    if not has_thousands["amount_comma"]:
        has_unit = pc.match_substring_regex(texts, rf"{_UNIT}|\d{_SPACE}{_MAGNITUDE}$")
        fits["amount_comma"] = pc.and_(fits["amount_comma"], has_unit)
    shares = {form: _mean(is_form) for form, is_form in fits.items()}
    signs, negative = (share_matching(texts, p) for p in (_SIGN, r"^\s*\("))
    has_signs = signs > (0.0 if is_quantity else LEAST_SIGNS) or negative > 0
    if max(shares.values()) <= LEAST_FITTING or not (has_signs or any(has_thousands.values())):
        return ""
    if shares["amount"] != shares["amount_comma"]:
        return max(shares, key=lambda form: shares[form])
    points, commas = (share_matching(texts, rf"\{mark}") for mark in ".,")
    are_percents = share_matching(texts, "%") > 0.5
    return "amount" if (points > commas) == are_percents or points == commas else "amount_comma"


def are_plain_numbers(texts: pa.Array) -> bool:
    """Return whether all texts are numbers without signs and leading zeros."""
    return len(texts) > 0 and bool(pc.all(pc.match_substring_regex(texts, _PLAIN)).as_py())


def share_matching(texts: pa.Array, pattern: str) -> float:
    """Return the share of texts in which a pattern occurs."""
    return _mean(pc.match_substring_regex(texts, pattern))


def _mean(fits: pa.Array) -> float:
    return float(pc.mean(fits.cast(pa.float64())).as_py() or 0)
