"""The machine: its cores and threads, how memory is kept, and how much of it is left."""

from __future__ import annotations

import ctypes
import gc
import logging
import math
import mmap
import os
import platform
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

from runner.errors import UserError

# How often a thread of OpenMP spins between two tasks before it sleeps. Measured on two cores that
# other processes used as well, in rows/s of a DLRM-like step: 300 gave 34k, 0 (sleep at once) 32k,
# 1,000 27k, 3,000 18k, 10,000 15k and OpenMP's default 10k. The default is best on an idle machine.
OPENMP_SPIN_COUNT = "300"


def usable_cores(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Count the cores that this process may use: its affinity, or its container's share if less."""
    cores = len(os.sched_getaffinity(0))
    for group, is_v1 in _control_groups("cpu", proc, cgroup):
        try:
            if is_v1:
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                quota, period = (int((group / name).read_text()) for name in names)
            else:
                quota, period = map(int, (group / "cpu.max").read_text().split())
        except (OSError, ValueError):  # no such group here, or no limit: "max"
            continue
        if quota > 0:
            cores = max(1, min(cores, math.ceil(quota / period)))
    return cores


def _control_groups(controller: str, proc: Path, cgroup: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's control groups, and whether they are of version 1.

    Those above them follow, since their limits hold as well. A container may see its own group as
    the root, under a path that is not there.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # the system is not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        is_v1 = bool(controllers)
        if is_v1 and controller not in controllers.split(","):
            continue
        root = cgroup / controller if is_v1 else cgroup
        group = root / path.lstrip("/")
        while True:
            yield group, is_v1
            if group == root:
                break
            group = group.parent


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name, with those of its extensions that decide how fast bf16 is."""
    try:
        facts = dict(line.split(":", 1) for line in cpuinfo.read_text().splitlines() if ":" in line)
    except OSError:  # the system is not Linux
        return platform.processor() or platform.machine()
    fields = {name.strip(): value.strip() for name, value in facts.items()}
    known = set(fields.get("flags", "").split()) & {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}
    return ", ".join([fields.get("model name", platform.machine()), *sorted(known)])


def is_installed(module: str) -> bool:
    """Return whether a module could be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it lies in
        return False


def missing_extra(what: str, extra: str, *modules: str) -> Iterator[str]:
    """Yield a message if modules that an extra of this package brings are not installed.

    Args:
        what: needs them, as the user has written it.
        extra: brings them.
        modules: that must be there.
    """
    missing = [module for module in modules if not is_installed(module)]
    if missing:
        yield f"{what}: needs {', '.join(missing)}: pip install 'runner[{extra}]'"


def import_alone(name: str) -> None:
    """Import a module without the `__init__` of its package, which may import much more.

    Whoever imports the package later runs it as ever. Does nothing if that has happened.
    """
    package = name.partition(".")[0]
    spec = None if package in sys.modules else find_spec(package)
    if spec is None:  # whoever imports the module next is told so
        return
    sys.modules[package] = module_from_spec(spec)
    try:
        import_module(name)
    finally:
        del sys.modules[package]
    sys.meta_path.insert(0, _FinderOfRest(package))


def import_fbgemm() -> None:
    """Import FBGEMM, whose operators a jagged tensor takes.

    What it says of versions is left to `doctor`; FBGEMM 1.6 does not even know itself.

    Raises:
        UserError: if a library that it needs is not there.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        import_module("fbgemm_gpu")
    except OSError as error:
        raise UserError(
            f"FBGEMM does not load: {error.__cause__ or error}; its build for GPUs, fbgemm-gpu, "
            "needs NVIDIA's driver, and fbgemm-gpu-cpu takes its place where there is none"
        ) from error
    finally:
        logging.disable(disabled)


class _FinderOfRest(MetaPathFinder):
    """Finds a package of which modules have been imported already, and gives it these."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path) if fullname == self._package else None
        if found is not None and found.loader is not None:
            found.loader = _LoaderOfRest(found.loader, self)
        return found


class _LoaderOfRest(Loader):
    def __init__(self, loader: Loader, finder: MetaPathFinder) -> None:
        self._loader, self._finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        sys.meta_path.remove(self._finder)
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._loader
        for name, imported in list(sys.modules.items()):
            parent, _, child = name.rpartition(".")
            if parent == module.__name__:
                setattr(module, child, imported)
        self._loader.exec_module(module)


def child_import_path() -> str:
    """Return the PYTHONPATH with which a new process imports this package."""
    root = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])


def set_thread_environment(
    num_threads: int | None, environment: MutableMapping[str, str] = os.environ
) -> None:
    """Set the variables that OpenMP reads once, when torch is imported.

    Variables that the user has set stay as they are.
    """
    environment.setdefault("GOMP_SPINCOUNT", OPENMP_SPIN_COUNT)
    environment.setdefault("OMP_NUM_THREADS", str(num_threads or usable_cores()))


# collections of the middle generation after which all objects are collected
_USUAL, _POSTPONED = gc.get_threshold()[2], 1_000_000


