"""Settings of Sphinx for the site that `make docs` builds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "raftmq"
html_title = "raftmq"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinxcontrib.mermaid"]
myst_enable_extensions = ["linkify"]
myst_linkify_fuzzy_links = False
# Links to sections, by the names that GitHub gives to headings.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
# Plain signatures say more than the docstrings repeat; members stand in the order of their file.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
autodoc_class_signature = "separated"
# Docstrings are written for people who read the code: a name stands in single backticks, and an example is indented.
suppress_warnings = ["docutils"]
default_role = "code"
smartquotes = False
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["tables.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False


def mark_examples(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Put `::` before the indented parts of a docstring, so that they are shown as code."""
    before = ""
    for at, line in reversed(list(enumerate(lines))):
        if before.startswith("    ") and not line and not previous_text(lines, at).startswith("    "):
            lines[at:at] = ["", "::"]
        before = line


def previous_text(lines: list[str], end: int) -> str:
    return next((line for line in reversed(lines[:end]) if line), "")


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", mark_examples)
