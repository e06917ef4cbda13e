"""Rules of this project that no off-the-shelf checker has, as a walk over the syntax trees; each with its remedy.

The second half tests the rules themselves against small sources that break them.
"""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.support.called_by_libraries import CALLED_BY_LIBRARIES
from tests.support.syntax_trees import nodes, nodes_of

ROOT = Path(__file__).parent.parent
CYTHON = ("pyx", "pxi", "pxd")
SHIPPED_ROOTS = ("raftlog", "mq", "raftmq", "spark", "distributions")
SOURCE_ROOTS = (*SHIPPED_ROOTS, "checkers", "chaos", "jepsen", "benchmarks", "tests")

PURE = (
    "checkers",
    "jepsen/deployments/packets.py",
    "jepsen/profiles.py",
    "jepsen/report/rare_states.py",
    "jepsen/schedule.py",
    "jepsen/derived_messages.py",
    "raftlog/net/admission.py",
    "raftlog/net/authentication.py",
    "raftlog/read_barrier.py",
    "raftlog/consensus",
    "raftlog/safe_cbor.py",
    "raftlog/segment/codec.py",
    "raftlog/segment/recovery.py",
    "raftlog/segment/deletable_files.py",
    "raftlog/bootstrap.py",
    "raftlog/log_numbers.py",
    "raftlog/terms.py",
    "raftlog/net/frames.py",
    "raftlog/net/versions.py",
    "mq/filter",
    "mq/filter_server/group_budget.py",
    "mq/filter_server/picking.py",
    "mq/filter_server/pull_progress.py",
    "mq/broker/net/heartbeat_limits.py",
    "mq/broker/net/clients.py",
    "mq/broker/net/consumer_group.py",
    "mq/broker/recurring/catch_up.py",
    "mq/broker/recurring/rule.py",
    "mq/broker/schedule/read_backoff.py",
    "mq/broker/base/clock_corrections.py",
    "mq/broker/base/counters.py",
    "mq/broker/base/quota_buckets.py",
    "mq/monitoring/event_loop_lag.py",
    "mq/broker/net/client_requests.py",
    "mq/broker/net/flow_control.py",
    "mq/broker/state",
    "mq/broker/write_path/gathering.py",
    "mq/broker/transaction/check_immunity.py",
    "mq/cli/figures.py",
    "mq/cli/mirror/copies.py",
    "mq/cli/mirror/offset_map.py",
    "mq/cli/mirror/offsets.py",
    "mq/cli/mirror/plan.py",
    "mq/cli/mirror/copy_rate.py",
    "mq/cli/mirror/state.py",
    "mq/client/consume/allocation.py",
    "mq/console/events.py",
    "mq/console/history.py",
    "mq/console/lags.py",
    "mq/console/safety.py",
    "mq/console/sessions.py",
    "mq/console/views",
    "mq/inspection/findings/consumer_groups.py",
    "mq/inspection/findings/replicas.py",
    "mq/protocol",
    "mq/namesrv/route_table.py",
    "mq/proxy/mapping",
    "mq/proxy/grpc/connection.py",
    "mq/proxy/grpc/counters.py",
    "mq/proxy/grpc/first_bytes.py",
    "mq/proxy/grpc/floods.py",
    "mq/proxy/grpc/frames.py",
    "mq/proxy/grpc/framing.py",
    "mq/proxy/grpc/header_blocks.py",
    "mq/proxy/grpc/http2.py",
    "mq/proxy/grpc/limits.py",
    "mq/proxy/grpc/request_headers.py",
    "mq/proxy/grpc/status.py",
    "mq/store/queue_blocks.py",
)
"""Same input, same output: no clock, no chance, no waiting, no files, no log in here."""

IMPURE_MODULES = frozenset(
    {"asyncio", "anyio", "logging", "os", "selectors", "socket", "structlog", "subprocess", "threading", "time", "trio"}
)
IMPURE_CALLS = frozenset({"open", "print", "input"})
RANDOM_ALLOWED = frozenset({"Random"})

