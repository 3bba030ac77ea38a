"""Real faults against the checkpointer: kills, full disks, I/O errors, damage. Prints a table.

`python -m tests.rundir.checkpoint.faults` runs all faults in full, `... kills full_disk` runs some,
and `--short` runs a few cases of each. The exit code is 0 if every case passed. Each case is a fork
of this process, which has imported torch and has no threads, so that a kill is real and takes
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
from tests.reliability.cases import fault_seed
from tests.rundir.checkpoint.damage import DAMAGES
from tests.rundir.checkpoint.processes import (
    NOT_SAVED,
    SYSCALLS,
    fork,
    kill_at,
    run_captured,
    strace,
    wait_for_exit,
    why_no_strace,
)
from tests.rundir.checkpoint.scenes import (
    SCENES,
    check_recovery,
    fail_on_warning,
    newest_content,
    save,
    scene_new,
    scene_replace,
    state,
)


def kills(table: Table, top: Path, *, short: bool) -> None:
    """Fault 2: the process kills itself at every call that touches the disk."""
    for scene in SCENES:
        for torn in (False,) if short else (False, True):
            for k in range(1, 1000):
                folder = new_folder(top)
                act = scene(folder)

                def dies(act=act, k=k, torn=torn) -> None:
                    kill_at(k, torn=torn)
                    act()

                code = wait_for_exit(fork(dies))
                if code == 0:
                    break
                assert code == -signal.SIGKILL
                case = f"{scene.__name__}, call {k}"
                table.judge(case, lambda folder=folder: f"found {check_recovery(folder, {1, 2})}")


def traced_calls(
    scene: Callable[[Path], Callable[[], None]], top: Path
) -> Iterator[tuple[str, int]]:
    """Yield every system call of a scene: its name and its number in the calling thread."""
    code, errors, trace = strace(scene(new_folder(top)))
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
    """Fault 2: strace sends SIGKILL at the entry of every system call that touches the disk."""
    if unusable := why_no_strace():
        table.skipped = unusable
        return
    for scene in SCENES:
        calls = list(traced_calls(scene, top))
        for name, k in random.Random(7).sample(calls, 4) if short else calls:

            def outcome(scene=scene, name=name, k=k) -> str:
                folder = new_folder(top)
                code, _, _ = strace(scene(folder), "-e", f"inject={name}:signal=SIGKILL:when={k}")
                assert code == -signal.SIGKILL, code
                return f"found {check_recovery(folder, {1, 2})}"

            table.judge(f"{scene.__name__}, {name} {k}", outcome)


def random_kills(table: Table, top: Path, *, short: bool) -> None:
    """Faults 1 and 3: SIGKILL at random instants of a process that saves all the time."""
    seed = fault_seed()
    table.fault += f" (seed {seed})"
    rng = random.Random(seed)
    folder, content = new_folder(top), 1
    save(folder, 1, 1)
    for case in range(8 if short else 200):

        def saves(content=content) -> None:
            checkpointer = Checkpointer(folder, keep=1, warn=fail_on_warning)
            for new in range(content + 1, content + 1000):
                checkpointer.save(new, state(new), {"content": new})

        pid = fork(saves)
        time.sleep(rng.uniform(0, 0.08))
        os.kill(pid, signal.SIGKILL)
        wait_for_exit(pid)
        table.judge(str(case), lambda content=content: check_no_step_back(folder, content))
        content = newest_content(folder)


def check_no_step_back(folder: Path, before: int) -> str:
    found = newest_content(folder)
    assert found >= before, f"went back from {before} to {found}"
    return "old found" if found == before else "newer found"


def check_failed_save(folder: Path, code: int, errors: str, *, name: str) -> str:
    """Check that a failed save has a clear error and keeps the old checkpoint alone."""
    if code == 0:
        assert newest_content(folder) == 2
        return "saved"
    assert code == NOT_SAVED, f"exit code {code}: {errors}"
    for part in (str(folder), name, "bytes are free", "intact", "It needs"):
        assert part in errors, f"{part!r} is not in {errors!r}"
    assert newest_content(folder) in (1, 2)
    left = [p.name for p in folder.iterdir() if not p.name.startswith("step-")]
    assert not left, f"temporary files left: {left}"
    return "refused"


# The constructor creates and lists the folder in the main thread, which raises a plain OSError.
BEFORE_SAVING = (("mkdir", 1), ("openat", 1))


def io_errors(table: Table, top: Path, *, short: bool) -> None:
    """Fault 5: EIO from every system call of a save, once each, and from every fsync."""
    if unusable := why_no_strace():
        table.skipped = unusable
        return
    for scene in (scene_new, scene_replace):
        calls = [c for c in traced_calls(scene, top) if c not in BEFORE_SAVING]
        picked = random.Random(5).sample(calls, 4) if short else calls
        for name, when in [*picked, ("fsync", "1+")]:

            def outcome(scene=scene, name=name, when=when) -> str:
                folder = new_folder(top)
                inject = f"inject={name}:error=EIO:when={when}"
                code, errors, _ = strace(scene(folder), "-e", inject)
                return check_failed_save(folder, code, errors, name="EIO")

            table.judge(f"{scene.__name__}, {name} {when}", outcome)


def read_errors(table: Table, top: Path, *, short: bool) -> None:
    """Fault 5: EIO while the newest is read gives an older one with a warning, or an error."""
    if unusable := why_no_strace():
        table.skipped = unusable
        return
    folder = new_folder(top)
    save(folder, 1, 1)
    save(folder, 2, 2)

    def reads() -> None:
        warnings: list[str] = []
        found = newest_content(folder, warnings.append)
        assert (found, len(warnings)) in ((2, 0), (1, 1)), (found, warnings)
        sys.exit(10 + found)

    for k in range(2, 7 if short else 22):  # the first read is that of the gate
        code, errors, _ = strace(reads, "-e", f"inject=read:error=EIO:when={k}")

        def outcome(code=code, errors=errors) -> str:
            assert code in (11, 12) or "SystemExit" in errors, f"{code}: {errors}"
            return "older, with a warning" if "SystemExit: 11" in errors else "newest"

        table.judge(f"read {k}", outcome)


def full_disk(table: Table, top: Path, *, short: bool) -> None:
    """Fault 4: no space is left on a small tmpfs, for 20 amounts of free space."""
    mounted = new_folder(top)
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
            code, errors = run_captured(lambda folder=folder: save(folder, 2, 2))
            table.judge(
                f"{pages} pages free",
                lambda f=folder, c=code, e=errors: check_failed_save(f, c, e, name="ENOSPC"),
            )
            filler.unlink()
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def file_limit(table: Table, top: Path, *, short: bool) -> None:
    """Fault 4: a limit of the file size, under which a write takes only a part."""
    limits = list(range(0, 40_000, 8_000 if short else 2_000))
    for limit in [*limits, -10]:  # the last bytes of the last write are lost
        folder = new_folder(top)
        act = scene_new(folder)
        if limit < 0:
            limit += (folder / "step-1" / "shard-00001.safetensors").stat().st_size

        def limited(act=act, limit=limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            act()

        code, errors = run_captured(limited)
        table.judge(
            f"{limit} bytes",
            lambda f=folder, c=code, e=errors: check_failed_save(f, c, e, name="EFBIG"),
        )


def damage(table: Table, top: Path, *, short: bool) -> None:
    """Fault 6: damage to the newest checkpoint is noticed, and the one before is found."""
    whole = new_folder(top)
    save(whole, 1, 1)
    save(whole, 2, 2)
    for seed in range(32 if short else 250):
        rng = random.Random(seed)
        folder = new_folder(top)
        shutil.copytree(whole, folder, dirs_exist_ok=True)
        kind = rng.choice(list(DAMAGES))
        damaged = DAMAGES[kind](rng, folder / "step-2")

        def outcome(folder=folder, kind=kind, damaged=damaged) -> str:
            warnings: list[str] = []
            assert newest_content(folder, warnings.append) == 1, f"not noticed: {damaged}"
            assert len(warnings) == 1, warnings
            assert "step 2" in warnings[0], warnings
            return kind

        table.judge(f"seed {seed}, {damaged}", outcome)


FAULTS = {
    f.__name__: f
    for f in (
        kills, strace_kills, random_kills, io_errors, read_errors, full_disk, file_limit, damage
    )
}  # fmt: skip


def new_folder(top: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=top))


@contextmanager
def small_chunks() -> Iterator[None]:
    """Write each file in several chunks, as happens with real sizes."""
    before, files.CHUNK_BYTES = files.CHUNK_BYTES, 8192
    yield
    files.CHUNK_BYTES = before


if __name__ == "__main__":
    sys.exit(count_faults(FAULTS, __doc__, around=small_chunks))
