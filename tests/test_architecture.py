"""The house stays as it was drawn: what each room may import, and no circle of files.

Imports inside functions and those for type checkers count like any other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "runner"

EVERYWHERE = {
    "errors",
    "machine",
    "batch",
    "config_key",
    "config_value",
    "parts",
    "object_store",
}  # modules that serve every room
# Room, or module at the top -> the rooms and modules that it may import beside itself
MAY_IMPORT: Mapping[str, set[str]] = {
    "errors": set(),
    "machine": {"errors"},
    "batch": {"machine"},
    "parts": set(),
    "object_store": {"errors"},
    "config_key": {"errors"},
    "config_value": {"config_key", "errors"},
    "distributed": set(),
    "metrics": set(),
    "data": set(),
    "optim": {"distributed"},
    "rundir": {"distributed"},
    "embeddings": {"distributed", "optim"},
    "models": {"distributed", "embeddings"},
    "reporting": {"distributed", "metrics", "rundir"},
    "config": {"distributed", "embeddings", "metrics", "models", "optim", "rundir"},
    "sweep": {"config", "distributed", "metrics", "reporting", "rundir"},
    "training": {
        *("config", "data", "distributed", "embeddings", "metrics"),
        *("models", "optim", "reporting", "rundir"),
    },
    "worker": {"config", "distributed", "reporting", "rundir", "training"},
    "launch": {"config", "data", "distributed", "reporting", "rundir", "worker"},
    "remote": {"config", "distributed", "launch", "rundir", "sweep"},
    "serving": {
        *("config", "data", "distributed", "embeddings", "launch", "metrics", "models"),
        *("reporting", "rundir", "training"),
    },
    "cli": {
        *("config", "data", "distributed", "launch", "optim", "reporting"),
        *("rundir", "serving", "sweep", "training"),
    },
    "__main__": {"cli", "config", "distributed", "launch", "remote", "rundir"},
}
# Modules and rooms that run before the builder and may know Hydra and OmegaConf
KNOW_HYDRA = (
    "__main__",
    "cli",
    "config",
    "rundir.run_files",
    "launch",
    "worker",
    "remote",
    "sweep",
)
MOST_FILES_AT_THE_TOP = 10
MOST_LINES_OF_A_FUNCTION = 80  # with its signature and its docstring
MOST_LINES_OF_A_FOLDER = 4_300  # that lie in it directly; of more, it has folders


@cache
def modules() -> Mapping[str, Path]:
    """Dotted name -> file of every module and package of ours."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(name: str) -> frozenset[str]:
    """Dotted names of the modules, ours and others', that a module of ours imports."""
    return frozenset(_imports(ast.parse(modules()[name].read_text())))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules() else node.module


def room_of(name: str) -> str:
    return name.split(".")[1]


def test_every_room_and_every_module_at_the_top_has_its_line_in_the_table():
    there = {room_of(name) for name in modules() if "." in name}
    assert there == MAY_IMPORT.keys()


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_stands_below_it(room):
    allowed = {room, *MAY_IMPORT[room], *(EVERYWHERE if room not in EVERYWHERE else ())}
    wrong = {
        f"{name} imports {found}"
        for name in modules()
        if "." in name and room_of(name) == room
        for found in imports(name)
        if found == "runner" or (found.startswith("runner.") and room_of(found) not in allowed)
    }
    assert not wrong


def test_the_table_itself_has_no_circle():
    """Each line names only lines that stand above it."""
    seen: set[str] = set()
    for room, allowed in MAY_IMPORT.items():
        assert allowed <= seen, (room, allowed - seen)
        seen.add(room)


def test_no_circle_of_files_is_left():
    """Depth first: a module that is met again while it is being visited closes a circle."""
    finished: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in finished:
            return
        path.append(name)
        for found in sorted(imports(name)):
            if found in modules():
                visit(found)
        path.pop()
        finished.add(name)

    for name in modules():
        visit(name)
    assert finished == modules().keys()


def test_nothing_below_the_builder_knows_hydra():
    wrong = {
        f"{name} imports {found}"
        for name in modules()
        for found in imports(name)
        if found.split(".")[0] in ("hydra", "omegaconf")
        and not any(f"{name}.".startswith(f"runner.{known}.") for known in KNOW_HYDRA)
    }
    assert not wrong


def test_only_the_builder_resolves_targets():
    tree = {name: modules()[name].read_text() for name in modules()}
    users = {name for name, text in tree.items() if "resolve_target" in text}
    assert users == {"runner.config.targets"}  # where `resolve_part` judges what it finds
    users = {name for name, text in tree.items() if "resolve_part" in text}
    assert {n for n in users if n != "runner.config.targets"} == {
        "runner.training.builder.context",
        "runner.training.builder.model",
        "runner.training.builder.instantiate",
        "runner.training.builder.job",
        "runner.training.builder.part_kinds",
    }


def test_few_files_stand_at_the_top_and_none_is_named_like_an_artefact():
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_FILES_AT_THE_TOP
    assert not [path for path in PACKAGE.rglob("*") if path.stem in ("build", "dist")]


def test_no_folder_is_so_large_that_a_reader_loses_the_way():
    lines: dict[str, int] = {}
    for path in modules().values():
        folder = str(path.parent.relative_to(ROOT))
        lines[folder] = lines.get(folder, 0) + len(path.read_text().splitlines())
    assert not {folder for folder, count in lines.items() if count > MOST_LINES_OF_A_FOLDER}


def test_no_function_is_so_long_that_a_reader_loses_the_thread():
    long = {
        f"{name}.{node.name}": length
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := node.end_lineno - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    }
    assert not long


# Folders of a room, from the lowest: each imports only those that stand before it.
FLOORS = {
    "runner.data": ("files", "columns", "tabular", "proposal.columns", "proposal.features"),
    "runner.serving": ("rows", "artifact", "items", "predict", "export", "index"),
}


@pytest.mark.parametrize("room", FLOORS)
def test_the_folders_of_a_room_import_downwards(room):
    floors = [f"{room}.{folder}." for folder in FLOORS[room]]
    wrong = {
        f"{name} imports {found}"
        for level, floor in enumerate(floors)
        for name in modules()
        if name.startswith(floor)
        for found in imports(name)
        if found.startswith(tuple(floors[level + 1 :]))
    }
    assert not wrong
