"""Fault 21: files and folders of a run directory that were edited, cut or replaced.

Real processes. Whatever was done to a file or folder other than the tensors of checkpoints, a verb
names it, or its numbers are those of the untouched run. Nothing outside the run directory is read
or written through a link, nothing hangs, and no traceback is printed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from runner.rundir.json_files import read_jsonl
from runner.rundir.readers import read_optional_json
from tests.conftest import Zygote
from tests.data.clicks import clicks
from tests.fault_table import Table

LIMIT_S = 60  # of one command; an untouched one takes a second
MEMORY = 24 << 30  # bytes of address space: a file read without a limit is an error, not a crash
SCHEMA = (
    "labels: [click]\nnumeric: [rating]\ncategorical: {city: {encode: vocabulary}}\n"
    "split: {random: {train: 0.7, validation: 0.2, test: 0.1}}\n"
)
TRAINING = (
    "dataset=parquet", "dataset.schema=schema.yaml", "hydra.run.dir=run", "trainer.batch_size=32",
    "trainer.max_steps=4", "trainer.num_threads=1", "trainer.log_every=1", "trainer.eval_every=2",
    "checkpoint.save_every=2", "model.net.bottom=[4]", "model.net.top=[4]",
    "model.net.embedding_dim=4", "tracker=tensorboard", "report=false",
)  # fmt: skip
VERBS = {
    "resume": ("resume", "run", "trainer.max_steps=6"),
    "eval": ("loop=eval", "run=run", "hydra.run.dir=new"),
    "report": ("report", "run"),
    "diff": ("diff", "run", "twin"),
    "reproduce": ("reproduce", "run", "hydra.run.dir=new"),
    "schedule": ("schedule", "run", "--rows", "300"),
    "clean": ("clean", ".", "--yes"),
}
# Edits of what is only shown, with no other record to check it against: file, edits, verbs.
# Without its newest checkpoint, an evaluation takes the one before, as after a kill.
UNNOTICED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("result.json", r"change_digit|retype active_s", ("report",)),
    ("meta.json", r"change_digit", ("report",)),
    ("checkpoints/step-4", r"remove", ("eval",)),
)


def change_digit(path: Path) -> None:
    """Change the first digit after the middle of a file, or its middle byte."""
    raw = bytearray(path.read_bytes())
    found = [m.start() for m in re.finditer(rb"[0-9]", raw)] if path.suffix != ".parquet" else []
    later = [place for place in found if place >= len(raw) // 2] or found
    if later:
        raw[later[0]] = ord("0") + (raw[later[0]] - ord("0") + 1) % 10
    elif raw:
        raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    if path.is_dir():
        remove(path)
        path.mkdir()
    else:
        os.truncate(path, 0)


def spoil(path: Path) -> None:
    """Put bytes that are no text before the content."""
    path.write_bytes(b"\xff\xfe\x00\xff" + path.read_bytes())


def enlarge(path: Path) -> None:
    """Make a file of 1 TB that takes no place on the disk."""
    os.truncate(path, 1 << 40)


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def link(path: Path) -> None:
    """Move a file or folder out, change it there, and leave a link to it."""
    case = path.parents[len(path.parts) - path.parts.index("run") - 1]
    outside = case.with_name(f"{case.name}-outside") / path.name
    shutil.move(path, outside)
    for file in [outside] if outside.is_file() else sorted(outside.rglob("*.json*")):
        change_digit(file)
    path.symlink_to(outside)


def other_kind(path: Path) -> None:
    """Put a folder in place of a file, and a file in place of a folder."""
    was_folder = path.is_dir()
    remove(path)
    path.write_text("{}\n") if was_folder else path.mkdir()


def pipe(path: Path) -> None:
    remove(path)
    os.mkfifo(path)


def device(path: Path) -> None:
    """Put `/dev/zero` in place of a file, by a link where only the superuser may make a device."""
    remove(path)
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except OSError:
        path.symlink_to("/dev/zero")


def retype(path: Path, key: str) -> None:
    """Give a key, of a file of JSON or YAML or of each row of a log, a value of another type."""
    if path.suffix == ".jsonl":
        rows = [other_type(json.loads(line), key) for line in path.read_text().splitlines()]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        load = json.loads if path.suffix == ".json" else yaml.safe_load  # YAML has no 1e-08
        value = other_type(load(path.read_text()), key)
        path.write_text(json.dumps(value))  # JSON is YAML, too


def other_type(mapping: dict[str, Any], key: str) -> dict[str, Any]:
    value = mapping.get(key)
    return {**mapping, key: [1] if isinstance(value, dict) else {"a": 1} if value else 7}


def keys_of(path: Path) -> list[str]:
    """Return the keys that `retype` can change. A checkpoint's own files have a digest."""
    if path.suffix not in (".json", ".jsonl", ".yaml") or "checkpoints" in path.parts:
        return []
    text = path.read_text()
    found = yaml.safe_load(text.splitlines()[0] if path.suffix == ".jsonl" else text)
    return [f"retype {key}" for key in found]


