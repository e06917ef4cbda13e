"""Numbers of this project that may only get better: constants that tests replace, and assertions per function.

The second half tests the counters against small sources.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

PATCHED: dict[str, int] = {
    "broker/celery": 1,
    "broker/conftest.py": 1,
    "broker/mirror": 3,
    "broker/pop": 3,
    "broker/produce": 3,
    "broker/query": 2,
    "broker/recurring": 1,
    "broker/schedule": 1,
    "broker/test_replay.py": 1,
    "process/test_bench_curves.py": 1,
    "process/test_bench_metrics.py": 1,
    "process/test_bench_special.py": 2,
    "process/test_bench_steady.py": 1,
    "process/test_bench_store.py": 5,
    "process/test_spark_sink.py": 3,
    "simulation/test_forms.py": 1,
    "simulation/test_planted_bugs.py": 2,
    "unit/benchmarks": 2,
    "unit/cli": 1,
    "unit/client": 22,
    "unit/compiled": 1,
    "unit/jepsen": 3,
    "unit/spark": 6,
}
"""How many constants of modules the tests of a directory replace. Numbers may be lowered and rows removed, never
raised: a limit is a field of a limits value (decision 30), which a test gives to what it starts.

What is left, and why: paths and tables of programs for developers (benchmarks, jepsen, simulation); whether a module is
compiled; what an earlier release did (properties, delay levels); intervals of the SDK, of Spark's writer and of the
mirror, which have no limits value yet; the rests of a broker's timers, in a fixture for brokers of any limits.
"""

ASSERTED: dict[str, float] = {
    "mq/broker": 0.13,
    "mq/broker/bulk": 0.18,
    "mq/broker/consume": 0.14,
    "mq/broker/net": 0.1,
    "mq/broker/pop": 0.21,
    "mq/broker/query": 0.15,
    "mq/broker/recurring": 0.18,
    "mq/broker/replication": 0.19,
    "mq/broker/schedule": 0.21,
    "mq/broker/state": 0.26,
    "mq/broker/transaction": 0.19,
    "mq/broker/write_path": 0.25,
    "mq/store": 0.2,
    "raftlog/consensus": 0.31,
    "raftlog/segment": 0.1,
}
"""Assertions per function of a package, at least. Numbers may only be raised."""

_CONSTANT = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
_ASSERTION = re.compile(r"^ *assert ", re.MULTILINE)
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


def sources(directory: str) -> Iterator[str]:
    """The Python files of a directory."""
    return (path.read_text() for path in sorted((ROOT / directory).rglob("*.py")))


def test_tests_replace_few_constants() -> None:
    found: Counter[str] = Counter()
    for path in (ROOT / "tests").rglob("*.py"):
        source = path.read_text()
        if "setattr" in source or "patch" in source:
            found["/".join(path.relative_to(ROOT).parts[1:3])] += len(list(patched_constants(source)))
    wrong = {name: (count, PATCHED.get(name, 0)) for name, count in found.items() if count > PATCHED.get(name, 0)}
    assert not wrong, f"more constants are replaced, (now, before): {wrong}; make each a limit or an argument"
    lower = {name: (count, found[name]) for name, count in PATCHED.items() if count > found[name]}
    assert not lower, f"fewer constants are replaced: lower the numbers, (listed, now): {lower}"


def test_borders_are_asserted() -> None:
    for package, least in ASSERTED.items():
        assertions, functions = asserted(sources(package))
        density = assertions / functions
        assert density >= least, f"{package}: {assertions} assertions in {functions} functions, {density:.3f} < {least}"
        assert density < least + 0.05, f"{package}: {density:.3f} assertions per function; raise the number to that"


def test_replaced_constants_are_found() -> None:
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
