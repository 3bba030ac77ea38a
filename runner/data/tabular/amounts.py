"""Numbers as spreadsheets write them, such as $1,234.50, 1.234,50 €, 35,7 % or (12.50)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

# form -> what may stand between thousands, and what stands before a fraction
_MARKS = {"amount": (r"[,'\x{2019}]", "."), "amount_comma": (r"[. \x{a0}\x{202f}'\x{2019}]", ",")}
AMOUNT_FORMS = tuple(_MARKS)
_CURRENCY = r"(\p{Lu}{0,3}\p{Sc}|USD|EUR|GBP|CHF)"
_SPACE = r"[\s\x{a0}\x{202f}]*"
# without one of these, a comma may divide a list instead of standing before a fraction
_UNIT = rf"{_CURRENCY}|%"
_SIGN = r"[\p{Sc}\p{Lu}%,'(]"  # that keeps an amount from being read as a plain number
# thousands before a fraction, which no list has: 1,234.50, or 1.234,50
_THOUSANDS = {"amount": r"^-?\d{1,3}(,\d{3})+\.\d+$", "amount_comma": r"^-?\d{1,3}(\.\d{3})+,\d+$"}
LEAST_FITTING = 0.95  # share of the texts of a column of amounts
LEAST_SIGNS = 0.2  # share with a sign; those of a quantity, or with thousands, may have fewer
SAMPLE_TEXTS = 20_000


def _pattern(form: str) -> str:
    between, mark = _MARKS[form]
    whole = rf"(\d+|[1-9]\d{{0,2}}({between}\d{{3}})+)"
    number = rf"({whole}(\{mark}\d+)?|\{mark}\d+)"
    amount = rf"{_CURRENCY}?{_SPACE}[-\x{{2212}}]?{number}{_SPACE}({_UNIT})?"
    return rf"^{_SPACE}([-+\x{{2212}}]?{_SPACE}{amount}|\({amount}\)){_SPACE}$"


_PATTERNS = {form: _pattern(form) for form in AMOUNT_FORMS}


def parse_amounts(texts: pa.Array, form: str) -> pa.Array:
    """Return texts as numbers, those in parentheses as negative ones; 35,7 % is 35.7.

    Args:
        texts: with or without signs of money and percent.
        form: one of AMOUNT_FORMS: whether a point or a comma stands before a fraction.

    Returns:
        [R] float64, null where a text is missing or no number.
    """
    fits = pc.match_substring_regex(texts, _PATTERNS[form])
    fitting = pc.if_else(fits, texts, pa.scalar(None, pa.string()))
    mark = _MARKS[form][1]
    digits = pc.replace_substring_regex(fitting, rf"[^\d\{mark}]", "")
    numbers = pc.replace_substring(digits, mark, ".").cast(pa.float64())
    is_negative = pc.match_substring_regex(fitting, r"[-(\x{2212}]")
    return pc.if_else(is_negative, pc.negate(numbers), numbers)


def guess_amount_form(texts: pa.Array, *, is_quantity: bool = False) -> str:
    """Return the form of AMOUNT_FORMS in which texts are numbers with signs; empty if in none.

    Where all texts fit both, as $1,234 does, three digits are thousands; those of percents, as in
    1.234 %, are a fraction.

    Args:
        texts: of a column.
        is_quantity: whether the column is named like a quantity, such as a price.
    """
    texts = texts[:SAMPLE_TEXTS].cast(pa.string())
    fits = {form: pc.match_substring_regex(texts, p) for form, p in _PATTERNS.items()}
    has_thousands = {
        form: bool(pc.any(pc.match_substring_regex(texts, p)).as_py())
        for form, p in _THOUSANDS.items()
    }
    if not has_thousands["amount_comma"]:
        has_unit = pc.match_substring_regex(texts, _UNIT)
        fits["amount_comma"] = pc.and_(fits["amount_comma"], has_unit)
    shares = {form: _share(own) for form, own in fits.items()}
    signs, negative = (_share(pc.match_substring_regex(texts, p)) for p in (_SIGN, r"^\s*\("))
    least_signs = 0.0 if is_quantity or any(has_thousands.values()) else LEAST_SIGNS
    if max(shares.values()) <= LEAST_FITTING or not (signs > least_signs or negative):
        return ""
    if shares["amount"] != shares["amount_comma"]:
        return max(shares, key=lambda form: shares[form])
    points, commas = (_share(pc.match_substring(texts, mark)) for mark in ".,")
    are_percents = _share(pc.match_substring(texts, "%")) > 0.5
    return "amount" if (points > commas) == are_percents or points == commas else "amount_comma"


def _share(fits: pa.Array) -> float:
    return float(pc.mean(fits.cast(pa.float64())).as_py() or 0)
