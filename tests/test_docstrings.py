"""Public methods of the broker have docstrings, or override one that has. Ruff's D102 does not know base classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

EXEMPT = {
    "mq/broker/base/message_times.py",
    "mq/broker/consume/cold_reads.py",
    "mq/broker/net/connection.py",
    "mq/broker/net/flow_control.py",
    "mq/broker/produce/send_receiver.py",
    "mq/broker/schedule/due_records.py",
    "mq/broker/schedule/timer_wheel.py",
    "mq/broker/write_path/appender.py",
    "mq/broker/write_path/entry_builder.py",
}
"""Interfaces of a few names, which say what they are by their names and types, and what only implements them."""


def undocumented(sources: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Public methods without docstring that no base class documents, each with its place."""
    classes = [
        (path, node) for path, text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)
    ]
    by_name = {node.name: node for _, node in classes}
    for path, node in classes:
        if node.name.startswith("_"):
            continue
        documented = set(documented_by(node, by_name))
        for method in methods_of(node):
            if not method.name.startswith("_") and method.name not in documented:
                yield f"{path}:{method.lineno}: {node.name}.{method.name} has no docstring"


def documented_by(node: ast.ClassDef, by_name: dict[str, ast.ClassDef]) -> Iterator[str]:
    """The methods that a class or one of its bases documents."""
    yield from (method.name for method in methods_of(node) if ast.get_docstring(method))
    for base in node.bases:
        if (found := by_name.get(ast.unparse(base).partition("[")[0])) is not None:
            yield from documented_by(found, by_name)


def methods_of(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_methods_of_the_broker_are_documented() -> None:
    files = (
        (path.relative_to(ROOT).as_posix(), path.read_text()) for path in sorted((ROOT / "mq" / "broker").rglob("*.py"))
    )
    found = [line for line in undocumented(files) if line.partition(":")[0] not in EXEMPT]
    assert not found, "\n".join(found)


def test_overriding_methods_need_no_docstring() -> None:
    source = """
class Base:
    def known(self):
        'Documented.'
    def bare(self): ...
class Middle(Base): ...
class Last(Middle):
    def known(self): ...
    def bare(self): ...
    def _own(self): ...
"""
    assert [line.rpartition(": ")[2] for line in undocumented([("m.py", source)])] == [
        "Base.bare has no docstring",
        "Last.bare has no docstring",
    ]


FRAGMENT = re.compile(
    r"(It|Its|The same|These|Those|They|Them|This|As|Like|Such|So|That|There|None|Of|Or|And|But|Nothing"
    r"|Who|What|Which|When|Where|Why|How|By|For|In|On|At|With|To|From)\b|See [^.]*\.?$"
)
"""Beginnings that only the code explains: "It is there.", "What it takes.", "By server.", "See `f`."."""
EVENT = re.compile(r"(A|An|The) \w+( \w+){0,2} (was|were|has|have|is|are|ended|died|begins|began|starts|ends)\b")
"""A clause about an event: the docstring of a function says what the function does about it."""


def fragments(source: str) -> Iterator[str]:
    """The first lines of docstrings that begin with a pronoun, a question word or a preposition, or tell an event."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            is_method = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list
            if FRAGMENT.match(text) or (is_method and EVENT.match(text)):
                yield f"{node.body[0].lineno}: {text.partition(chr(10))[0]}"


def test_docstrings_name_their_subject() -> None:
    breaches = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("mq", "raftlog", "spark", "chaos", "jepsen", "benchmarks", "checkers")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in fragments(path.read_text())
    ]
    assert not breaches, "begin with what is described, or with a verb:\n" + "\n".join(breaches)


def test_checker_finds_docstrings_without_subject() -> None:
    for text in ("The same.", "What it takes.", "By server.", "See `g`.", "A connection was closed."):
        assert list(fragments(f'def f():\n    """{text}"""')) == [f"2: {text}"]
    assert not list(fragments('def f():\n    """Works like `g`."""'))


def stale_arguments(source: str) -> Iterator[str]:
    """The entries under "Args:" in docstrings that are no parameter of the function, or of the class's constructor."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if (
                isinstance(node, ast.ClassDef)
                and node.bases
                and "__init__" not in {each.name for each in methods_of(node)}
            ):
                continue  # a base class has the constructor
            _, _, section = (ast.get_docstring(node) or "").partition("Args:\n")
            entries = re.findall(r"^    (\w+(?:, \w+)*): ", section.partition("\n\n")[0], re.MULTILINE)
            names = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
            names |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            yield from (
                f"{node.lineno}: {name}" for entry in entries for name in entry.split(", ") if name not in names
            )


def test_described_arguments_exist() -> None:
    breaches = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("mq", "raftlog", "spark", "chaos", "jepsen", "benchmarks", "checkers")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in stale_arguments(path.read_text())
    ]
    assert not breaches, "\n".join(breaches)


def test_checker_finds_arguments_that_do_not_exist() -> None:
    source = 'def f(a):\n    """F.\n\n    Args:\n        a: here.\n        b: gone.\n    """'
    assert list(stale_arguments(source)) == ["1: b"]
