"""The Markdown pages: one title each, and links, also those that programs print, that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def titles(markdown: str) -> list[str]:
    """Level-one headings outside of fenced code."""
    found, fenced = [], False
    for line in markdown.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and line.startswith("# "):
            found.append(line)
    return found


def section_names(markdown: str) -> set[str]:
    """The names by which links find the headings outside of fenced code, as GitHub makes them."""
    found: dict[str, int] = {}
    names, fenced = set(), False
    for line in markdown.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and (heading := re.match(r"#+ (.*)", line)):
            name = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).lower()).replace(" ", "-")
            names.add(f"{name}-{found[name]}" if name in found else name)
            found[name] = found.get(name, 0) + 1
    return names


def test_documents_have_exactly_one_title() -> None:
    breaches = [f"{path.relative_to(ROOT)}: {len(titles(path.read_text()))} titles" for path in DOCUMENTS]
    breaches = [breach for breach in breaches if not breach.endswith(" 1 titles")]
    assert not breaches, "\n".join(breaches)


def test_links_between_documents_lead_somewhere() -> None:
    breaches = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in DOCUMENTS
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text())
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert not breaches, "\n".join(breaches)


def test_links_to_sections_lead_to_existing_sections() -> None:
    breaches = [
        f"{path.relative_to(ROOT)}: {target}#{section}"
        for path in DOCUMENTS
        for target, section in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", path.read_text())
        if section not in section_names(((path.parent / target) if target else path).read_text())
    ]
    assert not breaches, "\n".join(breaches)


def test_pages_that_programs_name_exist() -> None:
    programs = [path for shipped in ("mq", "raftlog", "raftmq", "spark") for path in (ROOT / shipped).rglob("*.py")]
    breaches = [
        f"{path.relative_to(ROOT)}: {page}"
        for path in [*programs, *(ROOT / "deploy").rglob("*.yml")]
        for page, section in re.findall(r"(docs/[\w-]+\.md)(?:#([\w-]+))?", path.read_text())
        if not (ROOT / page).exists() or (section and section not in section_names((ROOT / page).read_text()))
    ]
    assert not breaches, "\n".join(breaches)


def test_index_of_decisions_lists_each_with_its_title() -> None:
    directory = ROOT / "docs" / "decisions"
    index = (directory / "README.md").read_text()
    lines = [f"- [{path.read_text().splitlines()[0][2:]}]({path.name})" for path in sorted(directory.glob("[0-9]*.md"))]
    missing = [line for line in lines if line not in index]
    assert not missing, "docs/decisions/README.md lacks:\n" + "\n".join(missing)


def test_titles_in_code_are_not_found() -> None:
    assert titles("# One\n```\n# not this\n```\n## nor this\n") == ["# One"]


def test_section_names_equal_their_link_anchors() -> None:
    text = "# A `name` (old)\n## Look first\n```\n# no section\n```\n## Look first\n### [Read](a.md) on\n"
    assert section_names(text) == {"a-name-old", "look-first", "look-first-1", "read-on"}


def test_make_help_lists_each_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    told = re.findall(r"^## ([a-z-]+): \S", makefile, re.MULTILINE)
    named = " ".join(re.findall(r"^(?:\.PHONY:|BENCHES [:+]=) (.*)", makefile, re.MULTILINE))
    targets = [word for word in named.split() if re.fullmatch(r"[a-z][a-z-]*", word) and word != "help"]
    assert len(targets) > 40
    assert sorted(told) == sorted(targets)
