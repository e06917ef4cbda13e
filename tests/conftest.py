"""What holds for all tests."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import structlog
from _pytest.assertion.rewrite import AssertionRewritingHook
from hypothesis import HealthCheck, settings

# Before any of them is imported: their assertions say what was compared, as those of tests do.
pytest.register_assert_rewrite("tests.support")

# pytest would rewrite those of the package that has our plugin: what is tested is what ships.
for finder in sys.meta_path:
    if isinstance(finder, AssertionRewritingHook):
        finder._must_rewrite.discard("mq")

# Hundreds of servers are started. Where this is set, each of them compiles all of our modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell that starts the tests in the background has them ignore ctrl-C, and their children would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples each time, however busy the machine is: a test that fails must fail for everybody. Modules say how
# many examples they want; that is counted on top of this.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("steady")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After each module, logging is as it was when Python started.

    `capture_logs` leaves structlog configured. Then the SDK lets it render what it logs, which takes 20 ms for each
    exception.
    """
    if (nextitem is None or nextitem.path != item.path) and structlog.is_configured():
        structlog.reset_defaults()