OF_FILES = {
    f.__name__: f
    for f in (change_digit, cut, empty, spoil, enlarge, remove, link, other_kind, pipe, device)
}
OF_FOLDERS = {f.__name__: f for f in (empty, remove, link, other_kind, pipe, device)}


def start_limited(arguments: list[str]) -> int:
    """Run a command line of the runner in little memory."""
    from runner.__main__ import main

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    return main(arguments)


@dataclass(frozen=True)
class Observed:
    """What a command did."""

    code: int
    text: str
    numbers: Any


class Scene:
    """A finished run with a copy of it, and the commands on them while nothing was touched."""

    def __init__(self, runner: Zygote, top: Path) -> None:
        self.runner, self.top, self.count = runner, top, 0
        self.home = top / "home"
        self.home.mkdir()
        pq.write_table(clicks(300), top / "clicks.parquet")
        (self.home / "schema.yaml").write_text(SCHEMA)
        done = self.command(self.home, *TRAINING, f"dataset.path={top / 'clicks.parquet'}")
        assert done.code == 0, done.text
        shutil.copytree(self.home / "run", self.home / "twin")
        self._untouched: dict[str, Observed] = {}

    def places(self) -> list[Path]:
        """Return the files and folders of the run but the tensors, relative to it."""
        run = self.home / "run"
        return sorted(p.relative_to(run) for p in run.rglob("*") if p.suffix != ".safetensors")

    def command(self, folder: Path, *words: str) -> Observed:
        process = self.runner.start(
            *words, cwd=folder, env={"RUNNER_CACHE": str(self.top / "cache")},
            entry="tests.whole.fault_edits:start_limited",
        )  # fmt: skip
        late = threading.Timer(LIMIT_S, process.kill)
        late.start()
        code = process.wait()
        assert late.is_alive(), f"still at work after {LIMIT_S} s: {process.text[-300:]}"
        late.cancel()
        return Observed(code, process.text, None)

    def observe(self, verb: str, edit: Callable[[Path], None] | None = None) -> Observed:
        """Run a verb in a copy of the scene, in which an edit was made."""
        self.count += 1
        folder = self.top / f"case-{self.count}"
        shutil.copytree(self.home, folder)
        outside = folder.with_name(f"{folder.name}-outside")
        outside.mkdir()
        try:
            if edit is not None:
                edit(folder / "run")
            before = content(outside)
            done = self.command(folder, *VERBS[verb])
            assert content(outside) == before, "changed outside the run directory"
            if edit is not None and done.code != self.untouched(verb).code:
                return done
            return Observed(done.code, done.text, numbers(verb, folder, done))
        finally:
            shutil.rmtree(folder)
            shutil.rmtree(outside)

    def untouched(self, verb: str) -> Observed:
        if verb not in self._untouched:
            done = self.observe(verb)
            assert done.code == 0, done.text
            self._untouched[verb] = done
        return self._untouched[verb]

    def judge(self, place: Path, kind: str, verb: str) -> str:
        edits = OF_FOLDERS if (self.home / "run" / place).is_dir() else OF_FILES
        wanted = self.untouched(verb)
        word, _, key = kind.partition(" ")
        edit = partial(retype, key=key) if word == "retype" else edits[kind]
        done = self.observe(verb, lambda run: edit(run / place))
        shown = done.text[-600:]
        assert "Traceback" not in done.text, shown
        assert done.code in (0, 1, 2), f"exit code {done.code}: {shown}"
        names = {place.name, str(place), key or place.name}
        if place.name == "result.json":
            names.add("incomplete")  # the status of a run that has none
        is_named = any(
            re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", unshown(wanted, done))
            for name in names
        )
        if done.code != wanted.code:
            assert is_named, f"exit code {done.code}, and the file is not named: {shown}"
            return "refused" if done.code == 2 else "told, exit code 1"
        if done.numbers == wanted.numbers:
            return "without effect"
        if verb == "diff":  # it compares with a run that was not edited
            return "shown"
        assert is_named, f"other numbers: {done.numbers!s:.600} for {wanted.numbers!s:.600}"
        return "noticed"


