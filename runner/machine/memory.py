"""Settings for how the memory of this process is kept, paged and read."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

MAX_RETAINED_BYTES = 1 << 30  # maximum of freed memory that stays at the top of the heap
# mallopt(3)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# madvise(2)
_MADV_RANDOM, _MADV_SEQUENTIAL, _MADV_HUGEPAGE = 1, 2, 14
_HUGE_PAGE_SIZE_FILE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")


def keep_freed_memory() -> bool:
    """Make the process keep freed memory for the next update.

    By default glibc returns large blocks to the kernel as soon as they are freed, and the next
    update gets them again page by page, zeroed: 5,000 page faults in an update of 4,096 rows, which
    take a tenth of its time, and a quarter at 16,384 rows. The peak of memory does not change.
    Arrow's allocator does the same, so Arrow is set to use the C
    library as well: it then reads a window of rows in two thirds of the time.

    Returns:
        Whether memory is kept; False if the C library is not glibc.
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


def release_freed_memory() -> None:
    """Return freed memory to the system, including gaps between blocks that are in use.

    Small results that are kept, one after each large block, prevent glibc from reusing the space of
    the block: the heap then grows with each. Other C libraries are not affected.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def use_huge_pages(address: int, num_bytes: int) -> int:
    """Request huge pages (2 MB on x86) for a block of memory that has not been written to yet.

    A table of a gigabyte has 250,000 pages of 4 KB, of which the processor caches two or three
    thousand: nearly every look-up of a random row then walks the page table before it reads. Linux
    grants huge pages to processes that ask (its default, `madvise`), to all processes, or to none.

    Returns:
        The bytes for which the request was accepted; 0 if the system does not support it, or
        if the block contains no whole page.
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
    """Tell the system how a mapped file will be read: at random positions, or sequentially.

    By default reading a page also loads its neighbours (up to 8 MB of them), which evicts pages
    that are needed again. Systems without support are not affected.
    """
    advice = _MADV_RANDOM if random else _MADV_SEQUENTIAL
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    length = address + num_bytes - start
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), advice)
