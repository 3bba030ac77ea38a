from __future__ import annotations

import base64
import io
import json
import logging
import os
import subprocess
import sys
from html import escape
from urllib.parse import quote, quote_plus

import pytest

from runner.rundir import secrets
from runner.rundir.json_files import JsonlFile, read_json, write_json
from runner.rundir.masked_streams import MaskingBuffer, replace_controls
from runner.rundir.secrets import SecretMaskingFormatter, mask_secrets, mask_values, note_reference

SECRET = 'sk "canary"/ü+5b1f&0e'


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """What other tests have made known is forgotten, and what these do is forgotten after them."""
    monkeypatch.setattr(secrets, "_by_value", {})
    monkeypatch.setattr(secrets, "_spellings_of", {False: (), True: ()})
    monkeypatch.setattr(secrets, "_environment", {})


def test_values_that_a_configuration_has_read_are_replaced_by_their_references(monkeypatch):
    for name, value in {"ONE": "abcd1234", "LONGER": "abcd1234-more", "SHORT": "no"}.items():
        monkeypatch.setenv(name, value)
        note_reference(name)
    note_reference("NOT_SET")
    text = "at abcd1234-more/x and abcd1234, no"
    assert mask_secrets(text) == "at ${oc.env:LONGER}/x and ${oc.env:ONE}, no"
    assert mask_secrets(text, everything=False) == text  # for files whose values are read back


@pytest.mark.parametrize(
    "name", ["API_KEY", "my_token", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "githubToken", "KEY2"]
)
def test_variables_whose_names_say_so_are_secrets_unread(monkeypatch, name):
    monkeypatch.setenv(name, "abcd1234")
    assert mask_secrets("abcd1234", everything=False) == f"${{oc.env:{name}}}"
    monkeypatch.delenv(name)  # as a program does that has read it
    assert mask_secrets("abcd1234", everything=False) == f"${{oc.env:{name}}}"


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "KEYBOARD", "EDITOR", "USER"])
def test_other_variables_are_none(monkeypatch, name):
    monkeypatch.setenv(name, "abcd1234")
    assert mask_secrets("abcd1234") == "abcd1234"


def test_short_plain_words_and_numbers_are_no_secrets_since_they_occur_in_any_text(monkeypatch):
    for number, value in enumerate(("1", "no", "true", "test", "0.25", "1234", "", "none")):
        monkeypatch.setenv(f"TOKEN_{number}", value)
    text = "test/auc 0.25, step 1234, true, none, no 1"
    assert mask_secrets(text) == text


def test_short_secrets_are_masked_as_whole_words_and_numbers_as_whole_numbers(monkeypatch):
    monkeypatch.setenv("A_KEY", "x7y9")
    monkeypatch.setenv("B_KEY", "12345678")
    assert mask_secrets("x7y9, ax7y9b, x7y90") == "${oc.env:A_KEY}, ax7y9b, x7y90"
    assert (
        mask_secrets("12345678. 0.12345678 12345678.5") == "${oc.env:B_KEY}. 0.12345678 12345678.5"
    )
    assert mask_values({"rows": 12345678, "x": ["12345678", None]}) == {
        "rows": 12345678,
        "x": ["${oc.env:B_KEY}", None],
    }


@pytest.mark.parametrize(
    "spell",
    [
        str,
        repr,
        json.dumps,
        lambda s: json.dumps(s, ensure_ascii=False),
        escape,
        quote,
        lambda s: quote(s, safe=""),
        quote_plus,
        lambda s: base64.b64encode(s.encode()).decode(),
        lambda s: base64.b64encode(f"me:{s}".encode()).decode(),  # as a header of HTTP has it
        lambda s: base64.urlsafe_b64encode(f"user:{s}@".encode()).decode(),
    ],
)
def test_every_spelling_of_a_secret_is_masked(monkeypatch, spell):
    monkeypatch.setenv("API_KEY", SECRET)
    text = f"<{spell(SECRET)}>"
    masked = mask_secrets(text)
    assert "${oc.env:API_KEY}" in masked
    assert len(masked) <= len("<'${oc.env:API_KEY}'>") + 9  # of base64, a neighbour's bits remain
    assert "canary" not in masked


def test_each_line_of_a_private_key_is_a_secret(monkeypatch):
    lines = ["-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0", "kq=="]
    monkeypatch.setenv("SSH_KEY", "\n".join(lines))
    assert "MIIE" not in mask_secrets(f"line 2: {lines[1]}")
    assert "kq" not in mask_secrets("\n".join(lines))


