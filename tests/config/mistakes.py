"""Mistakes over all keys of all groups, made from the declarations; each must be refused well.

`python -m tests.config.mistakes [--count N] [--seed N] [--json]`. Every mistake is one command in
this process, in which torch cannot be imported. It passes if it ends with exit code 2 in less than
a second of processor time, with one message that names the key, and without a directory.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import io
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from runner.__main__ import main as run_command
from runner.config.compose import compose_job
from runner.config.declarations import (
    Declaration,
    find_range_problem,
    read_declarations,
    settings_of,
)
from runner.config.options import list_groups
from runner.config.part_arguments import read_arguments
from runner.config_value import matches_type

SECONDS = 1.0
TRIES = 3  # of a command that took longer
ROOT = Path(__file__).resolve().parents[2]
UNFINISHED = {("model", "own"), ("search", "gp")}  # the one names no classes, the other needs torch
NEEDED = {"loop=eval": ["checkpoint.path=/"], "loop=online": ["dataset=folder"]}
NEEDED |= {f"dataset={name}": ["loop=online"] for name in ("folder", "kafka")}
# Values of every kind; those that a key takes are left out
CANDIDATES: Mapping[str, Any] = {
    "text": "banana",
    "empty text": "",
    "null": None,
    "true": True,
    "list": [1.5, "x"],
    "group": {"a": 1},
    "fraction": 0.123,
    "minus one": -1,
    "zero": 0,
    "huge": 10**19,
    "NaN": float("nan"),
    "infinity": float("inf"),
}


@dataclass(frozen=True)
class Mistake:
    kind: str
    words: tuple[str, ...]  # that choose options
    key: str
    override: str

    def __str__(self) -> str:
        return " ".join([*self.words, self.override])


class NoTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torch, whose source may be read, and refuses to import it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in ("torch", "torchrec", "fbgemm_gpu"):
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None:
            spec.loader = self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        raise AssertionError(f"imports {module.__name__}")


def all_mistakes() -> list[Mistake]:
    """Every mistake of every key, each under the first option that has the key."""
    seen: set[tuple[str, str]] = set()
    mistakes = []
    for group, options in list_groups():
        for option in options:
            if group == "experiments" or (group, option.name) in UNFINISHED:
                continue
            choice = f"{group}={option.name}"
            words = (choice, *NEEDED.get(choice, ()))
            config = compose_job(words).config
            node = config
            for name in group.split("/"):
                node = node.get(name) or {}
            target = str(node.get("_target_")) if isinstance(node, Mapping) else ""
            for mistake in _mistakes_below(group.replace("/", "."), node, words):
                if (target, mistake.override) not in seen:
                    seen.add((target, mistake.override))
                    mistakes.append(mistake)
    config = compose_job([]).config
    top = {k: v for k, v in config.items() if k in read_declarations(settings_of(""))}
    mistakes += _mistakes_below("", top, ())
    mistakes.append(Mistake("unknown key", (), "hydra.anything", "+hydra.anything=1"))
    return mistakes


def _mistakes_below(key: str, node: Mapping[str, Any], words: tuple[str, ...]) -> Iterator[Mistake]:
    settings = settings_of(key, node.get("_target_"))
    part = read_arguments(str(node.get("_target_"))) if settings is None else None
    declared = read_declarations(settings) if settings is not None else {}
    declared = part.declared if part is not None else declared
    prefix = f"{key}." if key else ""
    yield Mistake("unknown key", words, f"{prefix}anything", f"+{prefix}anything=1")
    for name, value in node.items():
        full = f"{prefix}{name}"
        if name == "_target_":
            continue
        if isinstance(value, Mapping) and value and full != "search.space":
            yield Mistake("value for a group", words, full, f"{full}=3")
            yield from _mistakes_below(full, value, words)
            continue
        misspelt = f"{prefix}{name[:-1]}" if len(name) > 2 else f"{prefix}{name}q"
        if misspelt.rpartition(".")[2] not in node:
            yield Mistake("misspelt", words, misspelt, f"{misspelt}={_written(value)}")
        for kind, wrong in _wrong_values(declared.get(name), value):
            yield Mistake(kind, words, full, f"{full}={_written(wrong)}")


def _wrong_values(declared: Declaration | None, default: Any) -> Iterator[tuple[str, Any]]:
    for kind, value in CANDIDATES.items():
        if declared is None:
            if default is not None and _is_other_kind(value, default):
                yield kind, value
        elif not matches_type(value, declared.hint) or (
            kind in ("NaN", "infinity") and declared.hint is not Any
        ):
            yield kind, value
        elif find_range_problem("", value, declared.key, declared.hint):
            yield f"{kind} (range)", value
    if declared is not None:
        key = declared.key
        for bound, step in ((key.ge, -1), (key.gt, 0), (key.le, 1), (key.lt, 0)):
            if bound is not None and bound != float("inf"):
                yield "at a bound", bound + step
        for choice in key.choices[:1]:
            yield "misspelt choice", choice[:-1] + "qq"


def _is_other_kind(value: Any, default: Any) -> bool:
    """Whether a value cannot stand where nothing but a default says what is right."""
    if value is None:
        return False
    if isinstance(default, bool):
        return not isinstance(value, bool)
    if isinstance(default, int | float):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return not is_number or value < 0 or not math.isfinite(value)
    return isinstance(value, list | dict) != isinstance(default, list | dict)


def _written(value: Any) -> str:
    """A value in Hydra's grammar."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{k}:{_written(v)}' for k, v in value.items())}}}"
    return str(value) if isinstance(value, int | float) else f"'{value}'"