def unshown(wanted: Observed, done: Observed) -> str:
    """Return the lines that the untouched run does not print, as it may name any file, too."""
    known = set(wanted.text.splitlines())
    return "\n".join(line for line in done.text.splitlines() if line not in known)


def content(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        if p.is_file()
        else ""
        for p in sorted(folder.rglob("*"))
    }


def numbers(verb: str, folder: Path, done: Observed) -> Any:
    """Return what a person would take from a command."""
    if verb == "clean":
        return sorted(p.name for p in folder.iterdir())
    if verb in ("report", "diff", "schedule"):
        return re.sub(r"\d+:\d\d|[\d.]+ s\b", "", done.text)
    run = folder / ("run" if verb == "resume" else "new")
    result = read_optional_json(run / "result.json")
    checkpoints = {
        path.name: read_optional_json(path / "manifest.json").get("files")
        for path in run.glob("checkpoints/step-*")
    }
    if verb == "resume":  # the earlier of the two may be one that the edit has damaged
        checkpoints = {"step-6": checkpoints.get("step-6")}
    tensors = {
        step: {n: f["sha256"] for n, f in (files or {}).items() if n.endswith(".safetensors")}
        for step, files in checkpoints.items()
    }
    kept = {k: result.get(k) for k in ("status", "step", "examples", "metrics", "best")}
    said = "identical" in done.text if verb == "reproduce" else None
    return [kept, read_jsonl(run / "metrics.jsonl"), tensors, said]


def cases(run: Path, places: list[Path]) -> Iterator[tuple[Path, str, str]]:
    """Yield place, edit and verb of every case."""
    for place in places:
        for kind in OF_FOLDERS if (run / place).is_dir() else [*OF_FILES, *keys_of(run / place)]:
            for verb in VERBS:
                yield place, kind, verb


def is_expected(place: Path, kind: str, verb: str) -> bool:
    return any(
        str(place) == name and re.fullmatch(kinds, kind) is not None and verb in verbs
        for name, kinds, verbs in UNNOTICED
    )


def edits(table: Table, top: Path, *, short: bool) -> None:
    """Make every edit of every file, under the verbs in turns."""
    table.fault = "21: edited run directories"
    scene = Scene(table.runner(), top)
    run = scene.home / "run"
    for number, (place, kind, verb) in enumerate(cases(run, scene.places())):
        if number % (157 if short else 3):
            continue
        known = re.sub(r"tfevents.*", "tfevents", str(place))  # without host, time, process
        case = f"{kind} {known}, {verb}"
        if is_expected(place, kind, verb):
            table.cases["not judged"] += 1
            continue
        table.judge(case, lambda p=place, k=kind, v=verb: scene.judge(p, k, v))
