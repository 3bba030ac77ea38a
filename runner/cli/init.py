"""`init NAME`: makes the folder of a project whose model trains at once."""

from __future__ import annotations

import importlib.util
import keyword
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np

from runner.cli.verb_parser import VerbParser
from runner.errors import UserError
from runner.serving.write_aside import write_aside

# file of the project -> its template; {name} is the project's package
FILES = {
    "README.md": "README.md",
    "{name}/model.py": "model.py",
    "{name}/task.py": "task.py",
    "conf/model/gated.yaml": "gated.yaml",
    "conf/experiments/first.yaml": "first.yaml",
    "conf/dataset/clicks.yaml": "clicks_option.yaml",
    "data/clicks.yaml": "clicks.yaml",
    "tests/test_model.py": "test_model.py",
}
ROWS, USERS, ITEMS = 20_000, 200, 50  # of data/clicks.csv


def init(words: Sequence[str], allow: Sequence[str]) -> int:
    """Write a project into a new folder, and print how to train it.

    Raises:
        UserError: for a name that is not a package name, and for a folder that is not empty.
        OSError: if a file cannot be written; there is no folder then.
    """
    args = make_parser().parse(words)
    if len(args.name) != 1:
        raise UserError("init: give one name, as in init my_project")
    folder = Path(args.name[0])
    name = folder.name
    _check(folder, name)
    with write_aside(folder.resolve(), "init") as private:
        for path, text in render(name).items():
            target = private / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        if _is_empty_folder(folder):
            folder.resolve().rmdir()  # its place is taken by the whole project
    print(
        f"made {folder}/: a table of {ROWS:,} clicks, a model, a task and their tests. Next:\n"
        f"  cd {folder}\n"
        f"  python -m runner --config-dir conf --allow {name} experiments=first\n"
        "README.md there says what to change where"
    )
    return 0


def make_parser() -> VerbParser:
    """Return the parser of the words after `init`."""
    parser = VerbParser(
        "init",
        "Make a project folder with a small table and its schema, a model, a task and a test, all "
        "for you to change. It trains as it is.",
        examples=("init my_project",),
    )
    parser.add_words("name", "NAME", "the new folder, and the name of its package")
    return parser


def render(name: str) -> dict[str, str]:
    """Return the texts of a project's files by their paths."""
    templates = resources.files("runner.cli") / "project_template"
    texts = {
        path.format(name=name): Template(
            (templates / f"{template}.template").read_text(encoding="utf-8")
        ).substitute(name=name)
        for path, template in FILES.items()
    }
    return {**texts, f"{name}/__init__.py": f'"""What {name} trains."""\n', **_clicks()}


def _check(folder: Path, name: str) -> None:
    is_name = name.isascii() and name.isidentifier()  # as required by --allow
    if not is_name or keyword.iskeyword(name) or name in ("conf", "data", "tests"):
        raise UserError(
            f"init {folder}: {name!r} cannot be the name of a package; take another name, of "
            "plain letters, digits and _"
        )
    if folder.exists() and not _is_empty_folder(folder):
        raise UserError(f"init {folder}: exists already, and is not an empty folder; name another")
    spec = importlib.util.find_spec(name)
    # an empty folder is a package, too, for Python that is started beside it
    if spec and [Path(p).resolve() for p in spec.submodule_search_locations or ()] != [
        folder.resolve()
    ]:
        raise UserError(f"init {folder}: there is a package {name} already; take another name")
    parent = folder.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"init {folder}: {parent} is no folder that can be written")


def _is_empty_folder(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _clicks() -> dict[str, str]:
    """Draw the table of clicks: users' preferences depend on the item and on the price."""
    draw = np.random.default_rng(0)
    user, item = draw.integers(USERS, size=ROWS), draw.integers(ITEMS, size=ROWS)
    hour, price = draw.integers(24, size=ROWS), draw.lognormal(2, 1, size=ROWS)
    taste, kind = draw.normal(size=(USERS, 2)), draw.normal(size=(ITEMS, 2))
    logit = 2 * (taste[user] * kind[item]).sum(1) + draw.normal(size=ITEMS)[item] - price / 20
    click = draw.random(ROWS) < 1 / (1 + np.exp(-logit))
    columns = zip(click.astype(int), user, item, hour, price, strict=True)
    rows = [f"{c},u{u},i{i},{h},{p:.2f}" for c, u, i, h, p in columns]
    return {"data/clicks.csv": "\n".join(["click,user,item,hour,price", *rows, ""])}
