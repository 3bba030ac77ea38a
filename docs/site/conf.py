"""Sphinx's settings of the site; `docs/build_site.py` gathers the pages and calls Sphinx."""

from __future__ import annotations

import contextlib
from typing import Any, get_type_hints

from docutils import nodes
from sphinx.application import Sphinx

project = "runner"
html_title = "runner"
copyright = "the runner contributors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"  # system fonts, no request to other hosts, light and dark
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

default_role = "code"  # docstrings write `name` for code
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 88
napoleon_use_rtype = False
add_module_names = False


def show_keys(app: Sphinx, tree: nodes.document) -> None:
    """Make of each row of a table of keys a target that the search finds, and fit it to a phone.

    Type, default, range, unit and signature of a key become a line below its meaning.
    """
    if not app.env.docname.startswith("keys_"):
        return
    domain = app.env.domains.standard_domain
    for group in tree.findall(nodes.tgroup):
        group.parent["classes"].append("keys")
        for column in list(group.findall(nodes.colspec))[2:]:
            group.remove(column)
        group["cols"] = 2
        for row in group.findall(nodes.row):
            key, *facts, meaning = row.children
            name = key.astext()
            row.clear()
            row += [key, meaning]
            if name == "Key":
                continue
            meaning += facts_line(*facts)
            if ("confval", name) not in domain.objects:
                row["ids"].append(f"key-{name}")
                domain.note_object("confval", name, f"key-{name}")


def facts_line(*cells: nodes.Element) -> nodes.paragraph:
    """Return what the cells between a key and its meaning say, as one line."""
    line = nodes.paragraph(classes=["facts"])
    for label, cell in zip(("", "default ", "", "in ", "signed: "), cells, strict=True):
        inline = [child for block in cell.children for child in block.children]
        if inline:
            line += [nodes.Text(" · "), nodes.Text(label), *inline] if line.children else inline
    return line


def without_declarations(app: Sphinx, function: Any, bound_method: bool) -> None:
    """Leave the declarations of keys out of signatures: Annotated[int, Key(...)] becomes int."""
    with contextlib.suppress(NameError, AttributeError):  # a type that only a type checker imports
        function.__annotations__ = get_type_hints(function)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect what this file adds to Sphinx."""
    app.connect("doctree-read", show_keys)
    app.connect("autodoc-before-process-signature", without_declarations)
    return {"parallel_read_safe": True, "version": "1"}
