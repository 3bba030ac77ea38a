"""A run directory made by hand, and one upload of it, in a process that can be killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.request import urlopen

from runner.rundir.checkpoint.files import write_file
from runner.rundir.checkpoint.folder import remove_checkpoint
from runner.rundir.checkpoint.manifest import Manifest, encode_manifest
from runner.rundir.mirror.push import MirrorWriter


def write_state(folder: Path, step: int, *, seed: int = 0) -> None:
    """Bring a run directory to a step: a new checkpoint, longer logs, and no older checkpoint."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints").mkdir(exist_ok=True)
    meta = {"run_id": f"run-{seed}", "signature": "s", "kind": "train"}
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "config.yaml").write_text("seed: 0\n")
    (folder / "data" / "learnt.json").write_text("{}")
    (folder / "hardest.json").write_text("{}")
    with (folder / "metrics.jsonl").open("a") as log:
        log.write(f'{{"step": {step}}}\n')
    checkpoint = folder / "checkpoints" / f"step-{step}"
    checkpoint.mkdir()
    contents = {"shard-00001.safetensors": b"%d tensors" % step * 99, "state.json": b"%d" % step}
    digests = {name: write_file(checkpoint / name, [raw]) for name, raw in contents.items()}
    manifest = encode_manifest(Manifest(step, digests, meta["run_id"]))
    write_file(checkpoint / "manifest.json", [manifest])
    for old in (folder / "checkpoints").iterdir():
        if old != checkpoint:
            remove_checkpoint(old)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of every file of a run directory that a mirror has."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def push(folder: str, url: str, environment: dict[str, str], fault: str) -> None:
    """Upload once; the store kills this process at the request that `fault` names."""
    os.environ.update(environment)
    content = json.dumps({fault: os.getpid()}).encode()
    urlopen(environment["AWS_ENDPOINT_URL"] + "/_faults", content).close()
    MirrorWriter(Path(folder), url).push()
