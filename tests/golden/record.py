"""Records what every option and every experiment composes to, and what of it is signed.

`python -m tests.golden.record` writes `signatures.json` anew, and names the signatures that change:
`tests/config/test_golden.py` checks the file against the code. Parts keep the names that they were
first recorded under, which old runs have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.rundir.moved_targets import current_target

FILE = Path(__file__).with_name("signatures.json")
ROOT = Path(__file__).resolve().parents[2]
FINGERPRINT = "0123456789abcdef"  # stands for the data's own, which would need the data
# What an option needs beside itself, to be composed at all.
BESIDE = {"search": ["search.space.seed='range(3)'"], "model=own": [], "scheduler=own": []}


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


def keep_first_names(now: Any, before: Any) -> Any:
    """Return what is recorded now, with targets under the names that the file has for them."""
    if isinstance(now, dict):
        old = before if isinstance(before, dict) else {}
        return {key: keep_first_names(value, old.get(key)) for key, value in now.items()}
    is_same = isinstance(before, str) and isinstance(now, str) and current_target(before) == now
    return before if is_same else now


if __name__ == "__main__":
    before = json.loads(FILE.read_text())
    recorded = keep_first_names(json.loads(json.dumps(record())), before)
    FILE.write_text(json.dumps(recorded, indent=1) + "\n")
    for command in before:
        if recorded.get(command, {}).get("signature") != before[command]["signature"]:
            print(f"{command}: another signature than before")
    print("new:", ", ".join(recorded.keys() - before.keys()) or "none")