FORBIDDEN_NAMES = frozenset({"utils", "util", "common", "helper", "helpers", "manager", "managers", "misc"})

LINES_MAX = 600
LONG_FILES: dict[str, int] = {}
"""Files that may be longer, with the length they must not exceed. Entries may be lowered and removed, never raised."""

CONSTRUCTOR_LINES_MAX = 60


def python_files() -> list[Path]:
    return sorted(
        path
        for root in SOURCE_ROOTS
        for path in (ROOT / root).rglob("*.py")
        if "__pycache__" not in path.parts and not path.name.endswith("_pb2.py")  # what protoc has written
    )


def cython_files() -> list[Path]:
    return sorted(path for root in SOURCE_ROOTS for kind in CYTHON for path in (ROOT / root).rglob(f"*.{kind}"))


def is_pure(relative: str) -> bool:
    return any(relative == pure or relative.startswith(f"{pure}/") for pure in PURE)


def impurities(source: str) -> Iterator[str]:
    """What a pure module must not contain, each as `line: what and the remedy`."""
    for node in nodes(source):
        match node:
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield f"{node.lineno}: waits; return an effect and let the shell carry it out"
            case ast.Import(names=names):
                for alias in names:
                    if alias.name.partition(".")[0] in IMPURE_MODULES:
                        yield f"{node.lineno}: imports {alias.name}; take what you need as an argument"
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in IMPURE_MODULES:
                yield f"{node.lineno}: imports from {module}; take what you need as an argument"
            case ast.ImportFrom(module="random", names=names):
                for alias in names:
                    if alias.name not in RANDOM_ALLOWED:
                        yield f"{node.lineno}: imports random.{alias.name}; take a random.Random as an argument"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="random"), attr=attribute)):
                yield f"{node.lineno}: calls random.{attribute}; take a random.Random as an argument"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="datetime"), attr="now" | "utcnow" | "today")):
                yield f"{node.lineno}: reads the clock; take the time as an argument"
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                yield f"{node.lineno}: calls {name}(); input and output belong to the shell"
            case _:
                pass


def name_breaches(relative: str) -> Iterator[str]:
    for part in Path(relative).with_suffix("").parts:
        if part.strip("_") in FORBIDDEN_NAMES:
            yield f"{relative}: {part!r} says nothing; name the module after the noun it is about"


def length_breaches(lengths: Iterable[tuple[str, int]], allowed: dict[str, int]) -> Iterator[str]:
    for relative, lines in lengths:
        limit = allowed.get(relative, LINES_MAX)
        if lines > limit:
            yield f"{relative}: {lines} lines, {limit} are allowed; it probably has two subjects"
        elif relative in allowed and lines <= LINES_MAX:
            yield f"{relative}: {lines} lines; take it off LONG_FILES"


def long_constructors(source: str) -> Iterator[str]:
    """Constructors in which a reader loses the thread, each as `line: length and the remedy`."""
    for node in nodes_of(source, ast.FunctionDef):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__" and node.end_lineno is not None:
            lines = node.end_lineno - node.lineno + 1
            if lines > CONSTRUCTOR_LINES_MAX:
                yield f"{node.lineno}: a constructor of {lines} lines; group the state, or build the parts in methods"


# ------------------------------------------------------------------------------------------ the project


@dataclass
class Project:
    """What the rules below find in all files. Each is parsed and walked through once."""

    breaches: dict[str, list[str]] = field(default_factory=dict)
    """By the name of the rule."""
    lengths: list[tuple[str, int]] = field(default_factory=list)
    imports: dict[str, set[str]] = field(default_factory=dict)
    names: Names = field(default_factory=lambda: Names())

    def add(self, relative: str, source: str, modules: frozenset[str]) -> None:
        """Look at one file."""
        rules = {
            impurities: is_pure(relative),
            long_constructors: relative.startswith(("raftlog/", "mq/", "spark/")),
            unfinished: True,
            wire_names: relative.startswith(SPEAKS_BY_STRUCTS),
            guessed_waits: relative.startswith("tests/"),
        }
        for rule, holds in rules.items():
            if holds:
                self.breaches.setdefault(rule.__name__, []).extend(f"{relative}:{what}" for what in rule(source))
        self.lengths.append((relative, len(source.splitlines())))
        self.imports[module_of(relative)] = imports_in(relative, source, modules)
        self.names.add(relative, source)


