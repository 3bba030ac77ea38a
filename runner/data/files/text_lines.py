"""Finds the line of a file on which each row of a block of text begins."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

# A line break within quotes, and the \r before it; no text in UTF-8 has these bytes.
_INNER_BREAK, _INNER_RETURN = b"\xff", b"\xfe"


def count_lines(block: bytes) -> int:
    """Return the number of lines of a block, including blank ones."""
    return (block.count(b"\n") or block.count(b"\r")) + (not block.endswith((b"\n", b"\r")))


def find_row_lines(
    block: bytes,
    before: int,
    num_rows: int | None = None,
    delimiter: str = "",
    quote: str = "",
    left_out: Set[int] = frozenset(),
) -> Sequence[int]:
    """Return the lines on which the rows of a block begin, from 1 on; a blank line is no row.

    Args:
        block: whole rows.
        before: lines of the file before the block.
        num_rows: rows of the block, if known; this is fast if each row is one line.
        delimiter: separates values; empty: JSON lines, of which one with only spaces is blank.
        quote: the character around values that may have line breaks; empty: there is none.
        left_out: numbers of rows in the block that are not returned.
    """
    if num_rows == count_lines(block):
        lines: Sequence[int] = range(before + 1, before + 1 + num_rows)
    else:
        masked = mask_line_breaks(block, delimiter, quote.encode())[0] if quote else block
        lines, line = [], before + 1
        for row in masked.splitlines():
            if row if delimiter else row.strip():
                lines.append(line)
            line += 1 + row.count(_INNER_BREAK)
    if not left_out:
        return lines
    return [line for number, line in enumerate(lines) if number not in left_out]


def is_outside_quotes(text: bytes, delimiters: str, quote: bytes) -> bool:
    """Return, fast, whether a text surely ends outside quotes; `mask_line_breaks` always knows.

    After an even number of quotes it does, if none of them is a literal one, as in 12".
    """
    codes = np.frombuffer(text, np.uint8)
    places = np.flatnonzero(codes == quote[0])
    opening = places[::2]
    known = [quote[0], *b"\r\n", *delimiters.encode()]  # a quote before it: a doubled quote
    return len(places) % 2 == 0 and bool(np.isin(codes[opening[opening > 0] - 1], known).all())


def mask_line_breaks(block: bytes, delimiters: str, quote: bytes) -> tuple[bytes, bool]:
    """Replace line breaks within quotes by as many other bytes.

    As in Arrow, a quote opens only at the beginning of a value, where a doubled one is literal.

    Args:
        block: from the beginning of a row on.
        delimiters: characters that may separate values.

    Returns:
        The bytes, and whether they end within quotes.
    """
    starts = (*(d.encode() for d in delimiters), b"\n", b"\r")
    pieces = block.split(quote)
    is_open, number = False, 1
    while number < len(pieces):
        if not is_open:
            is_first = number == 1 and not pieces[0]
            is_open = is_first or pieces[number - 1].endswith(starts)
        elif not pieces[number] and number + 1 < len(pieces):
            number += 1
        else:
            is_open = False
        if is_open and (b"\n" in (piece := pieces[number]) or b"\r" in piece):
            piece = piece.replace(b"\r\n", _INNER_RETURN + _INNER_BREAK)
            pieces[number] = piece.replace(b"\n", _INNER_BREAK).replace(b"\r", _INNER_BREAK)
        number += 1
    return quote.join(pieces), is_open
