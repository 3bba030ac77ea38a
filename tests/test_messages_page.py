"""The page of warnings and errors is that of the source; its examples are what tests provoke."""

from __future__ import annotations

import json

import pytest

from docs.messages import EXAMPLES, HOLE, PAGE, Message, find_examples, find_messages, render
from tests.conftest import ROOT

RATE = "optimizer.dense.lr=…: a learning rate is a number from 0"


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    return find_messages()


def test_the_page_has_every_message_of_the_source(messages):
    examples = json.loads(EXAMPLES.read_text())
    assert PAGE.read_text() == render(messages, examples), "python -m docs.messages writes it anew"


def test_messages_are_found_wherever_an_error_takes_them_from(messages):
    forms = {(message.module, message.form) for message in messages}
    of_a_function = f"{HOLE} {HOLE}: exists already; nothing was written. Name another, or "
    assert {
        ("runner/cli/diff.py", "diff: name two runs: diff A B"),  # a plain text
        ("runner/errors.py", f"{of_a_function}remove it first: rm -r {HOLE}"),
        ("runner/config/rules/check.py", RATE),
    } <= forms
    warned = [message.form for message in messages if message.is_warning]
    assert "stopped; the same command goes on from here" in warned


def test_an_example_is_of_its_message_and_of_a_test_that_is_there(messages):
    examples = json.loads(EXAMPLES.read_text())
    patterns = {message.form: message.pattern for message in messages}
    assert len(examples) > 200
    for form, example in examples.items():
        assert form in patterns, f"{form!r} is gone or was changed: take it out of {EXAMPLES.name}"
        assert patterns[form].search(example["text"]), form
    named = {example["test"].partition("[")[0].partition("::") for example in examples.values()}
    texts = {file: (ROOT / file).read_text() for file, _, _ in named}
    assert not {t for file, _, t in named if f"def {t.split('::')[-1]}(" not in texts[file]}


def test_the_shortest_text_that_was_heard_becomes_the_example(messages):
    heard = {
        "2 mistakes\n  1. model=x: no such thing\n  2. optimizer.dense.lr=-1: a learning rate is a "
        "number from 0": "a",
        "optimizer.dense.lr=x: a learning rate is a number from 0": "b",
    }
    assert find_examples(messages, heard)[RATE]["test"] == "b"