@cache
def project() -> Project:
    found, files = Project(), [path.relative_to(ROOT).as_posix() for path in python_files()]
    modules = frozenset(map(module_of, files))
    gc.disable()  # syntax trees are no garbage in rings
    for path in files:
        found.add(path, (ROOT / path).read_text(), modules)
    gc.enable()
    return found


def assert_kept(rule: str) -> None:
    assert not project().breaches[rule], "\n".join(project().breaches[rule])


def test_pure_modules_do_not_use_clocks_randomness_waiting_or_io() -> None:
    assert_kept("impurities")


def test_module_names_are_nouns_of_the_subject() -> None:
    files = [*python_files(), *cython_files()]
    breaches = [breach for path in files for breach in name_breaches(path.relative_to(ROOT).as_posix())]
    assert not breaches, "\n".join(breaches)


def unfinished(source: str) -> Iterator[str]:
    """Lines with a mark."""
    mark = "FIX" + "ME"
    for number, line in enumerate(source.splitlines() if mark in source else [], 1):
        if mark in line:
            yield f"{number}: {mark} means: not before merge"


def test_nothing_is_left_to_be_fixed_before_merge() -> None:
    assert_kept("unfinished")


def test_files_are_short_enough_to_have_one_subject() -> None:
    compiled = [(path.relative_to(ROOT).as_posix(), len(path.read_text().splitlines())) for path in cython_files()]
    breaches = list(length_breaches([*project().lengths, *compiled], LONG_FILES))
    assert not breaches, "\n".join(breaches)


def test_shipped_constructors_are_short() -> None:
    assert_kept("long_constructors")


