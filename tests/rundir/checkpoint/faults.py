"""Real faults against the checkpointer: kills, full disks, I/O errors, damage. Prints a table.

`python -m tests.rundir.checkpoint.faults` runs all of them in full, `... kills full_disk` some,
`--short` a tier of each. The exit code is 0 if every case passed. Each case is a fork of this
process, which has torch imported and no threads, so that a kill is a real one and costs
milliseconds.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.rundir.checkpoint import Checkpointer, files
from tests.fault_table import Table, count_faults
from tests.rundir.checkpoint.damage import DAMAGES
from tests.rundir.checkpoint.processes import (
    NOT_SAVED,
    SYSCALLS,
    ended,
    fork,
    heard,
    kill_at,
    no_strace,
    strace,
)
from tests.rundir.checkpoint.scenes import (
    SCENES,
    goes_on,
    newest,
    refuse,
    save,
    scene_new,
    scene_replace,
    state,
)


def kills(table: Table, top: Path, *, short: bool) -> None:
    """Fault 2: a kill at every call that touches the disk, from inside."""
    for scene in SCENES:
        for torn in (False,) if short else (False, True):
            for k in range(1, 1000):
                folder = fresh(top)
                act = scene(folder)

                def dies(act=act, k=k, torn=torn) -> None:
                    kill_at(k, torn=torn)
                    act()

                code = ended(fork(dies))
                if code == 0:
                    break
                assert code == -signal.SIGKILL
                case = f"{scene.__name__}, call {k}"
                table.judge(case, lambda folder=folder: f"found {goes_on(folder, {1, 2})}")


def calls_of(scene: Callable[[Path], Callable[[], None]], top: Path) -> Iterator[tuple[str, int]]:
    """Every system call of a scene, by its name and its number in the thread that makes it."""
    code, errors, trace = strace(scene(fresh(top)))
    assert code == 0, errors
    counts: Counter = Counter()
    for line in trace.splitlines():
        thread, _, call = line.partition(" ")
        name = call.strip().partition("(")[0]
        if name in SYSCALLS:
            counts[thread, name] += 1
            if counts[thread, name] == max(n for (_, c), n in counts.items() if c == name):
                yield name, counts[thread, name]


def strace_kills(table: Table, top: Path, *, short: bool) -> None:
    """Fault 2: SIGKILL at the entry of every system call that touches the disk, from outside."""
    if unusable := no_strace():
        table.skipped = unusable
        return
    for scene in SCENES:
        calls = list(calls_of(scene, top))
        for name, k in random.Random(7).sample(calls, 4) if short else calls:
            folder = fresh(top)
            code, _, _ = strace(scene(folder), "-e", f"inject={name}:signal=SIGKILL:when={k}")
            assert code == -signal.SIGKILL, code
            case = f"{scene.__name__}, {name} {k}"
            table.judge(case, lambda folder=folder: f"found {goes_on(folder, {1, 2})}")


def random_kills(table: Table, top: Path, *, short: bool) -> None:
    """Fault 1, 3: SIGKILL from outside at random instants of a process that saves all the time."""
    seed = int(os.environ.get("FAULT_SEED", time.time_ns() % 10**6))
    table.fault += f" (seed {seed})"
    rng = random.Random(seed)
    folder, content = fresh(top), 1
    save(folder, 1, 1)
    for case in range(8 if short else 200):

        def saves(content=content) -> None:
            checkpointer = Checkpointer(folder, keep=1, warn=refuse)
            for new in range(content + 1, content + 1000):
                checkpointer.save(new, state(new), {"content": new})

        pid = fork(saves)
        time.sleep(rng.uniform(0, 0.08))
        os.kill(pid, signal.SIGKILL)
        ended(pid)
        table.judge(str(case), lambda content=content: grown(folder, content))
        content = newest(folder)


def grown(folder: Path, before: int) -> str:
    found = newest(folder)
    assert found >= before, f"went back from {before} to {found}"
    return "old found" if found == before else "newer found"


def told_and_intact(folder: Path, code: int, errors: str, *, name: str) -> str:
    """A save failed: clear error, exit code, the old one intact, temporary files gone."""
    if code == 0:
        assert newest(folder) == 2
        return "saved"
    assert code == NOT_SAVED, f"exit code {code}: {errors}"
    for part in (str(folder), name, "bytes are free", "intact", "It needs"):
        assert part in errors, f"{part!r} is not in {errors!r}"
    assert newest(folder) in (1, 2)
    left = [p.name for p in folder.iterdir() if not p.name.startswith("step-")]
    assert not left, f"temporary files left: {left}"
    return "refused"


# The constructor makes and lists the folder, in the main thread: that fails as any OSError does.
BEFORE_SAVING = (("mkdir", 1), ("openat", 1))


def io_errors(table: Table, top: Path, *, short: bool) -> None:
    """Fault 5: EIO from every system call of a save, once each, and from fsync for good."""
    if unusable := no_strace():
        table.skipped = unusable
        return
    for scene in (scene_new, scene_replace):
        calls = [c for c in calls_of(scene, top) if c not in BEFORE_SAVING]
        picked = random.Random(5).sample(calls, 4) if short else calls
        for name, when in [*picked, ("fsync", "1+")]:
            folder = fresh(top)
            inject = f"inject={name}:error=EIO:when={when}"
            code, errors, _ = strace(scene(folder), "-e", inject)
            case = f"{scene.__name__}, {name} {when}"
            table.judge(
                case, lambda f=folder, c=code, e=errors: told_and_intact(f, c, e, name="EIO")
            )


def read_errors(table: Table, top: Path, *, short: bool) -> None:
    """Fault 5: EIO while the newest is read: an older one with a warning, or a refusal."""
    if unusable := no_strace():
        table.skipped = unusable
        return
    folder = fresh(top)
    save(folder, 1, 1)
    save(folder, 2, 2)

    def reads() -> None:
        warnings: list[str] = []
        found = newest(folder, warnings.append)
        assert (found, len(warnings)) in ((2, 0), (1, 1)), (found, warnings)
        sys.exit(10 + found)

    for k in range(2, 7 if short else 22):  # the first read is of the gate
        code, errors, _ = strace(reads, "-e", f"inject=read:error=EIO:when={k}")

        def outcome(code=code, errors=errors) -> str:
            assert code in (11, 12) or "SystemExit" in errors, f"{code}: {errors}"
            return "older, with a warning" if "SystemExit: 11" in errors else "newest"

        table.judge(f"read {k}", outcome)


def full_disk(table: Table, top: Path, *, short: bool) -> None:
    """Fault 4: no space left, on a small tmpfs, for 20 amounts of space."""
    mounted = fresh(top)
    size = 1 << 20
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        table.skipped = "a tmpfs cannot be mounted here"
        return
    try:
        for pages in range(0, 20, 4 if short else 1):
            folder = mounted / "checkpoints"
            shutil.rmtree(folder, ignore_errors=True)
            save(folder, 1, 1)
            filler = mounted / "filler"
            free = shutil.disk_usage(mounted).free
            filler.write_bytes(bytes(max(0, free - 4096 * pages)))
            code, errors = heard(lambda folder=folder: save(folder, 2, 2))
            table.judge(
                f"{pages} pages free",
                lambda f=folder, c=code, e=errors: told_and_intact(f, c, e, name="ENOSPC"),
            )
            filler.unlink()
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def file_limit(table: Table, top: Path, *, short: bool) -> None:
    """Fault 4: the limit of a file's size, which needs no rights: a write takes only a part."""
    limits = list(range(0, 40_000, 8_000 if short else 2_000))
    for limit in [*limits, -10]:  # the last bytes of the last write are lost
        folder = fresh(top)
        act = scene_new(folder)
        if limit < 0:
            limit += (folder / "step-1" / "shard-00001.safetensors").stat().st_size

        def limited(act=act, limit=limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            act()

        code, errors = heard(limited)
        table.judge(
            f"{limit} bytes",
            lambda f=folder, c=code, e=errors: told_and_intact(f, c, e, name="EFBIG"),
        )


def damage(table: Table, top: Path, *, short: bool) -> None:
    """Fault 6: the newest is damaged in some way: noticed, and the one before found."""
    whole = fresh(top)
    save(whole, 1, 1)
    save(whole, 2, 2)
    for seed in range(32 if short else 250):
        rng = random.Random(seed)
        folder = fresh(top)
        shutil.copytree(whole, folder, dirs_exist_ok=True)
        kind = rng.choice(list(DAMAGES))
        told = DAMAGES[kind](rng, folder / "step-2")

        def outcome(folder=folder, kind=kind, told=told) -> str:
            warnings: list[str] = []
            assert newest(folder, warnings.append) == 1, f"not noticed: {told}"
            assert len(warnings) == 1, warnings
            assert "step 2" in warnings[0], warnings
            return kind

        table.judge(f"seed {seed}, {told}", outcome)


FAULTS = {
    f.__name__: f
    for f in (
        kills, strace_kills, random_kills, io_errors, read_errors, full_disk, file_limit, damage
    )
}  # fmt: skip


def fresh(top: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=top))


@contextmanager
def small_pieces() -> Iterator[None]:
    """Several writes a file, as real sizes have them."""
    before, files.CHUNK_BYTES = files.CHUNK_BYTES, 8192
    yield
    files.CHUNK_BYTES = before


if __name__ == "__main__":
    sys.exit(count_faults(FAULTS, __doc__, around=small_pieces))
