"""Errors that a user can cause. Other errors are bugs or the machine's, and exit with 1."""

from __future__ import annotations

import difflib
import errno
import logging
import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

# a full disk, a quota, a limit of `ulimit -f` or of the file system
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(ValueError):
    """The configuration or the input is wrong: one clear message, no traceback, exit code 2."""


class ConfigError(UserError):
    """A key, a value or a combination in the configuration is wrong.

    Args:
        text: the message.
        problems: the messages that it combines; none: it is a single message.
    """

    def __init__(self, text: str = "", problems: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.problems = tuple(problems or (text,))


class DataError(UserError):
    """A file, column, row or value in the data is wrong; the message names it."""


def warn(text: str) -> None:
    """Print a warning on stderr and in the log of a run."""
    print(text, file=sys.stderr, flush=True)
    logging.getLogger("runner").warning(text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type's name if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def describe_error(error: BaseException) -> str:
    """Return an error's message, after its type unless it is the user's or the system's."""
    is_clear = isinstance(error, UserError | OSError)
    return str(error) if is_clear else f"{type(error).__name__}: {error}"


def describe_raised_warning(error: Warning) -> str:
    """Return the message for a warning that Python raised, as told to do for all of them."""
    text = " ".join(re.sub(r"\x1b\[\d*m", "", str(error)).split())
    place = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__} in {place.filename}, line {place.lineno}: {text}; PYTHONWARNINGS "
        "or -W makes errors of warnings, also of those of libraries. Unset it, or limit it to a "
        "module of your own: PYTHONWARNINGS=error:::my_package.my_module"
    )


@contextmanager
def system_errors(what: str, hint: str = "", kind: type[UserError] = UserError) -> Iterator[None]:
    """Convert system errors in the block to messages: `what`, the reason, and `hint`.

    Raises:
        UserError: or the requested subclass of it.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}{hint}") from error


def is_interruption(error: BaseException | None) -> bool:
    """Return whether Ctrl-C caused an error: a library's `finally` may fail on the way out."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def nearest_hint(name: str, known: Iterable[str], count: int = 1) -> str:
    """Return `; nearest: 'x'` for an error message, or "" if no known name is similar.

    Case is ignored.
    """
    name = str(name)

    def distance(other: str) -> tuple[float, bool, int]:
        """Order equal ratios: swapped letters first, then those with most letters in place."""
        ratio = difflib.SequenceMatcher(None, other.lower(), name.lower()).ratio()
        return -ratio, sorted(other) != sorted(name), -sum(map(str.__eq__, other, name))

    by_lower: dict[str, list[str]] = {}
    for other in sorted(map(str, known), reverse=True):
        by_lower.setdefault(other.lower(), []).append(other)
    similar = difflib.get_close_matches(name.lower(), by_lower, max(1, len(by_lower)), cutoff=0.5)
    close = [other for lower in similar for other in by_lower[lower]]
    nearest = sorted(close, key=distance)[:count]
    return f"; nearest: {', '.join(map(repr, nearest))}" if nearest else ""


def explain_hint(keys: Sequence[str]) -> str:
    """Return the nearest keys for an error message, and the command that explains more."""
    if not keys:
        return "; `python -m runner ls` lists what there is"
    listed = ", ".join(repr(key) for key in keys)
    return f"; nearest: {listed}; `python -m runner explain {keys[0]}` says what that is"


def unknown_choice(key: str, value: object, known: Iterable[str]) -> str:
    """Return the message for a value that is not one of the known ones."""
    known = list(known)
    text = f"{key} {value}" if key.startswith("-") else f"{key}={value}"  # a flag, or a key
    return f"{text}: must be one of {', '.join(known)}{nearest_hint(str(value), known)}"


def unknown_keys(keys: Iterable[object], known: Iterable[str], where: str) -> Iterator[str]:
    """Yield a message for each unknown key below `where`, with the known ones."""
    known = list(known)
    for key in keys:
        if key not in known:
            near = nearest_hint(str(key), known)
            yield f"{where}.{key}: there is no such key{near}; known: {', '.join(known)}"


