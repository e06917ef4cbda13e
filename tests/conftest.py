"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, nullcontext
from functools import cache
from inspect import iscoroutinefunction

import pytest
import structlog
import typer.main
import typer.testing
from _pytest.assertion.rewrite import AssertionRewritingHook
from hypothesis import HealthCheck, settings

from mq.local_cluster.any_disk import ANY_DISK

# Before any of them is imported: their assertions say what was compared, as those of tests do.
pytest.register_assert_rewrite("tests.support")

# pytest would rewrite those of the package that has our plugin: what is tested is what ships.
for finder in sys.meta_path:
    if isinstance(finder, AssertionRewritingHook):
        finder._must_rewrite.discard("mq")

# Hundreds of servers are started. Where this is set, each of them compiles all of our modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# However full the disk is that tests share with everything else: their brokers delete nothing early and refuse nothing.
os.environ.update({f"RAFTMQ_BROKER_{name.upper()}": ratio for name, ratio in ANY_DISK.items()})

# A shell that starts the tests in the background has them ignore ctrl-C, and their children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A CliRunner makes the tree of all commands again for each call, which takes longer than most commands.
vars(typer.testing)["_get_command"] = cache(typer.main.get_command)

# The same examples each time, however busy the machine is: a test that fails must fail for everybody. Modules say how
# many examples they want; that is counted on top of this. `make test-unit` takes few.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("few-examples", parent=settings.get_profile("steady"), max_examples=15)
settings.load_profile("steady")


from tests.support.warm_processes import cold_processes, warm_processes  # noqa: E402 - not before what is above

STARTED = pytest.StashKey[float]()
CPU_SECONDS = pytest.StashKey[dict[str, float]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Durations depend on what else runs, and waiting costs nothing: see `pytest_terminal_summary`."""
    parser.addoption("--most-cpu", type=int, default=0, metavar="N", help="show the N tests that need most CPU seconds")
    parser.addoption("--warm-processes", action="store_true", help="fork processes of this project: see warm_processes")


def pytest_configure(config: pytest.Config) -> None:
    """With ``--warm-processes``, processes are forked from one that has imported the project's modules."""
    if config.getoption("--warm-processes"):
        block = ExitStack()
        block.enter_context(warm_processes())
        config.add_cleanup(block.close)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Asynchronous tests run on trio, unless they are marked to run by anyio's plugin on trio and on asyncio."""
    for item in items:
        test = getattr(item, "obj", None)
        examples = getattr(test, "hypothesis", None)
        if iscoroutinefunction(examples.inner_test if examples else test) and not any(
            item.get_closest_marker(name) for name in ("trio", "anyio")
        ):
            item.add_marker("trio")


def pytest_collection_finish() -> None:
    """The collector need not look at all modules and tests again and again."""
    gc.collect()
    gc.freeze()


def cpu_seconds() -> float:
    """What this process has used so far, and children that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note the CPU seconds of a test, its fixtures, and the processes that it has waited for."""
    before = cpu_seconds()
    cold = item.get_closest_marker("cold_processes") is not None
    try:
        with cold_processes() if cold else nullcontext():
            return (yield)
    finally:
        item.config.stash.setdefault(CPU_SECONDS, {})[item.nodeid] = cpu_seconds() - before


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """With ``--most-cpu N``, list the tests that another look at would save most."""
    count, used = config.getoption("--most-cpu"), config.stash.get(CPU_SECONDS, {})
    if count and used:
        terminalreporter.section(f"{sum(used.values()):.0f} CPU seconds of {len(used)} tests; those with most")
        for name, seconds in sorted(used.items(), key=lambda each: -each[1])[:count]:
            terminalreporter.write_line(f"{seconds:7.1f} s {name}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note when a test begins: see below."""
    item.stash[STARTED] = time.time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test tells what its servers logged, those that it shares with other tests, too: it runs only once."""
    from tests.support.server_logs import ends_of_logs  # not before what is registered above

    report = yield
    factory = getattr(item.config, "_tmp_path_factory", None)
    if report.failed and factory is not None:
        since = item.stash.get(STARTED, call.start) - 1  # file systems may round down
        for name, end in ends_of_logs(factory.getbasetemp(), since):
            report.sections.append((f"End of {name}", end))
    return report


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After each module, logging is as it was when Python started.

    `capture_logs` leaves structlog configured. Then the SDK lets it render what it logs, which takes 20 ms for each
    exception.
    """
    if (nextitem is None or nextitem.path != item.path) and structlog.is_configured():
        structlog.reset_defaults()
