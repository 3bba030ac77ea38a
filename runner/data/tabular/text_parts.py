"""Divides large plain text files into parts for workers: blocks of lines, counted ahead.

A split draws a number per row, and messages name lines, so that a part needs the counts before it.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.data.files.file_list import DataFile
from runner.data.files.partitions import columns_in_file
from runner.data.files.read_text import TextFormat, infer_text_schema, read_text_chunks
from runner.data.files.text_blocks import BLOCK_BYTES, TextBlocks, find_blocks, read_blocks
from runner.data.files.text_lines import count_lines
from runner.data.prepare.engine import Engine
from runner.data.prepare.progress import Advance
from runner.data.tabular.parts import RewritableTable
from runner.errors import DataError

INDEX_FILE = "text_blocks.json"
COUNTED_AT_ONCE = 8  # blocks of one task
TASKS_PER_WORKER = 4  # at least per worker, so that all are busy until the end


@dataclass(frozen=True)
class TextIndex:
    """The blocks of one file, with their numbers of rows and lines."""

    spans: list[tuple[int, int]]
    num_rows: list[int]
    num_lines: list[int]

    def select(self, numbers: Container[int]) -> TextBlocks:
        """Return some consecutive blocks."""
        selected = [number for number in range(len(self.spans)) if number in numbers]
        spans = tuple(self.spans[number] for number in selected)
        return TextBlocks(spans, sum(self.num_lines[: selected[0]]))


@dataclass(frozen=True)
class CountTask:
    """The blocks of a file that are counted by one worker; picklable."""

    table: RewritableTable
    format_: TextFormat
    file: DataFile
    spans: list[tuple[int, int]]


def index_texts(
    table: RewritableTable, format_: TextFormat, work_folder: Path, engine: Engine
) -> dict[str, TextIndex]:
    """Return path -> the blocks of each file that is divided into parts.

    These are uncompressed local files that are a large part of the table. Work that was begun
    continues with the same parts, in any process.

    Args:
        work_folder: the folder of the parts, where the index is kept.
    """
    index = work_folder / INDEX_FILE
    if not index.exists():
        if engine.num_workers == 1 or any(work_folder.iterdir()):
            return {}
        blocks_of_file = dict(_count_files(table, format_, engine))
        temporary = work_folder / f".{INDEX_FILE}.tmp"
        temporary.write_text(json.dumps(blocks_of_file))
        temporary.rename(index)
    return {path: TextIndex(*lists) for path, lists in json.loads(index.read_text()).items()}


def _count_files(
    table: RewritableTable, format_: TextFormat, engine: Engine
) -> Iterator[tuple[str, Any]]:
    """Yield the path of each large file, and its blocks with their rows and lines."""
    files = [file for split_files in table.files.values() for file in split_files]
    share = sum(file.size() for file in files) // (TASKS_PER_WORKER * engine.num_workers)
    for file in files:
        spans = find_blocks(file, BLOCK_BYTES) if file.size() > share else []
        if len(spans) < 2:
            continue
        starts = range(0, len(spans), COUNTED_AT_ONCE)
        tasks = (CountTask(table, format_, file, spans[n : n + COUNTED_AT_ONCE]) for n in starts)
        answers = engine.map(count_blocks, tasks, lambda _: None)
        counts = [count for answer in answers for count in answer]
        if len(counts) == len(spans):
            yield str(file), (spans, *map(list, zip(*counts)))


def count_blocks(task: CountTask, advance: Advance) -> list[tuple[int, int]]:
    """Return the rows and the lines of each block; empty if one of them cannot be read.

    The error is raised when all columns are read, with line numbers from the start of the file.
    The result is also empty if a block may end within a quoted value.
    """
    table, schema = task.table, task.table.schemas[str(task.file)]
    columns = columns_in_file(schema, table.columns_read)
    if not task.format_.json_lines:  # all columns show malformed JSON
        columns = columns[:1]
    types = {name: schema.field(name).type for name in columns}
    counts, quote = [], task.format_.quote.encode()
    try:
        names = infer_text_schema(task.file, task.format_).names
        later = replace(task.format_, column_names=tuple(names))
        for begin, end in task.spans:
            span = TextBlocks(((begin, end),))
            contents = list(read_blocks(task.file, 0, span))
            if quote and any(content.count(quote) % 2 for content in contents):
                return []
            chunks = read_text_chunks(
                task.file,
                types,
                later if begin else task.format_,
                skip_bad_rows=table.skips_bad_rows,
                blocks=span,
            )
            num_rows = sum(chunk.num_rows for chunk in chunks)
            counts.append((num_rows, sum(map(count_lines, contents))))
    except DataError:
        return []
    return counts