def shell_path(path: object) -> str:
    """Return a path as a word of a shell that no command takes for a flag."""
    text = str(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def unknown_flag(word: str, known: Iterable[str]) -> str:
    """Return the message for a word with a leading dash: a wrong flag, or possibly a path."""
    name = word.partition("=")[0]
    if "/" in name or os.path.exists(word):
        return f"{word}: no such flag; a path that begins with a dash is {shell_path(word)}"
    return f"{word}: no such flag{nearest_hint(name, known)}; --help lists them"


def already_exists(flag: str, path: object) -> str:
    """Return the message for a file or folder that would be written, but exists already."""
    name, kinds = str(path), (os.path.isfile, os.path.isdir)
    if os.path.exists(name) and not any(is_kind(name) for is_kind in kinds):  # not to be removed
        return f"{flag} {path}: is a pipe or a device; nothing was written. Name a file or folder"
    return (
        f"{flag} {path}: exists already; nothing was written. Name another, or remove it first: "
        f"rm -r {shell_path(path)}"
    )


def unknown_setting(key: str, name: str, owner: str, known: Iterable[str]) -> str:
    """Return the message for a key `name` below `key` that its owner does not have.

    Args:
        key: the dotted key of the group, such as `optimizer.sparse`.
        owner: what the settings belong to, such as `adam`.
    """
    known = list(known)
    near = nearest_hint(name, known)
    listed = f"known: {', '.join(known)}" if known else "it has none"
    return f"{key}.{name} is not a setting of {owner}{near}; {listed}"


def deletion_hint(key: str, names: Sequence[str]) -> str:
    """Return what deletes the keys `names` below `key`, for the end of a message."""
    if "[" in key:  # the command line cannot delete keys in a list, such as parts
        return ""
    words = " ".join(f"~{key}.{name}" for name in names)
    return f"; {words} {'leaves it' if len(names) == 1 else 'leave them'} out"


def raise_combined(problems: Iterable[str]) -> None:
    """Raise one error with all messages, so that a command shows all its mistakes at once.

    Raises:
        ConfigError: with every message, if there is any.
    """
    messages = list(dict.fromkeys(problems))
    if len(messages) == 1:
        raise ConfigError(messages[0])
    if messages:
        numbered = "\n".join(f"  {i}. {message}" for i, message in enumerate(messages, 1))
        raise ConfigError(f"{len(messages)} mistakes\n{numbered}", messages)


def nearest_keys(key: str, known: Iterable[str]) -> list[str]:
    """Return the three most similar dotted keys, best first.

    Both the whole key and its last part are compared: `lr` is nearest to `optimizer.dense.lr`, and
    `trainer.max_step` to `trainer.max_steps`. A key of the same group that ends in its words is the
    nearest: given `checkpoint.every`, the nearest is `checkpoint.save_every`.
    """
    key = key.lower().replace("learning_rate", "lr")  # as it is named in other tools
    group, _, last = key.rpartition(".")

    def similarity(other: str) -> float:
        other = other.lower()
        other_group, _, other_last = other.rpartition(".")
        if group and group == other_group and other_last.endswith(f"_{last}"):
            return 1.0
        of_key = difflib.SequenceMatcher(None, key, other).ratio()
        of_last = difflib.SequenceMatcher(None, last, other_last).ratio()
        return max(of_key, 0.95 * of_last + 0.05 * of_key)

    scored = sorted(((similarity(k), k) for k in known), reverse=True)
    return [k for score, k in scored[:3] if score >= 0.6 and score >= scored[0][0] - 0.02]


def is_drawable(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with colours and a cursor that can be moved."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def wrap_words(text: str, width: int, indent: int = 0) -> str:
    """Break lines between words, and not within a command in backticks, which may be copied.

    Args:
        indent: of continuation lines, in addition to that of the line itself.
    """
    lines = []
    for line in text.split("\n"):
        below = " " * (len(line) - len(line.lstrip()) + indent)
        first, *words = re.findall(r"\s*(?:`[^`]*`|\S)+", line) or [line]
        for word in words:
            if len(first) + len(word) <= width:
                first += word
            else:
                lines.append(first)
                first = below + word.lstrip()
        lines.append(first)
    return "\n".join(lines)
