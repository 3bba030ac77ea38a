"""Distinguishes files written by this user's runner from files of somebody else.

The owner of a file does not show it, since whoever unpacks an archive owns its files. So a record
is sealed with a key that is in no run: it is in the cache folder, readable by its user only.
"""

from __future__ import annotations

import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from runner.errors import DataError
from runner.machine.cache_folder import cache_root

_KEY_BYTES = 32


def make_seal(text: str) -> str | None:
    """Return the seal of a text; None if the cache folder cannot keep a key."""
    try:
        path = _key_path()
        key = _read_key(path) or _make_key(path)
    except (OSError, DataError):
        return None
    return None if key is None else _digest(key, text)


def is_sealed(text: str, seal: object) -> bool:
    """Return whether a seal is of this text and this user's."""
    try:
        key = _read_key(_key_path())
    except (OSError, DataError):
        return False
    return key is not None and isinstance(seal, str) and seal == _digest(key, text)


def _digest(key: bytes, text: str) -> str:
    return hmac.digest(key, text.encode(errors="surrogateescape"), "sha256").hex()


def _key_path() -> Path:
    return cache_root() / f"key-{os.getuid()}"  # several users may share a cache


def _read_key(path: Path) -> bytes | None:
    """Return the key; None if there is none, or somebody else could have made or read it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        key = file.read(_KEY_BYTES)
    is_private = facts.st_uid == os.getuid() and not facts.st_mode & 0o077
    return key if is_private and len(key) == _KEY_BYTES else None


def _make_key(path: Path) -> bytes | None:
    """Make the key atomically; if several processes do so at once, one wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    return _read_key(path)
