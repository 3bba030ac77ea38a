"""Gathers all warnings and errors of the package: `python -m docs.messages` writes messages.md.

Messages are found in the source: what is given to an error of users or to a warning, and what
functions return or yield that such errors are made of. Examples are what tests have provoked:
`python -m pytest -p docs.messages ...` notes the texts of the tests that it runs, and keeps one for
each message in docs/messages.json, with the test.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE, EXAMPLES = ROOT / "docs" / "messages.md", ROOT / "docs" / "messages.json"
HOLE = "…"  # stands for a value in a message
LONGEST = 400  # characters of an example
_NO_MAKERS = ("join", "str", "nearest", "sorted", "len", "repr")  # they make parts of a text
ABOUT = """\
# Warnings and errors

Every message of the package, by the subpackage that it comes from
([architecture](../ARCHITECTURE.md)). Each is shown as a test has caused it. A message that no test
causes, because it takes a full disk, a killed process, several nodes, or a missing package or
service, is shown with … for names and values. An error of the configuration or of the input begins
with `error:` and ends with [exit code 2](exit_codes.md); the message says what to do next, by a
command or a setting wherever there is one.
Written by `python -m docs.messages`; do not edit it by hand.
"""


@dataclass(frozen=True)
class Message:
    """A text that a person may read: where it is made, and its form."""

    module: str
    is_warning: bool
    form: str

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        parts = (re.escape(part) for part in self.form.split(HOLE))
        return re.compile(r"(?:^|(?<=\s))" + ".*?".join(parts) + "$", re.MULTILINE)

    @property
    def room(self) -> str:
        parts = self.module.split("/")
        return parts[1] if len(parts) > 2 else "runner"


def find_messages() -> list[Message]:
    """Return every message of the package, in the order of files and lines."""
    sources = {p: p.read_text() for p in sorted((ROOT / "runner").rglob("*.py"))}
    errors = _error_classes("\n".join(sources.values()))
    makes = re.compile(rf"Iterator\[str\]|warn|problems\.append|\b(?:{'|'.join(errors)})\(")
    nodes = {p: list(ast.walk(ast.parse(s))) for p, s in sources.items() if makes.search(s)}
    calls = [n for found in nodes.values() for n in found if isinstance(n, ast.Call) and n.args]
    raised = [call.args[0] for call in calls if _name(call.func) in errors]
    inner = (n.func for value in raised for n in ast.walk(value) if isinstance(n, ast.Call))
    makers = {name for func in inner if not (name := _name(func)).startswith(_NO_MAKERS)}
    defines = re.compile(rf"def (?:{'|'.join(makers)})\(")
    for path in sources.keys() - nodes.keys():
        if defines.search(sources[path]):
            nodes[path] = list(ast.walk(ast.parse(sources[path])))
    found: dict[Message, None] = {}
    for path in sorted(nodes):
        module = path.relative_to(ROOT).as_posix()
        for is_warning, value in _texts(nodes[path], errors, makers):
            for form in _forms(value):
                form = re.sub("%[sd]", HOLE, form) if is_warning else form  # of a log record
                if len(re.findall(r"(?<!\S)[a-z]{2,}\b", form)) > 1:
                    found[Message(module, is_warning, form)] = None
    return list(found)


def _error_classes(source: str) -> set[str]:
    """Return the names of `UserError` and of all classes below it, and what makes one."""
    bases = re.findall(r"^class (\w+)\(([\w., ]+)\):", source, re.MULTILINE)
    names, before = {"UserError", "raise_combined", "system_errors"}, 0
    while len(names) > before:
        before = len(names)
        names |= {name for name, of in bases if names & set(re.split(r"[., ]+", of))}
    return names


def _texts(
    nodes: list[ast.AST], errors: set[str], makers: set[str]
) -> Iterator[tuple[bool, ast.expr]]:
    """Yield whether it is a warning, and the expression of each message, in the order of lines."""
    found: list[tuple[bool, ast.expr]] = []
    for node in nodes:
        if isinstance(node, ast.Call) and node.args:
            name = _name(node.func)
            is_warning = name in ("warn", "_warn", "warning")
            appended = name == "append" and _name(getattr(node.func, "value", None)) == "problems"
            if name == "system_errors" and isinstance(what := node.args[0], ast.JoinedStr):
                parts = [*what.values, ast.Constant(f": {HOLE}"), *node.args[1:2]]
                found.append((False, ast.copy_location(ast.JoinedStr(parts), what)))
            elif is_warning or appended or name in errors:
                found.append((is_warning, node.args[0]))
        elif isinstance(node, ast.FunctionDef):
            is_generator = node.returns is not None and ast.unparse(node.returns) == "Iterator[str]"
            taken = (ast.Yield,) * is_generator + (ast.Return,) * (node.name in makers)
            inner = (n.value for n in ast.walk(node) if isinstance(n, taken)) if taken else ()
            found += [(False, value) for value in inner if value is not None]
    yield from sorted(found, key=lambda pair: pair[1].lineno)


def _forms(value: ast.expr) -> list[str]:
    """Return the forms of an expression's text: each of its branches, with marks for values."""
    if isinstance(value, ast.IfExp):
        return _forms(value.body) + _forms(value.orelse)
    if isinstance(value, ast.Constant):
        return [value.value] if isinstance(value.value, str) else []
    if isinstance(value, ast.BinOp):
        return [form + HOLE for form in _forms(value.left)]
    if isinstance(value, ast.JoinedStr):
        parts = [p.value if isinstance(p, ast.Constant) else HOLE for p in value.values]
        return [re.sub(f"{HOLE}+", HOLE, "".join(map(str, parts)))]
    return []


