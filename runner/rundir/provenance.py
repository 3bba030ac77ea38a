"""Provenance of a run: code, versions, machine, command. Imports none of the packages it lists."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "torchrec",
    "fbgemm-gpu-cpu",
    "fbgemm-gpu",
    "torchmetrics",
    "hydra-core",
    "omegaconf",
    "numpy",
    "pyarrow",
    "safetensors",
)
_GIT_TIMEOUT_S = 10


def collect_provenance(project: Path, command: list[str]) -> dict[str, Any]:
    """Collect what `meta.json` keeps: git state of the project, versions, host and command."""
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": command,
        "cwd": os.getcwd(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "versions": package_versions(),
        "git": git_state(project),
    }


def package_versions(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def git_state(project: Path) -> dict[str, Any] | None:
    """Return the commit, a patch of uncommitted changes, and the untracked files.

    Returns:
        None outside of a repository.
    """
    if _git(project, "rev-parse", "--is-inside-work-tree") != "true\n":
        return None
    commit = _git(project, "rev-parse", "--verify", "--quiet", "HEAD")
    untracked = _git(project, "ls-files", "--others", "--exclude-standard") or ""
    return {
        "commit": commit.strip() if commit else None,
        "patch": (_git(project, "diff", "HEAD", "--binary") or "") if commit else "",
        "untracked": untracked.splitlines()[:200],
    }


def own_code(packages: Iterable[str]) -> dict[str, str]:
    """Return a hash of each Python file of the user's packages, without importing them.

    Args:
        packages: names. One that cannot be found has no files, and neither has one with a dot,
            which would have to be imported: names may come from a stranger's run directory.

    Returns:
        Hashes by names such as `my_project/model.py`.
    """
    hashes = {}
    for package in filter(str.isidentifier, sorted(packages)):
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        folders = [Path(p) for p in (spec and spec.submodule_search_locations) or ()]
        files = [(f, folder.parent) for folder in folders for f in folder.rglob("*.py")]
        if not folders and spec is not None and spec.origin is not None:
            files = [(Path(spec.origin), Path(spec.origin).parent)]
        for path, above in files:
            name = path.relative_to(above).as_posix()
            hashes[name] = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return dict(sorted(hashes.items()))


def changed_own_code(recorded: Mapping[str, str]) -> list[str]:
    """Return the names of the files that have changed since `own_code` recorded them."""
    now = own_code({name.partition("/")[0].removesuffix(".py") for name in recorded})
    return sorted(n for n in recorded.keys() | now.keys() if recorded.get(n) != now.get(n))


def changed_code_note(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a warning if the run's own code has changed since its training, or nothing."""
    changed = changed_own_code(meta.get("own_code") or {})
    text = f"warning: your code is not what the run had before: {', '.join(changed)} changed"
    return (text,) if changed else ()


def _git(project: Path, *args: str) -> str | None:
    """Return the output of a git command, or None if it fails or git is not installed."""
    try:
        process = subprocess.run(
            ["git", "-C", str(project), *args],
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.decode(errors="replace") if process.returncode == 0 else None
