"""Builds the documentation site: `python -m docs.build_site [--out build/site]`, or `make docs`.

The pages of docs/ are those that a reader of the repository sees. This adds what has another place
there (results, the architecture, the notebook) and what is made anew for the site (a page of keys
for each group, the Python API), turns links between them into links of the site, and calls Sphinx,
which fails at every warning: a dead link, a page that no list names, a docstring it cannot read.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import re
import shutil
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "docs" / "site"
# Pages that lie elsewhere in the repository, and their names on the site.
OUTSIDE = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "experiments/README.md": "results_published.md",
    "experiments/FIRST_LOOK.md": "results_first_look.md",
    "experiments/YARDSTICK.md": "results_yardstick.md",
    "experiments/TABLES.md": "results_tables.md",
    "experiments/PLANTED.md": "results_planted.md",
    "docs/notebook.ipynb": "notebook.md",
    "docs/reference.md": "keys.md",
}
PICTURE = re.compile(r"^!\[([^\]]*)\]\((\w+)\.png\)$", re.MULTILINE)
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?\)")
ROOMS = ("serving", "data", "models", "metrics", "training", "optim", "embeddings")
ROOMS += ("rundir", "reporting", "sweep", "config", "distributed")


def build(out: Path) -> int:
    """Write the site into a folder; return Sphinx's exit code."""
    source = out.parent / f"{out.name}-source"
    shutil.rmtree(source, ignore_errors=True)
    gather(source)
    from sphinx.cmd.build import main as sphinx

    # -n would ask for a page of every type of torch
    return sphinx(
        ["-W", "--keep-going", "-q", "-j", "auto", "-c", str(SITE), str(source), str(out)]
    )


def gather(source: Path) -> None:
    """Put every page of the site into a folder, with links that hold there."""
    shutil.copytree(SITE / "_static", source / "_static")
    inside = {f"docs/{path.name}": path.name for path in (ROOT / "docs").glob("*.md")}
    places = {**inside, **OUTSIDE}
    for origin, name in places.items():
        if name in ("index.md", "keys.md"):
            continue
        text = (ROOT / origin).read_text(encoding="utf-8")
        if origin.endswith(".ipynb"):
            text = notebook_page(text)
        (source / name).write_text(with_links(text, origin, places, source), encoding="utf-8")
    index = (SITE / "index.md").read_text(encoding="utf-8")
    (source / "index.md").write_text(with_links(index, "docs/site/index.md", places, source))
    keys = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    write_keys(with_links(keys, "docs/reference.md", places, source), source)
    write_api(source)


def with_links(text: str, origin: str, places: dict[str, str], source: Path) -> str:
    """Turn links to files of the repository into links of the site; copy what is no page."""

    def replaced(match: re.Match[str]) -> str:
        opening, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        if re.match(r"\w+:", target):
            return match.group(0)
        path = Path(os.path.normpath((ROOT / origin).parent / target))
        name = path.relative_to(ROOT).as_posix()
        if name in places:
            if name == "README.md":  # the site begins with a page of its own
                anchor = ""
            return f"{opening}{places[name]}{anchor})"
        if not path.is_file():  # Sphinx says that it leads nowhere
            return match.group(0)
        copy = source / "repository" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        return f"{opening}repository/{name}{anchor})"

    text = PICTURE.sub(partial(both_themes, folder=(ROOT / origin).parent), text)
    fences = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(replaced, part) for part in fences)


def both_themes(match: re.Match[str], folder: Path) -> str:
    """Return a picture that has a dark twin as two, of which the site shows one."""
    words, name = match.groups()
    if not (folder / f"{name}_dark.png").exists():
        return match.group(0)
    light, dark = (f"![{words}]({n}.png)" for n in (name, f"{name}_dark"))
    return f"{light}{{.only-light}}\n{dark}{{.only-dark}}"


def notebook_page(text: str) -> str:
    """Return a notebook as Markdown: its texts, and its code."""
    cells = json.loads(text)["cells"]
    bodies = ["".join(cell["source"]).strip() for cell in cells]
    return "\n\n".join(
        body if cell["cell_type"] == "markdown" else f"```python\n{body}\n```"
        for cell, body in zip(cells, bodies)
    )


def write_keys(text: str, source: Path) -> None:
    """Write one page for each group of docs/reference.md, and one that lists them."""
    head, *groups = re.split(r"^## ", text, flags=re.MULTILINE)
    pages = []
    for group in groups:
        title, _, body = group.partition("\n")
        name = f"keys_{re.sub(r'[^a-z_]+', '_', title.lower().removeprefix('keys '))}"
        shown = title if title.startswith("Keys") else f"Keys of `{title}`"
        (source / f"{name}.md").write_text(f"# {shown}\n{re.sub('^###', '##', body, flags=re.M)}")
        pages.append(name)
    tree = "\n".join(["```{toctree}", ":maxdepth: 1", "", *pages, "```"])
    (source / "keys.md").write_text(f"{head}\n{tree}\n")


def write_api(source: Path) -> None:
    """Write a page for the public names of `runner`, and of each subpackage what it adds."""
    seen: set[int] = set()
    pages = []
    for module in ("runner", *(f"runner.{room}" for room in ROOMS)):
        page = f"api_{module.replace('.', '_')}"
        (source / f"{page}.md").write_text(api_page(module, seen))
        pages.append(page)
    tree = "\n".join(["```{toctree}", ":maxdepth: 1", "", *pages, "```"])
    about = (
        "Made from the docstrings. `import runner` imports no torch: a name is imported when it is "
        "first used. Import from `runner` and its subpackages only; others may move."
    )
    (source / "api.md").write_text(f"# Python API\n\n{about}\n\n{tree}\n")


def api_page(module: str, seen: set[int]) -> str:
    """Return the page of a module's public names that no page before it had."""
    package = importlib.import_module(module)
    lines = [f"# `{module}`", "", inspect.getdoc(package) or "", "", "```{eval-rst}"]
    lines += [f".. currentmodule:: {module}", ""]
    names = sorted(package.__all__, key=str.lower)
    for name in sorted(names, key=lambda n: inspect.isclass(getattr(package, n))):
        value = getattr(package, name)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if inspect.isclass(value):
            lines += [f".. autoclass:: {name}", "   :members:", ""]
        elif inspect.isroutine(value):
            lines += [f".. autofunction:: {name}", ""]
        else:
            items = (
                [f"{key}({given})" for key, given in value.items()]
                if isinstance(value, dict)
                else [value]
            )
            lines += [f".. py:data:: {name}", "", *(f"   - ``{item}``" for item in items), ""]
    return "\n".join([*lines, "```", ""])


def main() -> None:
    """Build the site, and say where it is."""
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    out = parser.parse_args().out
    code = build(out)
    if code == 0:
        print(f"open {out / 'index.html'}")
    sys.exit(code)


if __name__ == "__main__":
    main()