def postpone_full_collections() -> None:
    """Let Python's garbage collector skip the oldest objects until `end_imports`.

    For a process of our own, at its start. Imports of torch and others make 400,000 objects that
    live as long as the process, and between them the collector goes six times through all that are
    there: 0.6 of the 3.5 seconds to the first update. Young objects are collected as before.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _POSTPONED)


def end_imports() -> None:
    """Leave what a process has imported out of all later collections, and collect the rest again.

    Without it each full collection stops all threads for a quarter of a second. Does nothing where
    collections were not postponed: in a process of the user's own.
    """
    young, middle, old = gc.get_threshold()
    if old == _POSTPONED:
        gc.freeze()
        gc.set_threshold(young, middle, _USUAL)


MAX_RETAINED_BYTES = 1 << 30  # freed memory that stays at the top of the heap, at most
# mallopt(3)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# madvise(2)
_MADV_RANDOM, _MADV_SEQUENTIAL, _MADV_HUGEPAGE = 1, 2, 14
_HUGE_PAGE_SIZE_FILE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")


def keep_freed_memory() -> bool:
    """Make the process keep freed memory for the next update.

    By default glibc hands large blocks back to the kernel as soon as they are freed, and the next
    update gets them again page by page, zeroed: 5,000 page faults in an update of 4,096 rows, which
    are a tenth of its time, and a quarter at 16,384 rows. The peak of memory does not change.
    Arrow's own allocator does the same as glibc, so Arrow is told to take its memory from the C
    library as well: it then reads a window of rows in two thirds of the time.

    Returns:
        Whether memory is kept; False where the C library is not glibc.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return False
    is_kept = mallopt(_M_MMAP_THRESHOLD, MAX_RETAINED_BYTES) and mallopt(
        _M_TRIM_THRESHOLD, MAX_RETAINED_BYTES
    )
    if is_kept:
        import pyarrow as pa  # late: callers that only count cores need no Arrow

        pa.set_memory_pool(pa.system_memory_pool())
    return bool(is_kept)


def use_huge_pages(address: int, num_bytes: int) -> int:
    """Ask for huge pages (2 MB on x86) for a block of memory that nobody has written to yet.

    A table of a gigabyte has 250,000 pages of 4 KB, of which the processor remembers two or three
    thousand: nearly every look-up of a random row then walks the page table before it reads. Linux
    gives huge pages to processes that ask (its default, `madvise`), to all processes, or to none.

    Returns:
        The bytes for which the advice was taken; 0 where the system does not know the advice, or
        where the block holds no whole page.
    """
    if sys.platform != "linux" or not _HUGE_PAGE_SIZE_FILE.is_file():
        return 0
    size = int(_HUGE_PAGE_SIZE_FILE.read_text())
    start, stop = -(-address // size) * size, (address + num_bytes) // size * size
    if start >= stop:
        return 0
    libc = ctypes.CDLL(None)
    block = ctypes.c_void_p(start), ctypes.c_size_t(stop - start)
    return stop - start if libc.madvise(*block, _MADV_HUGEPAGE) == 0 else 0


def advise_random_reads(address: int, num_bytes: int, *, random: bool) -> None:
    """Tell the system how a mapped file will be read: at random places, or from front to back.

    By default a page that is not in memory brings its neighbours with it (up to 8 MB of them), for
    which pages leave that are read again. Systems that do not know the advice go on as they were.
    """
    advice = _MADV_RANDOM if random else _MADV_SEQUENTIAL
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    length = address + num_bytes - start
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), advice)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error says that the host or a GPU has no memory left."""
    text = str(error)
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "out of memory" in text
        or "can't allocate memory" in text
    )


def available_memory_bytes(
    proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> float:
    """Return the memory that this process may still take; infinity if it is not known.

    That is what the host has free, or a container's or control group's share if that is less. Pages
    of files count as free in both, since the system drops them for whoever needs memory.
    """
    return min((available for available, _ in _memory_limits(proc, cgroup)), default=math.inf)


def available_memory_share(
    proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> float:
    """Return the free share of the host's memory, or of a group's limit if that is smaller.

    What counts as free is what `available_memory_bytes` says; infinity if it is not known.
    """
    shares = (available / limit for available, limit in _memory_limits(proc, cgroup) if limit)
    return min(shares, default=math.inf)


def _memory_limits(proc: Path, cgroup: Path) -> Iterator[tuple[float, float]]:
    """Yield the bytes that are free, and those that there are: of the host and of each group."""
    try:
        lines = dict(line.split(":") for line in (proc / "meminfo").read_text().splitlines())
        names = ("MemAvailable", "MemTotal")
        free, total = (float(lines[name].split()[0]) * 1024 for name in names)
    except (OSError, ValueError, KeyError, IndexError):  # the system is not Linux
        return
    yield free, total
    for group, is_v1 in _control_groups("memory", proc, cgroup):
        files = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        files = files if is_v1 else ("memory.max", "memory.current")
        prefix = "total_" if is_v1 else ""
        try:
            limit, usage = (float((group / name).read_text()) for name in files)
            rows = (group / "memory.stat").read_text().splitlines()
            found = {name: float(value) for name, value in (row.split() for row in rows)}
        except (OSError, ValueError):  # no such group here, or no limit: "max"
            continue
        pages = sum(found.get(f"{prefix}{kind}_file", 0.0) for kind in ("active", "inactive"))
        yield limit - usage + pages, limit


def count_oom_kills(
    proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Count the processes that the kernel has killed for lack of memory; None if it is unknown.

    They are those of this process's own control group, such as its container, so that what was
    killed elsewhere does not count; those of the whole machine where no group has a count.
    """
    groups = _control_groups("memory", proc, cgroup)
    counts = [g / ("memory.oom_control" if v1 else "memory.events.local") for g, v1 in groups]
    for file in [*counts, proc / "vmstat"]:
        try:
            rows = dict(row.split() for row in file.read_text().splitlines())
            return int(rows["oom_kill"])
        except (OSError, ValueError, KeyError):  # no such group here, or an older kernel
            continue
    return None
