"""Builds the documentation as a site: python docs/site/build.py OUTPUT.

The pages are those of docs/, ARCHITECTURE.md and CHANGELOG.md, a reference made from the docstrings of the SDK, the
replicated log and the test kit, and lists of all requests and of all modules. Any warning of Sphinx, such as a link
that leads nowhere, fails the build.
"""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import modules
import wire_requests
from sphinx.cmd.build import build_main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FROM_ABOVE = ("ARCHITECTURE.md", "CHANGELOG.md")

REFERENCE = {
    "The Python SDK": ("raftmq", "raftmq"),
    "Without an event loop": ("raftmq-sync", "raftmq.sync"),
    "Test kit": ("raftmq-testing", "raftmq.testing"),
    "Replicated log": ("raftlog", "raftlog.embedding"),
}
"""Title of a page of the reference: the name of its file, and the module whose public names it documents."""


def copy_pages(source: Path) -> None:
    """Copy all pages and images to `source`, which is made anew, with links that lead somewhere there."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(DOCS, source, ignore=shutil.ignore_patterns("site"))
    for name in FROM_ABOVE:
        shutil.copy(ROOT / name, source / name)
    for page in source.rglob("*.md"):
        page.write_text(with_links(page.read_text(), page.relative_to(source)))


def with_links(text: str, page: Path) -> str:
    """The text of a page, as it is in the site: links to pages from above follow these; other files are only named."""

    def link(found: re.Match[str]) -> str:
        label, target, section = found.groups(default="")
        if "://" in target or not target:
            return found.group()
        place = ROOT / page if page.name in FROM_ABOVE else DOCS / page
        path = (place.parent / target).resolve()
        up = "../" * (len(page.parts) - 1)
        if path.parent == ROOT and path.name in FROM_ABOVE:
            return f"[{label}]({up}{path.name}{section})"
        if path.is_relative_to(DOCS) and (path.suffix == ".md" or path.suffix == ".svg" or path.suffix == ".png"):
            return f"[{label}]({up}{path.relative_to(DOCS)}{section})"
        return label

    return re.sub(r"\[((?:[^][]|\[[^]]*\])*)\]\(([^)#\s]*)(#[^)\s]*)?\)", link, text)


def write_reference(source: Path) -> None:
    directory = source / "reference"
    directory.mkdir()
    for title, (name, module) in REFERENCE.items():
        (directory / f"{name}.md").write_text("\n".join(reference_page(title, module)) + "\n")
    listed = [line for package in modules.PACKAGES for line in modules.lines(package)]
    (directory / "requests.md").write_text("\n".join(wire_requests.page()) + "\n")
    (directory / "modules.md").write_text("\n".join(["# Modules", *listed]) + "\n")


def reference_page(title: str, module: str) -> Iterator[str]:
    """The lines of a page that documents the public names of a module: classes and functions first, then errors."""
    found = importlib.import_module(module)
    public = found.__all__ if hasattr(found, "__all__") else [n for n in vars(found) if own(found, n)]
    values = [(name, getattr(found, name)) for name in sorted(public)]
    errors = [(name, value) for name, value in values if inspect.isclass(value) and issubclass(value, Exception)]
    yield f"# {title}\n\n`{module}`: {(found.__doc__ or '').strip().splitlines()[0]}"
    for heading, part in (("Names", [each for each in values if each not in errors]), ("Errors", errors)):
        if part:
            yield f"\n## {heading}"
        for name, value in part:
            kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
            yield f"\n### {name}\n\n```{{eval-rst}}\n.. auto{kind}:: {module}.{name}\n```"


def own(module: object, name: str) -> bool:
    value = getattr(module, name)
    return not name.startswith("_") and getattr(value, "__module__", None) == getattr(module, "__name__", "")


def write_contents(source: Path) -> None:
    """Add what Sphinx makes its navigation from: the sections of index.md, in their order, and the rest."""
    index = (source / "index.md").read_text()
    lines, listed = [index], {"index"}
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, rest = section.partition("\n")
        pages = [page for page in dict.fromkeys(re.findall(r"\]\(([^)#\s]+)\.md", rest)) if page not in listed]
        listed.update(pages)
        lines += contents(title, pages)
    generated = [name for name, _ in REFERENCE.values()] + ["requests", "modules"]
    lines += contents("Reference", [f"reference/{name}" for name in generated])
    for title, directory in (("Benchmarks", "benchmarks"), ("Decisions", "decisions"), ("Reports", "reports")):
        pages = sorted(f"{directory}/{page.stem}" for page in (source / directory).glob("*.md"))
        lines += contents(title, [page for page in pages if page not in listed])
        listed.update(pages)
    (source / "index.md").write_text("\n".join(lines) + "\n")


def contents(title: str, pages: list[str]) -> list[str]:
    return ["", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"]


def main() -> int:
    output = Path(sys.argv[1])
    source = output.with_name(output.name + "-source")
    copy_pages(source)
    write_reference(source)
    write_contents(source)
    arguments = ["--fail-on-warning", "--keep-going", "--quiet", "-j", "2", "-c", str(DOCS / "site")]
    failed = build_main([*arguments, str(source), str(output)])
    if not failed:
        sys.stdout.write(f"the documentation is in {output}/index.html\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
