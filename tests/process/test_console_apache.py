"""The console in front of a broker of Apache RocketMQ: every page is opened, and every change is made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import trio

from tests.interop.clients import SERVERS_VERSION, BuildFailed, build_servers, servers_built, tools_missing
from tests.interop.console import run

pytestmark = [pytest.mark.process, pytest.mark.nightly]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


def test_every_page_and_change_of_the_console_with_apache_rocketmq(tmp_path: Path) -> None:
    if (missing := tools_missing("java")) is not None:
        pytest.skip(missing)
    if not servers_built():
        if (missing := tools_missing("mvn")) is not None:
            pytest.skip(missing)
        try:
            build_servers()
        except BuildFailed as error:
            pytest.skip(f"RocketMQ {SERVERS_VERSION} is not available: {error}")
    lines = trio.run(run, SERVERS_VERSION, tmp_path)
    assert len(lines) > 50