def test_imports_run_one_way() -> None:
    # In a process of its own: it configures logging, which switches off the loggers that other tests read.
    command = "from importlinter.cli import lint_imports_command as run; run()"
    lint = subprocess.run([sys.executable, "-c", command, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert lint.returncode == 0, f"a contract of [tool.importlinter] in pyproject.toml is broken\n{lint.stdout}"


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports_in(path: str, source: str, modules: frozenset[str]) -> set[str]:
    """Those of these modules that a file imports, those for types only included."""
    found: set[str] = set()
    for node in nodes_of(source, ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if name in modules else node.module for name in names)
    return found & modules - {module_of(path)}


def imports_of(sources: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """By module the modules of the same sources that it imports."""
    texts = dict(sources)
    modules = frozenset(map(module_of, texts))
    return {module_of(path): imports_in(path, text, modules) for path, text in texts.items()}


def import_cycle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a ring, the first one again at the end; none if there is no such ring."""
    done: set[str] = set()
    for start in sorted(imports):
        path = [start]
        waiting = [(start, iter(sorted(imports[start])))] if start not in done else []
        while waiting:
            for each in waiting[-1][1]:
                if each in path:
                    return [*path[path.index(each) :], each]
                if each not in done:
                    waiting.append((each, iter(sorted(imports[each]))))
                    path.append(each)
                    break
            else:
                waiting.pop()
                done.add(path.pop())
    return []


def test_no_files_import_each_other_in_a_ring() -> None:
    cycle = import_cycle(project().imports)
    assert not cycle, " imports ".join(cycle)


_MQ = ("broker", "celery", "client", "namesrv", "proxy")
SPEAKS_BY_STRUCTS = (*(f"mq/{package}/" for package in _MQ), "benchmarks/load/", "benchmarks/wires/rocketmq")
"""Where no text is a name of the wire: requests and replies are structs of `mq.protocol`."""

WIRE_NAME = re.compile(r"[a-z]+[0-9]*(?:[A-Z]+[a-z0-9]*)+")
"""Fields of RocketMQ's headers and bodies are in camel case, as nothing of ours is."""


def wire_names(source: str) -> Iterator[str]:
    """Texts that look like fields of the wire, each as `line: text and the remedy`."""
    for node in nodes_of(source, ast.Constant, ast.Subscript):
        match node:
            case ast.Constant(value=str(text)) if WIRE_NAME.fullmatch(text):
                yield f"{node.lineno}: {text!r} is a name of the wire; use or add a struct in mq/protocol"
            case ast.Subscript(slice=ast.Constant(value=str(text))) if len(text) == 1:
                yield f"{node.lineno}: {text!r} may be a field of a send; use mq.protocol.send_fields"


def test_names_of_the_wire_are_in_the_protocol_only() -> None:
    assert_kept("wire_names")


def borrowed_tests(imports: dict[str, set[str]]) -> Iterator[str]:
    """Imports of test modules, by whichever module."""
    for module, imported in sorted(imports.items()):
        for each in sorted(filter(re.compile(r"tests\.(\w+\.)*test_\w+$").match, imported)):
            yield f"{module} imports {each}: move what both need to tests/support, or a fixture to conftest.py"


def test_no_test_module_is_imported() -> None:
    assert not list(borrowed_tests(project().imports))


SLEEPS = frozenset({"trio.sleep", "anyio.sleep", "time.sleep"})
VIRTUAL_CLOCKS = re.compile(r"\b(autojump_clock|mock_clock|MockClock)\b")


def guessed_waits(source: str) -> Iterator[str]:
    """Sleeps of a literal duration that say nowhere why, each as `line: what and the remedy`.

    The pause of a loop is none of them, nor is a sleep in virtual time.
    """
    if "sleep" not in source:
        return
    lines = source.splitlines()

    def sleeps_of(node: ast.AST, *, repeats: bool) -> Iterator[int]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    if isinstance(node, ast.Module) and VIRTUAL_CLOCKS.search(
                        ast.get_source_segment(source, child) or ""
                    ):
                        continue
                    yield from sleeps_of(child, repeats=False)
                case ast.While() | ast.For() | ast.AsyncFor():
                    yield from sleeps_of(child, repeats=True)
                case ast.Call(func=ast.Attribute(attr="sleep") as function, args=[duration, *_]) if (
                    ast.unparse(function) in SLEEPS
                ):
                    if not repeats and any(isinstance(part, ast.Constant) for part in ast.walk(duration)):
                        yield child.lineno
                case _:
                    yield from sleeps_of(child, repeats=repeats)

    for line in sleeps_of(nodes(source)[0], repeats=False):
        if "#" not in lines[line - 1] and not lines[line - 2].lstrip().startswith("#"):
            yield f"{line}: waits for a guessed time; use tests.support.waiting.until, or say what happens meanwhile"


def test_tests_wait_for_conditions() -> None:
    assert_kept("guessed_waits")


@dataclass
class Names:
    """Which names production defines, with their places, and which names any source reads."""

    defined: dict[str, list[str]] = field(default_factory=dict)
    mentioned: set[str] = field(default_factory=set)

    def add(self, path: str, source: str) -> None:
        """Look at one file. What a decorator registers is in use."""
        for node in nodes_of(source, ast.Name, ast.Attribute, ast.alias, ast.keyword, ast.Constant):
            match node:
                case ast.Attribute(attr=name) | ast.alias(name=name) | ast.keyword(arg=str(name)):
                    self.mentioned.add(name)
                case ast.Name(id=name, ctx=ast.Load()):
                    self.mentioned.add(name)
                case ast.Constant(value=str(text)):  # __all__, and what is looked up by its name
                    self.mentioned.update(text.replace(":", ".").split("."))
                case _:
                    pass
        if not path.startswith("tests/"):
            self._add_defined(path, source)

    def _add_defined(self, path: str, source: str) -> None:
        kinds = (ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        for node in nodes_of(source, *kinds):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    if node.col_offset == 0:
                        self.defined.setdefault(name, []).append(f"{path}:{node.lineno}: nothing uses {name}")
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    decorators = {ast.unparse(each).partition("(")[0] for each in node.decorator_list}
                    if decorators <= {"property", "staticmethod", "classmethod"}:
                        self.defined.setdefault(name, []).append(f"{path}:{node.lineno}: nothing uses {name}")
                case _:
                    pass

    def unused(self) -> Iterator[str]:
        """Functions, classes, methods and names of modules of production that no line of any source reads."""
        for name, places in self.defined.items():
            if name not in self.mentioned and not name.startswith("__") and name not in CALLED_BY_LIBRARIES:
                yield from places


def test_every_name_is_used() -> None:
    names = project().names
    names.add("pyspark_raftmq.py", (ROOT / "pyspark_raftmq.py").read_text())
    for path in cython_files():  # attributes that Cython code uses, as if a test did
        names.add("tests/", "\n".join(attributes(path.read_text())))
    breaches = list(names.unused())
    assert not breaches, "\n".join(breaches)


# -------------------------------------------------------------------------------------------- Cython


def attributes(source: str) -> list[str]:
    """All names behind a dot in Cython code, as ``x.name``; without those of modules that it imports."""
    code = re.sub(
        r'"""(.*?)"""|"[^"\n]*"|#[^\n]*|^(?:from|import|include)\b[^\n]*', "", source, flags=re.DOTALL | re.MULTILINE
    )
    return sorted({f"x.{name}" for name in re.findall(r"[\w)\]]\.([A-Za-z_]\w*)", code)})


def private_names_used(source: str, declarations: str) -> list[str]:
    """Private attributes that Cython code uses, and that none of these ``declarations`` makes one of a C class."""
    declared = set(re.findall(r"^\s*(?:cdef|cpdef)\b[^\n(=]*?\b(_\w+)\s*(?:\(|\[|$)", declarations, flags=re.MULTILINE))
    declared |= {
        name
        for line in re.findall(r"^\s*cdef\b([^\n(]*)$", declarations, flags=re.MULTILINE)
        for name in re.findall(r"\b_\w+", line)
    }
    names = [each.removeprefix("x.") for each in attributes(source)]
    return [name for name in names if name.startswith("_") and not name.startswith("__") and name not in declared]


def test_compiled_code_uses_public_attributes_only() -> None:
    breaches: dict[str, list[str]] = {}
    for path in cython_files():
        declarations = "\n".join(each.read_text() for each in cython_files() if each.parent == path.parent)
        if private := private_names_used(path.read_text(), declarations):
            breaches[str(path.relative_to(ROOT))] = private
    assert not breaches, f"{breaches}: no checker sees their renaming. Call a public method of the object"


# -------------------------------------------------------------------------------------------- the rules


@pytest.mark.parametrize(
    "source",
    [
        "async def f(): pass",
        "import time",
        "import os.path",
        "from trio import sleep",
        "from random import choice",
        "import random\nrandom.random()",
        "from datetime import datetime\ndatetime.now()",
        "open('x')",
        "print(1)",
    ],
)
def test_checker_finds_impurities(source: str) -> None:
    assert list(impurities(source))


@pytest.mark.parametrize(
    "source",
    [
        "import struct, zlib",
        "from random import Random\ndef f(rng: Random) -> float: return rng.random()",
        "class Log:\n    def open(self): ...\nLog().open()",
        "def f(time: float) -> float: return time",
    ],
)
def test_pure_source_passes(source: str) -> None:
    assert not list(impurities(source))


def test_pureness_is_decided_by_path() -> None:
    assert is_pure("mq/protocol/frames.py")
    assert is_pure("raftlog/segment/codec.py")
    assert not is_pure("raftlog/segment/writer.py")
    assert not is_pure("mq/protocol_extra/x.py")


def test_checker_finds_forbidden_module_names() -> None:
    assert list(name_breaches("mq/broker/utils.py"))
    assert list(name_breaches("mq/common/frames.py"))
    assert not list(name_breaches("mq/broker/consume/long_polling.py"))


def test_length_ratchet_only_falls() -> None:
    assert list(length_breaches([("a.py", 601)], {}))
    assert not list(length_breaches([("a.py", 600)], {}))
    assert not list(length_breaches([("a.py", 700)], {"a.py": 700}))
    assert list(length_breaches([("a.py", 701)], {"a.py": 700}))
    assert list(length_breaches([("a.py", 500)], {"a.py": 700}))


def test_checker_finds_long_constructors() -> None:
    body = "\n".join("        self.x = 1" for _ in range(59))
    assert not list(long_constructors(f"class A:\n    def __init__(self):\n{body}\n"))
    assert list(long_constructors(f"class A:\n    def __init__(self):\n        self.x = 1\n{body}\n"))


def test_checker_finds_private_attributes_in_cython() -> None:
    source = (
        "cdef class A:\n    cdef int _own, _two\n    cdef void _go(self):\n        self._own = x._theirs  # y._no\n"
    )
    assert private_names_used(source, source) == ["_theirs"]
    assert private_names_used("self._go()\ntype(x)._f(1)", source) == ["_f"]
    assert attributes('"""a.b"""\nfrom c.d cimport e\nx.f(y).g = z[0].h') == ["x.f", "x.g", "x.h"]


def unused(*sources: tuple[str, str]) -> list[str]:
    names = Names()
    for path, source in sources:
        names.add(path, source)
    return list(names.unused())


def test_checker_finds_unused_names() -> None:
    used = "def f(): ...\nclass A:\n    @property\n    def size(self): ...\n    def closed(self): ...\nA().size"
    assert unused(("mq/a.py", used)) == ["mq/a.py:1: nothing uses f", "mq/a.py:5: nothing uses closed"]
    assert not unused(("mq/a.py", "def f(): ..."), ("tests/b.py", "from mq.a import f"))
    assert unused(("mq/a.py", "A = 1\nB: int = 2\nprint(A)")) == ["mq/a.py:2: nothing uses B"]
    assert not unused(("mq/a.py", "@app.command\ndef f(): ..."), ("tests/b.py", "def g(): ..."))


def test_checker_finds_import_cycles_including_types() -> None:
    a = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mq.b import B"
    b, c = "import mq.c", "from mq import a"
    ring = import_cycle(imports_of([("mq/a.py", a), ("mq/b.py", b), ("mq/c.py", c)]))
    assert ring == ["mq.a", "mq.b", "mq.c", "mq.a"]
    assert not import_cycle(imports_of([("mq/a.py", a), ("mq/b.py", b), ("mq/c.py", "import os")]))


def test_checker_finds_imports_between_test_modules() -> None:
    fake, sends = "class Fake: ...", "from tests.support.fake import Fake\ndef test_sends(): ..."
    fine = [("tests/support/fake.py", fake), ("tests/unit/test_sends.py", sends)]
    assert not list(borrowed_tests(imports_of(fine)))
    for line in ("from tests.unit.test_sends import Fake", "from tests.unit import test_sends"):
        breach = [*fine, ("tests/unit/test_replies.py", line)]
        assert [each.partition(":")[0] for each in borrowed_tests(imports_of(breach))] == [
            "tests.unit.test_replies imports tests.unit.test_sends"
        ]


def test_checker_finds_wire_names() -> None:
    assert [each.partition(":")[0] for each in wire_names("a = {'queueId': 1}\nb = ext['msgId']")] == ["1", "2"]
    assert list(wire_names("fields['a']"))
    assert not list(wire_names("log.info('offset_reset', queue=1)\n'a text'\n'ACK'\nqueueId = 1"))


def test_checker_finds_guessed_waits() -> None:
    source = "async def test():\n    {}\n    await trio.sleep(0.3){}\n"
    assert [each.partition(":")[0] for each in guessed_waits(source.format("pass", ""))] == ["3"]
    assert not list(guessed_waits(source.format("pass", "  # a second one would come by then")))
    assert not list(guessed_waits(source.format("# A second one would come by then.", "")))
    assert not list(guessed_waits("async def test():\n    while True:\n        await trio.sleep(0.1)\n"))
    assert not list(guessed_waits("async def test(autojump_clock):\n    await trio.sleep(60)\n"))
    assert not list(guessed_waits("async def test(seconds):\n    await trio.sleep(seconds)\n"))