def judge(mistake: Mistake, folder: Path) -> str:
    """Return what is wrong with how a mistake is refused; empty if nothing is."""
    told = io.StringIO()
    started = time.process_time()
    try:
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
            code = run_command([*mistake.words, mistake.override])
    except BaseException as error:  # an exit, an assertion of NoTorch
        return f"{type(error).__name__}: {error}"
    text, seconds = told.getvalue().strip(), time.process_time() - started
    if code != 2:
        return f"exit code {code}: {text[-300:]}"
    told_of = [line for line in text.splitlines() if "pip install 'runner[" not in line]
    is_one = len(told_of) == 1 + text.startswith("error: 2 mistakes")
    if "Traceback" in text or not text.startswith("error: ") or not is_one:
        return f"not one message: {text[-400:]}"
    if mistake.key.removeprefix("+") not in text:
        return f"the key is not named: {text[-300:]}"
    if any(folder.iterdir()) or "torch" in sys.modules:
        return f"made {list(folder.iterdir())}, torch: {'torch' in sys.modules}"
    if seconds >= SECONDS:  # on a busy machine: what it takes, with nothing kept from others
        seconds = min(_seconds_anew([*mistake.words, mistake.override]) for _ in range(TRIES))
    return "" if seconds < SECONDS else f"took {seconds:.2f} s"


def _seconds_anew(words: list[str]) -> float:
    """Return the processor time of a command in a process of its own, without its imports."""
    program = "import sys, tests.config.mistakes as m; m.print_seconds(sys.argv[1:])"
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def print_seconds(words: list[str]) -> None:
    """Run a command that is refused, and print the processor time that it took."""
    started = time.process_time()
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        run_command(words)
    print(time.process_time() - started)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    sys.meta_path.insert(0, NoTorch())
    mistakes = all_mistakes()
    random.Random(options.seed).shuffle(mistakes)
    mistakes = mistakes[: options.count or None]
    failures, kinds, slowest = [], Counter[str](), 0.0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for mistake in mistakes:
            started = time.process_time()
            if problem := judge(mistake, Path(folder)):
                failures.append(f"{mistake}: {problem}")
                for made in Path(folder).iterdir():
                    made.rename(Path(tempfile.mkdtemp()) / made.name)
            slowest = max(slowest, time.process_time() - started)
            kinds[mistake.kind] += 1
    if options.json:
        print(json.dumps({"count": len(mistakes), "failures": failures, "kinds": kinds}))
        return int(bool(failures))
    told = ", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items()))
    print(f"{len(mistakes)} mistakes, {len(failures)} failed, slowest {slowest:.2f} s; {told}")
    print("".join(f"  FAILED {failure}\n" for failure in failures), end="")
    return int(bool(failures))


if __name__ == "__main__":
    raise SystemExit(main())
