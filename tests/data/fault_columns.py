"""Faults 10 and 15: other columns than declared, and an output that cannot be written.

These are real processes. Each must end by itself with exit code 2 within 5 s, and must neither make
nor change a run directory. The seconds are the process's own, as others may use the machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.data.clicks import SCHEMA, clicks
from tests.fault_table import Table

LIMIT_S = 5.0
ROOT = Path(__file__).resolve().parents[2]
# column -> how it is misspelt, and a value of a type that its role cannot take (None: it takes all)
COLUMNS: dict[str, tuple[str, Any]] = {
    "click": ("clik", pa.array(["yes"])),
    "price": ("prise", pa.array([[1.0]])),
    "user": ("usr", pa.array([[1, 2]])),
    "city": ("citty", pa.array([{"name": "Oslo"}])),
    "history": ("histroy", pa.array(["1,2"])),
    "tags": ("tag", pa.array([{"a": 1}])),
    "importance": ("importence", pa.array(["high"])),
    "fold": ("flod", pa.array([[1]])),
    "id": ("iid", None),
    "time": ("tiem", pa.array([[3]])),
}
SPLIT = {"time": "time", "validation": 0.1, "test": 0.1}


def renamed(table: pa.Table, column: str) -> pa.Table:
    names = [COLUMNS[column][0] if n == column else n for n in table.column_names]
    return table.rename_columns(names)


def retyped(table: pa.Table, column: str) -> pa.Table:
    value = COLUMNS[column][1]
    values = pa.array(["text"]) if value is None else value
    wrong = pa.concat_arrays([values] * table.num_rows)
    return table.set_column(table.schema.get_field_index(column), column, wrong)


def narrowed(table: pa.Table, column: str) -> pa.Table:
    """Give a column another type, which its role could take as well."""
    place, old = table.schema.get_field_index(column), table.schema.field(column).type
    others = {
        pa.int64(): pa.int32(),
        pa.int32(): pa.int64(),
        pa.float64(): pa.float32(),
        pa.string(): pa.large_string(),
        pa.timestamp("s"): pa.timestamp("us"),  # the file has ms for s
    }
    new = pa.large_list(old.value_type) if pa.types.is_list(old) else others[old]
    return table.set_column(place, column, table[column].cast(new))


CHANGES: dict[
    str, tuple[Callable[[pa.Table, str], pa.Table], bool]
] = {  # whether it is changed in both files
    "renamed": (renamed, True),
    "of a wrong type": (retyped, True),
    "renamed in one file": (renamed, False),
    "another type in one file": (narrowed, False),
}


def run(arguments: list[str], cwd: Path, *before: str) -> tuple[int, str, float]:
    """Return the exit code, the output and the CPU seconds of a real `python -m runner`."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*before, sys.executable, "-m", "runner", *arguments]
    began = os.times()
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    ended = os.times()
    seconds = ended.children_user + ended.children_system
    seconds -= began.children_user + began.children_system
    return done.returncode, done.stdout + done.stderr, seconds


def other_columns(table: Table, top: Path, *, short: bool) -> None:
    """Rename ten columns of all roles, or change their types, in all files or in one: 40 cases."""
    table.fault, slowest = "10: other columns", 0.0
    schema = top / "schema.yaml"
    labels = {"click": {}}
    schema.write_text(yaml.safe_dump({**SCHEMA, "labels": labels, "split": SPLIT}))
    whole = clicks(60)
    cases = [(column, change) for change in CHANGES for column in COLUMNS]
    for number, (column, change) in enumerate(cases[::13] if short else cases):
        make, in_both = CHANGES[change]
        folder = top / str(number)
        folder.mkdir()
        changed = make(whole, column)
        pq.write_table(changed if in_both else whole, folder / "a.parquet")
        pq.write_table(changed, folder / "b.parquet")
        arguments = ["dataset=parquet", f"dataset.schema={schema}", f"dataset.path={folder}"]
        seconds = 0.0

        def outcome(
            column=column, change=change, arguments=arguments, folder=folder, in_both=in_both
        ) -> str:
            nonlocal seconds
            is_carried = change == "of a wrong type" and COLUMNS[column][1] is None
            is_wider = change == "another type in one file"
            if is_carried or is_wider:
                arguments = [*arguments, "loop=debug", "loop.max_steps=1"]
            code, shown, seconds = run(arguments, folder)
            if is_carried or is_wider:
                assert code == 0, shown[-300:]
                how = "carried as it is" if is_carried else "read as the type that holds both"
                return f"taken: {how}"
            assert code == 2, f"exit code {code}: {shown[-300:]}"
            assert seconds < LIMIT_S, f"{seconds:.1f} s"
            assert not (folder / "outputs").exists(), "a run directory was made"
            assert f"{'a' if in_both else 'b'}.parquet" in shown, shown
            assert f"column {column!r}" in shown, shown
            if "renamed" in change:
                assert f"nearest: {COLUMNS[column][0]!r}" in shown, shown
                return "nearest named"
            return "type and need named"

        taken = _count_taken(table)
        table.judge(f"{column} {change}", outcome)
        if _count_taken(table) == taken:  # a case that trains a step is slower
            slowest = max(slowest, seconds)
    table.fault += f" (slowest {slowest:.1f} s)"


def _count_taken(table: Table) -> int:
    return sum(count for how, count in table.cases.items() if how.startswith("taken"))


def read_only(table: Table, top: Path, *, short: bool) -> None:
    """Name 5 outputs that cannot be written, before anything is said of data that is not there."""
    table.fault = "15: read-only output"
    (top / "file").write_text("")
    closed = top / "closed"
    closed.mkdir(mode=0o555)
    mounted = top / "mounted"
    mounted.mkdir()
    can_mount = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(mounted)], capture_output=True
        ).returncode
    )
    # root can write into a closed folder, unless it gives up that right
    plain = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
    before = plain if os.geteuid() == 0 else ()
    places: dict[str, Path] = {"below a file": top / "file" / "run", "a file": top / "file"}
    if not before or shutil.which(before[0]):
        places["a closed folder"] = closed / "run"
        places["a kernel's folder"] = Path("/proc/1/run")
    if can_mount:
        places["a read-only mount"] = mounted / "run"
    try:
        for name, place in places.items():
            arguments = [
                f"hydra.run.dir={place}",
                "dataset=parquet",
                "dataset.path=nowhere.parquet",
            ]

            def outcome(arguments=arguments) -> str:
                code, shown, seconds = run(arguments, top, *before)
                assert code == 2, f"exit code {code}: {shown[-300:]}"
                assert seconds < LIMIT_S, f"{seconds:.1f} s"
                assert re.search("cannot write the run directory|is a file, not a", shown), shown
                assert "nowhere.parquet" not in shown, f"the data came first: {shown}"
                return "refused"

            table.judge(name, outcome)
    finally:
        if can_mount:
            subprocess.run(["umount", str(mounted)], check=True)
