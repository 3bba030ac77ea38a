"""The parser of a verb's words: one declaration for its flags, `--help` and completion."""

from __future__ import annotations

import argparse
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NoReturn

from runner.config_value import number_hint
from runner.errors import UserError, unknown_flag


class _Help(argparse.RawDescriptionHelpFormatter):
    """Wraps the description of a verb; indented lines, the examples, are kept whole."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n " in text:
            return super()._fill_text(text, width, indent)
        return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


class VerbParser(argparse.ArgumentParser):
    """An `argparse` parser whose errors are `UserError`s that name the nearest flag.

    Args:
        verb: the first word of the command line.
        examples: command lines, without `python -m runner`.
    """

    def __init__(self, verb: str, about: str, *, examples: Sequence[str] = ()) -> None:
        shown = "\n".join(f"  python -m runner {example}" for example in examples)
        super().__init__(
            prog=f"python -m runner {verb}",
            description=about,
            epilog=f"examples:\n{shown}" if examples else None,
            formatter_class=_Help,
            allow_abbrev=False,
            exit_on_error=False,
        )
        self.verb = verb

    def add_words(self, name: str, metavar: str, about: str) -> None:
        """Add positional words, any number of them."""
        self.add_argument(name, nargs="*", metavar=metavar, help=about)

    def add_value(
        self,
        flag: str,
        metavar: str,
        about: str,
        kind: Callable[[str], Any] = str,
        *,
        default: Any = None,
    ) -> None:
        """Add a flag with a value; `kind` converts its text."""
        self.add_argument(flag, metavar=metavar, help=about, type=kind, default=default)

    def add_switch(self, flag: str, about: str) -> None:
        """Add a flag without a value."""
        self.add_argument(flag, action="store_true", help=about)

    def add_config_dirs(self) -> None:
        """Add `--config-dir`, which may be given several times."""
        self.add_argument(
            "--config-dir",
            "-cd",
            metavar="DIR",
            action="append",
            default=[],
            help="your own groups",
        )

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of the verb, in order of declaration."""
        return tuple(
            text for a in self._actions for text in a.option_strings if text.startswith("--")
        )

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words after the verb.

        Raises:
            UserError: for an unknown flag, naming the nearest, or one without a value.
        """
        args, unknown = self.parse_own(words)
        if unknown:
            if not unknown[0].startswith("-"):
                raise UserError(f"{self.verb}: {unknown[0]!r} is a word too many; --help says more")
            raise UserError(f"{self.verb} {unknown_flag(unknown[0], self.flags)}")
        return args

    def parse_own(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Parse the verb's own flags, and leave the other words for Hydra's grammar.

        Raises:
            UserError: for a flag without its value.
        """
        try:
            return self.parse_known_intermixed_args(list(words))
        except argparse.ArgumentError as error:
            name = f" {error.argument_name}" if error.argument_name else ""
            problem = error.message.replace("expected one argument", "needs a value")
            for flag, value in pairwise(words):
                if flag == error.argument_name and value[:1] == "-" and value not in self.flags:
                    problem += f"; one that begins with a dash is joined: {flag}={value}"
            if match := re.fullmatch("invalid int value: '(.*)'", problem):
                problem += number_hint(match[1])
            raise UserError(f"{self.verb}{name}: {problem}") from error

    def error(self, message: str) -> NoReturn:
        """Raise the error that argparse would print.

        Raises:
            UserError: always.
        """
        raise UserError(f"{self.verb}: {message}; --help says more")


def split_run_words(words: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """Return the run, its inputs and the settings among words; an empty text if no run is named.

    A path such as `day=1/part.csv`, if it exists, is not a setting.
    """
    is_setting = [bool(re.match(r"[~+]*[\w.@]+=", w)) and not os.path.exists(w) for w in words]
    run, *inputs = [word for word, setting in zip(words, is_setting) if not setting] or [""]
    return run, inputs, [word for word, setting in zip(words, is_setting) if setting]