def test_files_of_json_are_masked_in_keys_and_values_and_stay_json(monkeypatch, tmp_path):
    monkeypatch.setenv("API_KEY", SECRET)
    monkeypatch.setenv("PLACE", "/data/x7")
    note_reference("PLACE")
    write_json(tmp_path / "a.json", {SECRET: [SECRET, 1.5, tmp_path / SECRET, "/data/x7"]})
    name = "${oc.env:API_KEY}"
    assert read_json(tmp_path / "a.json") == {name: [name, 1.5, f"{tmp_path}/{name}", "/data/x7"]}
    log = JsonlFile(tmp_path / "b.jsonl")
    log.append({"split": SECRET, "loss": float("nan"), "at": "/data/x7"})
    log.close()
    row = json.loads((tmp_path / "b.jsonl").read_text())
    assert row == {"split": name, "loss": "NaN", "at": "${oc.env:PLACE}"}


def test_secrets_in_a_logged_traceback_are_masked(monkeypatch):
    monkeypatch.setenv("TOKEN", "abcd1234")
    formatter = SecretMaskingFormatter("%(message)s")
    try:
        raise OSError("no file /data/abcd1234/x")
    except OSError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "at %s", ("abcd1234",), info)
    shown = formatter.format(record)
    assert "abcd1234" not in shown
    assert "at ${oc.env:TOKEN}" in shown and "/data/${oc.env:TOKEN}/x" in shown


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_secret_in_several_writes_of_a_stream_is_masked(monkeypatch, size):
    monkeypatch.setenv("API_KEY", SECRET)
    below = io.BytesIO()
    stream = MaskingBuffer(below)
    text = f"progress 12% s\rs{SECRET}sk, sk-{SECRET}\n and sk "
    raw = text.encode()
    for start in range(0, len(raw), size):
        stream.write(raw[start : start + size])
        stream.flush()
    stream.write_held()
    assert below.getvalue().decode() == text.replace(SECRET, "${oc.env:API_KEY}")


def test_a_terminal_obeys_only_what_moves_its_cursor_and_colours():
    below = io.BytesIO()
    stream = MaskingBuffer(below)
    stream.write(b"\r\x1b[2K\x1b[1;31mred\x1b[0m\t\xc3\xbc\n")
    stream.write(b"\x1b]52;c;cm0=\x07 \x1bP+q\x1b\\ \x1bc \xc2\x9b5n\x00\x7f\n")
    expected = "\r\x1b[2K\x1b[1;31mred\x1b[0m\tü\n?]52;c;cm0=? ?P+q?\\ ?c ?5n??\n"
    assert below.getvalue().decode() == expected
    assert replace_controls("a\x1b[1Ab\rc\n") == "a?[1Ab?c\n"
    assert replace_controls("a\x1b[1Ab\x1b[31mc", colours=True) == "a?[1Ab\x1b[31mc"


def test_a_process_prints_no_secret_whatever_it_prints_with():
    """Also in threads, in warnings, as bytes, in an uncaught error, and at the very end."""
    script = """
import atexit, logging, os, sys, threading, warnings
from runner.rundir.masked_streams import mask_standard_streams
mask_standard_streams()
mask_standard_streams()  # nothing more
secret = os.environ["API_KEY"]
print(secret); print("äß", secret, file=sys.stderr); warnings.warn(secret)
sys.stdout.write(secret[:3]); sys.stdout.flush(); sys.stdout.write(secret[3:] + "\\n")
sys.stdout.flush()
sys.stdout.buffer.write(secret.encode()); sys.stdout.flush()
logging.getLogger("x").error("logged %s", secret)
def fail(): raise RuntimeError(f"in a thread {secret}")
thread = threading.Thread(target=fail); thread.start(); thread.join()
atexit.register(lambda: print("at exit", secret, end=""))
assert sys.stdout.encoding.lower() == "utf-8" and sys.stdout.fileno() == 1
raise ValueError(secret)
"""
    env = dict(os.environ, API_KEY=SECRET, PYTHONIOENCODING="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, check=False, timeout=60
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 1
    assert "canary" not in out + err
    assert out.count("${oc.env:API_KEY}") == 4, out
    assert "at exit ${oc.env:API_KEY}" in out
    for expected in ("äß ${oc", "Warning: ${oc", "logged ${oc", "thread ${oc", "ValueError: ${oc"):
        assert expected in err
