"""`report DIR... [--sort KEY] [--html FILE]`: the results of runs and sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.errors import UserError, nearest_hint

_FLAGS = ("--sort", "--html")


def report(words: Sequence[str], allow: Sequence[str]) -> int:
    """Print tables, and write a page to FILE or as `report.html` of the one run or sweep.

    Raises:
        UserError: for a flag that does not exist, or a folder that is no run or sweep.
    """
    from runner.reporting.report.write import make_report

    folders, flags = parse_verb_flags("report", words, _FLAGS)
    if not folders:
        raise UserError("report: name a run or sweep: report DIR... [--sort KEY] [--html FILE]")
    file = flags.get("--html")
    make_report(
        [Path(f) for f in folders], sort=flags.get("--sort"), file=Path(file) if file else None
    )
    return 0


def parse_verb_flags(
    verb: str, words: Sequence[str], known: Sequence[str], switches: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """Return the words without flags, and the flags with their values.

    Args:
        verb: named in errors.
        words: those after the verb.
        known: flags with a value.
        switches: flags without one.

    Raises:
        UserError: for a flag that the verb does not know, or one without its value.
    """
    rest: list[str] = []
    flags: dict[str, str] = {}
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            rest.append(word)
        elif word in switches:
            flags[word] = ""
        elif name not in known:
            raise UserError(f"{verb} {word}: no such flag{nearest_hint(name, [*known, *switches])}")
        else:
            given = value if equals else next(left, None)
            if not given or (not equals and given.startswith("--")):
                raise UserError(f"{verb} {name}: needs a value")
            flags[name] = given
    return rest, flags
