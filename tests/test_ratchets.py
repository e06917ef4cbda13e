"""Numbers of this project that may only get better: constants that tests replace, sleeps of tests, assertions per
function, and names that are one participle.

The second half tests the counters against small sources.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

PATCHED_MAX = 13
"""How many constants of modules tests may replace; never raised. A limit is a field of a limits value (decision 30),
which a test gives to what it starts.

What is left, and why: paths and tables of programs for developers (jepsen); whether a module is compiled; what an
earlier release did (properties, delay levels); how much a backup reads at once, and how many blocks a queue keeps; the
rests of a broker's timers, in a fixture for brokers of any limits.
"""

SLEEPS_MAX = 142
"""How many sleeps by a real clock tests may have; never raised. Most are pauses of a loop, of a handler that is slow on
purpose, or of programs that tests start. A test of what happens after a time takes a `MockClock` or the test kit.
"""

ASSERTED: dict[str, float] = {
    "mq/broker": 0.22,
    "mq/broker/access": 0.2,
    "mq/broker/admin": 0.2,
    "mq/broker/archive": 0.25,
    "mq/broker/base": 0.2,
    "mq/broker/bulk": 0.27,
    "mq/broker/consume": 0.26,
    "mq/broker/filtering": 0.23,
    "mq/broker/lite": 0.2,
    "mq/broker/net": 0.2,
    "mq/broker/pop": 0.29,
    "mq/broker/produce": 0.2,
    "mq/broker/query": 0.21,
    "mq/broker/quota": 0.2,
    "mq/broker/recurring": 0.21,
    "mq/broker/replication": 0.23,
    "mq/broker/schedule": 0.22,
    "mq/broker/state": 0.26,
    "mq/broker/transaction": 0.22,
    "mq/broker/write_path": 0.26,
    "mq/store": 0.25,
    "raftlog/consensus": 0.29,
    "raftlog/segment": 0.2,
}
"""Assertions per function of a package, at least. Numbers may only be raised."""

COMPILED_ASSERTED: dict[str, float] = {"mq/compiled": 0.25, "raftlog/compiled": 0.19}
"""The same of modules in Cython."""

PARTICIPLES_MAX = 1530
"""How many functions, parameters and variables may be named by one participle, such as `found` or `told`; never raised.
A noun says what a value is, and a verb what a function does. What is left are mostly words of the field (`committed`,
`acked`, `expected`), names on the wire or on disk, and states in simulators.
"""

_PARTICIPLE = re.compile(
    r"_?([a-z]{3,}ed|told|said|held|kept|sent|lost|done|left|taken|given|found|known|shown|gone|chosen|begun|made|met)"
)
_SLEEP = re.compile(r"\b(?:time|trio|anyio|asyncio)\.sleep\((?!0\))")
_VIRTUAL_CLOCK = re.compile(r"MockClock|autojump_clock|virtual_time|advance")
_CONSTANT = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
_ASSERTION = re.compile(r"^ *assert ", re.MULTILINE)
_CYTHON_ASSERTION = re.compile(r"^ *(?:assert |raise AssertionError)", re.MULTILINE)
_CYTHON_FUNCTION = re.compile(r"^ *c?p?def (?!extern|class|struct|enum)[^=\n]*\(", re.MULTILINE)
_FUNCTION = re.compile(r"^ *(async )?def ", re.MULTILINE)


def patched_constants(source: str) -> Iterator[str]:
    """The constants that a test replaces, with `monkeypatch.setattr` or `patch`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr" | "object" | "patch") | ast.Name(id="patch")):
                given = [arg.value for arg in node.args[:2] if isinstance(arg, ast.Constant)]
                names = [name for name in given if isinstance(name, str)]
                last = names[-1].rpartition(".")[2] if names else ""
                if _CONSTANT.fullmatch(last):
                    yield last
            case _:
                pass


def asserted(sources: Iterable[str]) -> tuple[int, int]:
    """How many assertions, and how many functions."""
    assertions = functions = 0
    for source in sources:
        assertions += len(_ASSERTION.findall(source))
        functions += len(_FUNCTION.findall(source))
    return assertions, functions


def participles(source: str) -> Iterator[str]:
    """The functions, parameters, variables and attributes that a module names by one participle."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                pass
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case _:
                continue
        if _PARTICIPLE.fullmatch(name):
            yield name


def sources(directory: str) -> Iterator[str]:
    """The Python files of a directory."""
    return (path.read_text() for path in sorted((ROOT / directory).rglob("*.py")))


def test_tests_replace_few_constants() -> None:
    found: Counter[str] = Counter()
    for path in (ROOT / "tests").rglob("*.py"):
        source = path.read_text()
        if "setattr" in source or "patch" in source:
            found[path.relative_to(ROOT).as_posix()] += len(list(patched_constants(source)))
    count = found.total()
    assert count <= PATCHED_MAX, f"tests replace {count} constants, make each a limit or an argument: {+found}"


def test_tests_sleep_rarely() -> None:
    found: Counter[str] = Counter()
    for path in (ROOT / "tests").rglob("*.py"):
        source = path.read_text()
        if _VIRTUAL_CLOCK.search(source) is None:
            found[path.relative_to(ROOT).as_posix()] += len(_SLEEP.findall(source))
    count = found.total()
    assert count <= SLEEPS_MAX, f"tests sleep in {count} places: wait with tests.support.waiting.until, or {+found}"


def test_names_are_rarely_participles() -> None:
    packages = ("mq", "raftlog", "spark", "chaos", "jepsen", "benchmarks", "checkers")
    count = Counter(name for package in packages for source in sources(package) for name in participles(source))
    assert count.total() <= PARTICIPLES_MAX, f"{count.total()} names are participles: {count.most_common(40)}"


def test_counter_finds_participles() -> None:
    source = "def answered(told, seed):\n    self.kept = found = told.shown\n    return seed"
    assert sorted(participles(source)) == ["answered", "found", "kept", "told"]


def test_borders_are_asserted() -> None:
    for package, least in ASSERTED.items():
        assertions, functions = asserted(sources(package))
        density = assertions / functions
        assert density >= least, f"{package}: {assertions} assertions in {functions} functions, {density:.3f} < {least}"


def test_every_package_of_the_broker_has_a_number() -> None:
    packages = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "mq" / "broker").glob("*/__init__.py")}
    assert packages <= ASSERTED.keys()


def test_borders_in_cython_are_asserted() -> None:
    for package, least in COMPILED_ASSERTED.items():
        texts = [path.read_text() for path in (ROOT / package).iterdir() if path.suffix in (".pyx", ".pxi")]
        assertions = sum(len(_CYTHON_ASSERTION.findall(text)) for text in texts)
        functions = sum(len(_CYTHON_FUNCTION.findall(text)) for text in texts)
        density = assertions / functions
        assert density >= least, f"{package}: {assertions} assertions in {functions} functions, {density:.3f} < {least}"


def test_counter_finds_replaced_constants() -> None:
    source = """
monkeypatch.setattr("mq.limits.WARN_SECONDS", 0.1)
monkeypatch.setattr(module, "BYTES_MAX", 1)
with mock.patch.object(module, "LOOKS_MAX", 1), patch("m.LOOKS", 2):
    monkeypatch.setattr(module, "clock", None)
    monkeypatch.setattr(Machine, "wall_clock_ms", clock)
"""
    assert list(patched_constants(source)) == ["WARN_SECONDS", "BYTES_MAX", "LOOKS_MAX", "LOOKS"]


def test_assertions_are_counted() -> None:
    assert asserted(["def f():\n    assert True\n    async def g(): pass\n", "assert 1"]) == (2, 2)
