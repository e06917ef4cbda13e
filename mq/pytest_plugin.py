"""Fixtures for pytest: brokers in the test's process, or in their own processes. See `docs/testing.md`.

pytest imports this module for every user who has the client installed: it imports nothing else before a test uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mq.testing import ServerProcesses, SyncKit

__all__ = ["raftmq_broker", "raftmq_cluster", "raftmq_kit"]

_MARKER = "raftmq(replicas=1, **settings): replicas and settings of the brokers of the fixture raftmq_kit"


def pytest_configure(config: pytest.Config) -> None:
    """Register this plugin's marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def raftmq_kit(request: pytest.FixtureRequest) -> Iterator[SyncKit]:
    """Start brokers in a thread, with a clock that the test advances; yields a `raftmq.testing.SyncKit`."""
    _check_installed()
    from mq.testing import running_kit

    marker = request.node.get_closest_marker("raftmq")
    if marker is not None and marker.args:
        texts = ", ".join(map(repr, marker.args))
        pytest.fail(f"the marker raftmq takes keywords, such as raftmq(replicas=3), not raftmq({texts})", pytrace=False)
    with running_kit(**({} if marker is None else marker.kwargs)) as kit:
        yield kit


@pytest.fixture(scope="session")
def raftmq_broker() -> Iterator[ServerProcesses]:
    """Start a name server and a broker as processes. All tests share them: use your own topics and groups."""
    _check_installed()
    from mq.testing import running_processes

    with running_processes() as processes:
        yield processes


@pytest.fixture(scope="session")
def raftmq_cluster() -> Iterator[ServerProcesses]:
    """Start a name server and three brokers as processes. All tests share them."""
    _check_installed()
    from mq.testing import running_processes

    with running_processes(replicas=3) as processes:
        yield processes


def _check_installed() -> None:
    try:
        import mq.testing  # noqa: F401 - a fixture uses it
    except ModuleNotFoundError as error:
        if error.name != "mq.testing":
            raise
        pytest.fail("the fixtures of raftmq run real brokers: pip install 'raftmq[testing]'", pytrace=False)
