"""Records what every option and every experiment composes to, and what of it is signed.

`python -m tests.golden.record` writes `signatures.json` anew. It changes only where a change of
what a run means is intended: `tests/config/test_golden.py` holds the file against the code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("signatures.json")
ROOT = Path(__file__).resolve().parents[2]
FINGERPRINT = "0123456789abcdef"  # stands for the data's own, which would need the data
# What an option needs beside itself, to be composed at all.
BESIDE = {
    "search": ["search.space.seed='range(3)'"],
    "model=own": [],
    "scheduler=own": [],
}


def commands() -> Iterator[str]:
    """`group=option` of every YAML below `conf/` and `experiments/`, sorted."""
    yield ""
    for path in sorted((ROOT / "conf").rglob("*.yaml")):
        group = path.parent.relative_to(ROOT / "conf").as_posix()
        if group != ".":
            yield f"{group}={path.stem}"
    for path in sorted((ROOT / "experiments").glob("*.yaml")):
        yield f"experiments={path.stem}"


def flat(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and node:
        for name, value in node.items():
            yield from flat(value, f"{key}.{name}".lstrip("."))
    else:
        yield key, node


def difference(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be set and left out to get from one flat mapping to another."""
    changed = {k: v for k, v in other.items() if k not in base or base[k] != v}
    return {"set": changed, "without": [k for k in base if k not in other]}


def record() -> dict[str, Any]:
    """The default's configuration and signed fields whole, of every other option what differs."""
    from runner.config.compose import compose
    from runner.config.signature import hash_fields, signature_fields

    recorded: dict[str, Any] = {}
    for command in commands():
        composed = compose([command] if command else [])
        config = dict(flat(json.loads(json.dumps(composed.config, default=str))))
        signed = json.loads(json.dumps(signature_fields(composed.config, FINGERPRINT), default=str))
        signature = hash_fields(signature_fields(composed.config, FINGERPRINT))
        if not command:
            base, base_signed = config, signed
            recorded["base"] = {"config": base, "signed": base_signed, "signature": signature}
        else:
            recorded[command] = {
                "config": difference(base, config),
                "signed": difference(base_signed, signed),
                "signature": signature,
            }
    return recorded


if __name__ == "__main__":
    FILE.write_text(json.dumps(record(), indent=1) + "\n")
