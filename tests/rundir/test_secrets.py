from __future__ import annotations

import logging

from runner.rundir.secrets import SecretMaskingFormatter, mask_secrets, secret_values


def test_values_of_the_environment_are_replaced_by_their_references(monkeypatch):
    monkeypatch.setenv("TOKEN", "abcd1234")
    monkeypatch.setenv("LONGER", "abcd1234-more")
    monkeypatch.setenv("SHORT", "no")
    config = {
        "a": "${oc.env:TOKEN}",
        "b": [{"c": "https://${oc.env:LONGER,none}@host"}],
        "d": "${oc.env:SHORT} ${oc.env:NOT_SET,x} ${.key}",
    }
    values = secret_values(config)
    text = "at abcd1234-more/x and abcd1234, no"
    assert mask_secrets(text, values) == "at ${oc.env:LONGER}/x and ${oc.env:TOKEN}, no"


def test_secrets_in_a_logged_traceback_are_masked(monkeypatch):
    monkeypatch.setenv("TOKEN", "abcd1234")
    formatter = SecretMaskingFormatter("%(message)s", secret_values({"a": "${oc.env:TOKEN}"}))
    try:
        raise OSError("no file /data/abcd1234/x")
    except OSError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "at %s", ("abcd1234",), info)
    shown = formatter.format(record)
    assert "abcd1234" not in shown
    assert "at ${oc.env:TOKEN}" in shown and "/data/${oc.env:TOKEN}/x" in shown
