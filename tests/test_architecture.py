"""The direction of imports: the house stays as it was drawn."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "runner"

# who -> what of ours it may import; a name stands for the module and all below it
MAY_IMPORT = {
    "batch": [],
    "layers": ["batch", "layers", "optim.tables", "errors"],
    "models": ["batch", "layers", "errors"],
    "losses": ["batch", "compared", "errors", "losses"],
    "data": ["batch", "data", "errors"],
    "metrics": ["batch", "metrics", "errors"],
    "optim": ["optim", "errors", "dist", "memory"],
    "dist": ["dist", "errors", "sweep.child"],
    "checkpoint": ["checkpoint", "errors", "dist", "jsonfiles"],
    "view": ["view", "metrics.settings", "errors"],
}
MAY_NOT_IMPORT = {
    "checkpoint": ["loops", "build"],
    "trackers": ["loops", "build", "job"],
    "optim": ["loops", "build", "job"],
    "step": ["loops", "build"],
    "state": ["loops", "build", "step"],
    "task": ["loops", "build", "step", "job"],
    "context": ["loops", "build", "step", "job", "task", "state"],
    "loops": ["build", "launch", "compose"],
    "build": ["launch", "compose", "__main__"],
}
COMPOSES = {  # what runs before the builder and may know Hydra
    "__main__",
    "compose",
    "flags",
    "groups",
    "hydra_flags",
    "execute",
    "launch",
    "mistakes",
    "multirun",
    "overrides",
    "record",
    "remote",
    "resolve",
    "sources",
    "sweep",
    "verbs",
    "typecheck",
    "targets",
}


@cache
def imports(path: Path) -> frozenset[str]:
    """Dotted names of everything that a file imports, inside functions as well."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def modules(name: str) -> list[Path]:
    folder = PACKAGE / name
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [PACKAGE / f"{name}.py"]


def lies_in(name: str, allowed: list[str]) -> bool:
    return any(name == f"runner.{a}" or name.startswith(f"runner.{a}.") for a in allowed)


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_lower_floor_knows_only_what_lies_below(name):
    wrong = {
        f"{path.relative_to(ROOT)} imports {found}"
        for path in modules(name)
        for found in imports(path)
        if found.startswith("runner.") and not lies_in(found, MAY_IMPORT[name])
    }
    assert not wrong


@pytest.mark.parametrize("name", MAY_NOT_IMPORT)
def test_no_arrow_runs_upwards(name):
    wrong = {
        f"{path.relative_to(ROOT)} imports {found}"
        for path in modules(name)
        for found in imports(path)
        if lies_in(found, MAY_NOT_IMPORT[name])
    }
    assert not wrong


def test_nothing_below_the_builder_knows_hydra():
    wrong = {
        f"{path.relative_to(ROOT)} imports {found}"
        for path in PACKAGE.rglob("*.py")
        for found in imports(path)
        if found.split(".")[0] in ("hydra", "omegaconf")
        and path.relative_to(PACKAGE).parts[0].removesuffix(".py").split("_")[0]
        not in {name.split("_")[0] for name in COMPOSES}
    }
    assert not wrong


def test_only_the_builder_and_the_checkpoint_of_targets_resolve_targets():
    users = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        if any(found.endswith(".resolve_target") for found in imports(path))
    }
    assert users == {"build"}
