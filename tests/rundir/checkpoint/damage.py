"""Ways to damage the folder of a checkpoint. Each returns a description of what it did."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path


def _any_file(rng: random.Random, folder: Path) -> Path:
    return rng.choice(sorted(folder.iterdir()))


def truncate(rng: random.Random, folder: Path) -> str:
    path = _any_file(rng, folder)
    size = rng.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.truncate(size)
    return f"{path.name} cut to {size} bytes"


def flip_bit(rng: random.Random, folder: Path) -> str:
    path = _any_file(rng, folder)
    raw = bytearray(path.read_bytes())
    place, bit = rng.randrange(len(raw)), rng.randrange(8)
    raw[place] ^= 1 << bit
    path.write_bytes(raw)
    return f"{path.name}: bit {bit} of byte {place}"


def empty(rng: random.Random, folder: Path) -> str:
    path = _any_file(rng, folder)
    path.write_bytes(b"")
    return f"{path.name} emptied"


def delete(rng: random.Random, folder: Path) -> str:
    path = _any_file(rng, folder)
    path.unlink()
    return f"{path.name} deleted"


def delete_all(rng: random.Random, folder: Path) -> str:
    for path in folder.iterdir():
        path.unlink()
    return "all files deleted"


def zero_page(rng: random.Random, folder: Path) -> str:
    """Zero a page, as if it had never reached the disk."""
    path = _any_file(rng, folder)
    raw = bytearray(path.read_bytes())
    begin = rng.randrange(0, len(raw), 512)
    raw[begin : begin + 512] = bytes(len(raw[begin : begin + 512]))
    path.write_bytes(raw)
    return f"{path.name}: zeros from byte {begin}"


def append(rng: random.Random, folder: Path) -> str:
    path = _any_file(rng, folder)
    with path.open("ab") as file:
        file.write(rng.choice([b"\n", b" ", b"\0", b"x" * 100]))
    return f"{path.name} grew"


def exchange(rng: random.Random, folder: Path) -> str:
    """Replace a file by that of the checkpoint before."""
    path = _any_file(rng, folder)
    shutil.copy(folder.with_name("step-1") / path.name, path)
    return f"{path.name} taken from step 1"


def link(rng: random.Random, folder: Path) -> str:
    path = _any_file(rng, folder)
    if path.name == "manifest.json":
        return delete(rng, folder)
    moved = path.rename(folder.parent / f"moved-{path.name}")
    path.symlink_to(moved)
    return f"{path.name} is a link out of the folder"


def add_shard(rng: random.Random, folder: Path) -> str:
    shutil.copy(folder / "shard-00001.safetensors", folder / "shard-00002.safetensors")
    return "a shard too many"


DAMAGES: dict[str, Callable[[random.Random, Path], str]] = {
    f.__name__: f
    for f in (
        truncate, flip_bit, empty, delete, delete_all, zero_page, append, exchange, link, add_shard
    )
}  # fmt: skip