def _name(node: ast.AST | None) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def render(messages: list[Message], examples: Mapping[str, Mapping[str, str]]) -> str:
    """Return the page."""
    lines = [ABOUT]
    for title, is_warning in (("Errors", False), ("Warnings", True)):
        chosen = [m for m in messages if m.is_warning == is_warning]
        for room in dict.fromkeys(m.room for m in chosen):
            shown = [m for m in chosen if m.room == room]
            lines += [f"## {title}: {room}", ""]
            texts = (examples.get(m.form, {}).get("text", m.form) for m in shown)
            lines += [f"- {_code(text)}" for text in dict.fromkeys(texts)]
            lines += [""]
    return "\n".join(lines)


def _code(text: str) -> str:
    one_line = re.sub(r"(\S)\1{19,}", rf"\1\1\1{HOLE}", " ".join(text.split()))  # of a test
    return f"`` {one_line} ``" if "`" in one_line else f"`{one_line}`"


def find_examples(messages: list[Message], heard: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return form -> the shortest text that was heard of it, and the test that provoked it.

    A text that fits several forms is an example of the one that says most of it: `… is missing`
    fits what a longer form has made.

    Args:
        messages: of the package.
        heard: text -> the test.
    """
    forms = {message.form: message for message in messages}
    hits: dict[str, dict[str, str]] = {}  # text -> form -> the test
    for form, message in forms.items():
        parts = form.split(HOLE)
        for text, test in heard.items():
            if all(part in text for part in parts) and (hit := message.pattern.search(text)):
                hits.setdefault(re.sub(r"^ *\d+\. ", "", hit[0]), {})[form] = test
    found: dict[str, dict[str, str]] = {}
    for text in sorted(hits, key=lambda text: (len(text), text)):
        form = max(hits[text], key=lambda form: len(form.replace(HOLE, "")))
        shown = _without_places(text)
        if len(text) <= LONGEST and forms[form].pattern.search(shown):
            found.setdefault(form, {"text": shown, "test": hits[text][form]})
    return found


def _without_places(text: str) -> str:
    """Leave out the name of the machine, and the folders of a test and of the machine."""
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "host", text)
    return re.sub(rf"(?:{tempfile.gettempdir()}|{ROOT})(?:/[\w.\-]+)*/(?=[\w.\-])", "", text)


_heard: dict[str, str] = {}


def pytest_configure(config: Any) -> None:
    """Note the texts of errors and warnings of this process, and what its commands print."""
    import pytest

    from runner.config import rules
    from runner.config.rules import check, check_config
    from runner.errors import UserError
    from runner.reporting.console.view import View
    from tests.conftest import Process

    def note(text: object) -> None:
        _heard.setdefault(str(text), os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0])

    def checked(*args: Any, **more: Any) -> list[str]:
        problems = check_config(*args, **more)
        note("\n".join(problems))
        return problems

    def after(function: Callable[..., Any], read: Callable[..., object]) -> Callable[..., Any]:
        def noted(self: Any, *args: Any, **more: Any) -> Any:
            result = function(self, *args, **more)
            note(read(self, *args))
            return result

        return noted

    def plain(text: str) -> str:
        return re.sub(r"^(?:error|warning|  \d+\.):? ", "", text, flags=re.MULTILINE)

    def printed(process: Process, *_: object) -> str:
        return plain(process.output.read_text(errors="replace")) if process.output else ""

    def captured(self: pytest.CaptureFixture[str]) -> tuple[str, str]:
        shown = readouterr(self)
        note(plain(shown.err))
        return shown

    def answered(self: HTTPResponse, *args: Any) -> bytes:
        """Read what a server that a test has started answers: a refusal has an `error`."""
        content = read(self, *args)
        if content.startswith(b'{"error"'):
            note(json.loads(content)["error"])
        return content

    read, HTTPResponse.read = HTTPResponse.read, answered  # type: ignore
    readouterr, pytest.CaptureFixture.readouterr = pytest.CaptureFixture.readouterr, captured  # type: ignore
    check.check_config = rules.check_config = checked
    logging.Logger.handle = after(logging.Logger.handle, lambda self, record: record.getMessage())  # type: ignore
    UserError.__init__ = after(UserError.__init__, lambda self, *args: self)  # type: ignore
    View.warn = after(View.warn, lambda self, text: text)  # type: ignore
    Process.wait = after(Process.wait, printed)  # type: ignore


def pytest_sessionfinish(session: Any) -> None:
    """Keep the examples of this session beside those of others."""
    messages = find_messages()
    known = json.loads(EXAMPLES.read_text()) if EXAMPLES.exists() else {}
    forms = {message.form for message in messages}
    merged = {form: known[form] for form in known if form in forms}
    merged |= {f: e for f, e in find_examples(messages, _heard).items() if f not in merged}
    text = json.dumps(merged, indent=1, sort_keys=True, ensure_ascii=False)
    EXAMPLES.write_text(text + "\n")


def main() -> None:
    """Write the page."""
    messages = find_messages()
    examples = json.loads(EXAMPLES.read_text())
    PAGE.write_text(render(messages, examples))
    seen = sum(message.form in examples for message in messages)
    print(f"{PAGE}: {len(messages)} messages, {seen} of them with an example")


if __name__ == "__main__":
    main()
