"""Statistics of the columns of a sample, including texts that are numbers, and bad values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from runner.data.columns.amounts import (
    AMOUNT_FORMS,
    Amounts,
    are_plain_numbers,
    are_words,
    guess_amounts,
    parse_amounts,
)
from runner.data.files.read_files import unpacked_type
from runner.data.files.text_values import MISSING_NUMBERS
from runner.data.proposal.columns.column_names import guess_kind, sounds_like_time
from runner.data.proposal.columns.column_statistics import (
    MAX_EXAMPLES,
    ColumnStatistics,
    compute_statistics,
    two_texts,
)

LEAST_WORDS = 0.001  # share of rows with words for missing numbers; fewer are mistakes
FEW_AMOUNTS = 10  # distinct numbers with a unit or words among them; so few can stay texts
MAX_WRONG = 3  # texts that are not numbers, kept as examples

# several numbers in one text, in a file with decimal commas
_COMMA_VECTOR = r"^ *[+-]?\d*,?\d+([|; ] *[+-]?\d*,?\d+)+ *$"


@dataclass(frozen=True)
class Sample:
    """Rows of a table.

    A text in a column of numbers that is no number is missing in `table` and kept in `wrong_texts`.
    """

    table: pa.Table
    wrong_texts: Mapping[str, pa.Array]
    malformed: Sequence[str] = ()  # lines that are not rows: the place of each, and its problem
    decimal: str = "."  # the decimal separator of a text file

    def compute_statistics(self, name: str, *, is_number: bool | None = None) -> ColumnStatistics:
        """Compute the statistics of one column.

        Args:
            is_number: whether its texts are numbers; None: if they look like it.
        """
        column, statistics = self.table[name], None
        if is_number is not False:
            statistics = compute_amount_statistics(column, name, is_number=bool(is_number))
        if statistics is None and self.decimal == "," and pt.is_string(column.type):
            values = column.drop_null()
            if pc.all(pc.match_substring_regex(values, _COMMA_VECTOR)).as_py() and len(values):
                column = pc.replace_substring(column, ",", ".")  # as it is read then
        statistics = statistics or compute_statistics(column, name)
        wrong = self.wrong_texts.get(name)
        if wrong is None:
            return statistics
        share = len(wrong) / max(statistics.num_rows, 1)
        words = tuple(sorted(map(str, pc.unique(wrong).to_pylist())))
        looks_like_it = not statistics.is_whole or guess_kind(name) == "quantity"
        may_be_missing = looks_like_it if is_number is None else is_number
        may_be_missing &= statistics.low is not None and share >= LEAST_WORDS
        if may_be_missing and are_words(words):
            form = AMOUNT_FORMS[self.decimal == ","]
            return replace(statistics, amounts=Amounts(form, "", words), word_share=share)
        return replace(
            statistics,
            missing_share=statistics.missing_share - share,
            wrong_texts=_first_texts(wrong),
            num_wrong=len(wrong),
        )


def count_other_splits(f: ColumnStatistics, samples: Sequence[Sample]) -> ColumnStatistics:
    """Return a column's statistics with the bad and missing values of other splits' samples.

    A column that is missing only there needs a default, too.
    """
    for other in samples:
        other_f = other.compute_statistics(f.name, is_number=None if f.amounts else False)
        num_rows = f.num_rows + f.num_elsewhere
        num_missing = f.missing_share * num_rows + other_f.missing_share * other_f.num_rows
        if f.amounts and other_f.amounts:
            words = sorted({*f.amounts.missing, *other_f.amounts.missing})
            f = replace(f, amounts=replace(f.amounts, missing=tuple(words)))
        f = replace(
            f,
            missing_share=num_missing / max(num_rows + other_f.num_rows, 1),
            non_finite_share=max(f.non_finite_share, other_f.non_finite_share),
            wrong_texts=tuple(dict.fromkeys((*f.wrong_texts, *other_f.wrong_texts)))[:MAX_WRONG],
            num_wrong=f.num_wrong + other_f.num_wrong,
            num_elsewhere=f.num_elsewhere + other_f.num_rows,
        )
    return f


def describe_bad_values(columns: Sequence[ColumnStatistics]) -> list[str]:
    """Return a line on each column of numbers whose rows cannot all be used."""
    lines = []
    for f in columns:
        if f.num_wrong:
            texts = ", ".join(map(repr, f.wrong_texts))
            num_sampled = f.num_rows + f.num_elsewhere
            lines.append(
                f"{f.name}: {f.num_wrong:,} of {num_sampled:,} sampled rows hold a text that is no "
                f"number ({texts}): bad rows, which dataset.on_bad_rows=skip leaves out"
            )
        if f.non_finite_share:
            lines.append(
                f"{f.name}: {f.non_finite_share:.1%} of the values are NaN or infinite: bad rows, "
                "which dataset.on_bad_rows=skip leaves out"
            )
    return lines


def compute_amount_statistics(
    column: pa.ChunkedArray, name: str, *, is_number: bool
) -> ColumnStatistics | None:
    """Compute the statistics of texts that are numbers with signs; None if they are not."""
    plain = unpacked_type(column.type)
    if not (pt.is_string(plain) or pt.is_large_string(plain)):
        return None
    texts = column.combine_chunks().cast(pa.string())
    is_none = pc.is_in(texts, pa.array(MISSING_NUMBERS))
    texts = pc.if_else(is_none, pa.scalar(None, pa.string()), texts)
    known = texts.drop_null()
    is_quantity = is_number or guess_kind(name) == "quantity"
    if not (amounts := guess_amounts(known, is_quantity=is_quantity)):
        return None
    is_word = amounts.is_missing(texts)
    texts = pc.if_else(is_word, pa.scalar(None, pa.string()), texts)
    known = texts.drop_null()
    may_be_else = guess_kind(name) == "id" or sounds_like_time(name)
    if may_be_else and not is_number and (amounts.unit or are_plain_numbers(known)):
        return None
    numbers = parse_amounts(texts, amounts)
    has_signs_alone = amounts in (Amounts("amount"), Amounts("amount_comma"))
    num_distinct = pc.count_distinct(numbers).as_py()
    if not is_number and not has_signs_alone and num_distinct <= FEW_AMOUNTS:
        return None
    wrong = texts.filter(numbers.is_null()).drop_null()
    examples = pc.unique(known[:1000]).to_pylist()
    signed_first = sorted(examples, key=lambda text: (text[:1] + text[-1:]).isdigit())
    statistics = compute_statistics(pa.chunked_array([numbers]), name)
    return replace(
        statistics,
        type=column.type,
        missing_share=texts.null_count / len(texts),
        wrong_texts=_first_texts(wrong),
        num_wrong=len(wrong),
        time_form="",
        examples=tuple(signed_first[:MAX_EXAMPLES]),
        amounts=amounts,
        word_share=pc.sum(is_word).as_py() / len(texts),
        two_texts=two_texts(known) if pc.count_distinct(known).as_py() == 2 else (),
        counts=(),
    )


def _first_texts(wrong: pa.Array) -> tuple[str, ...]:
    return tuple(map(str, pc.unique(wrong).to_pylist()[:MAX_WRONG]))
