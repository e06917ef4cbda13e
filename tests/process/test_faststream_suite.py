"""FastStream's own tests for brokers, from its repository, with our broker: they are in no distribution of it.

What is left out is what our broker does not have: batches and paths in topics.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from raftmq.testing import running_processes

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

ROOT = Path(__file__).parent.parent.parent
REPOSITORY = os.environ.get("FASTSTREAM_REPOSITORY", "https://github.com/ag2ai/faststream")
"""Where git finds it: an address or a directory."""
FILES = ["tests/__init__.py", "tests/tools.py", "tests/brokers/__init__.py", "tests/brokers/base"]
LEFT_OUT = "TestRouterInMemory and error_traceback"
"""It leaves the exception of a task to nobody, and AnyIO's plugin for pytest takes that for a failure."""
PASSED_MIN = 262
SECONDS_MAX = 900

CONFTEST = """
import asyncio
from unittest.mock import MagicMock
from uuid import uuid4

import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
def queue():
    return str(uuid4())

@pytest.fixture
def settings():
    return None

def made():
    return MagicMock()

mock = pytest.fixture(made, name="mock")
mock2 = pytest.fixture(made, name="mock2")

def asyncio_event():
    return asyncio.Event()

event = pytest.fixture(asyncio_event, name="event")
event2 = pytest.fixture(asyncio_event, name="event2")
event3 = pytest.fixture(asyncio_event, name="event3")
"""

SUITE = """
import os

import pytest

from faststream import BaseMiddleware
from raftmq.faststream import fastapi
from raftmq.faststream import RaftmqBroker, RaftmqPublisher, RaftmqRoute, RaftmqRouter, TestRaftmqBroker
from raftmq.faststream.messages import RaftmqPublishCommand
from raftmq.faststream.testing import _InMemoryProducer
from tests.brokers.base.basic import BaseTestcaseConfig
from tests.brokers.base.codec import CodecTestcase
from tests.brokers.base.connection import BrokerConnectionTestcase
from tests.brokers.base.consume import BrokerRealConsumeTestcase
from tests.brokers.base.fastapi import FastAPILocalTestcase, FastAPITestcase
from tests.brokers.base.include_router import IncludePublisherTestcase, IncludeSubscriberTestcase
from tests.brokers.base.middlewares import ExceptionMiddlewareTestcase, MiddlewaresOrderTestcase, MiddlewareTestcase
from tests.brokers.base.parser import CustomParserTestcase
from tests.brokers.base.publish import BrokerPublishTestcase
from tests.brokers.base.publish_command import BasePublishCommandTestcase
from tests.brokers.base.requests import RequestsTestcase
from tests.brokers.base.router import RouterLocalTestcase, RouterTestcase
from tests.brokers.base.testclient import BrokerTestclientTestcase

NAMESRV = os.environ["NAMESRV"]


class Real(BaseTestcaseConfig):
    timeout = 20.0

    def get_broker(self, apply_types=False, **kwargs):
        return RaftmqBroker(NAMESRV, apply_types=apply_types, **kwargs)

    def get_router(self, **kwargs):
        return RaftmqRouter(**kwargs)


class Memory(Real):
    def patch_broker(self, *brokers, **kwargs):
        return TestRaftmqBroker(*brokers, **kwargs)


class TestConnection(BrokerConnectionTestcase):
    broker = RaftmqBroker

    def get_broker_args(self, settings):
        return {"namesrv": NAMESRV}


class TestConsume(Real, BrokerRealConsumeTestcase): ...
class TestPublish(Real, BrokerPublishTestcase): ...
class TestParser(Real, CustomParserTestcase): ...
class TestMiddlewares(Real, MiddlewareTestcase): ...
class TestExceptions(Real, ExceptionMiddlewareTestcase): ...
class TestOrderOfMiddlewares(Memory, MiddlewaresOrderTestcase): ...
class TestIncludedSubscribers(Real, IncludeSubscriberTestcase): ...
class TestIncludedPublishers(Real, IncludePublisherTestcase): ...
class TestCodec(Memory, CodecTestcase): ...


class TestRouter(Real, RouterTestcase):
    route_class = RaftmqRoute
    publisher_class = RaftmqPublisher


class TestRouterInMemory(Memory, RouterLocalTestcase):
    route_class = RaftmqRoute
    publisher_class = RaftmqPublisher


class Doubling(BaseMiddleware):
    async def on_receive(self):
        self.msg.body *= 2

    async def consume_scope(self, call_next, msg):
        msg.body *= 2
        return await call_next(msg)


class TestRequests(Real, RequestsTestcase):
    def get_middleware(self, **kwargs):
        return Doubling


class TestRequestsInMemory(Memory, RequestsTestcase):
    def get_middleware(self, **kwargs):
        return Doubling


def stream_router(**options):
    return fastapi.RaftmqRouter(NAMESRV, **options)


class TestFastAPI(Real, FastAPITestcase):
    router_class = staticmethod(stream_router)
    broker_router_class = RaftmqRouter


class TestFastAPIInMemory(Memory, FastAPILocalTestcase):
    router_class = staticmethod(stream_router)
    broker_router_class = RaftmqRouter


class TestPublishCommand(BasePublishCommandTestcase):
    publish_command_cls = RaftmqPublishCommand


class TestInMemory(Memory, BrokerTestclientTestcase):
    @pytest.fixture
    def fake_producer_cls(self):
        return _InMemoryProducer

    def get_fake_producer_class(self):
        return _InMemoryProducer
"""


def sources(directory: Path) -> Path:
    """The suite of the installed version, or the newest one if the repository has no such tag. Skips without it."""
    clone = ["git", "clone", "--quiet", "--bare", "--depth", "1"]
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    for chosen in (["--branch", version("faststream")], []):
        done = subprocess.run(
            [*clone, *chosen, REPOSITORY, str(directory / "repository")],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment,
        )
        if not done.returncode:
            break
    else:
        pytest.skip(f"no repository of FastStream at {REPOSITORY}: {done.stderr.strip().splitlines()[-1:]}")
    suite = directory / "suite"
    suite.mkdir()
    checkout = ["git", "-C", str(directory / "repository"), f"--work-tree={suite}", "checkout", "--quiet", "HEAD", "--"]
    subprocess.run([*checkout, *FILES], check=True)
    return suite


def test_faststreams_own_tests_pass_with_our_broker(tmp_path: Path) -> None:
    suite = sources(tmp_path)
    (suite / "tests" / "conftest.py").write_text(CONFTEST)
    (suite / "tests" / "test_raftmq.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "--tb=short", "-c", os.devnull]
    command += ["--rootdir", str(suite), "-p", "no:cacheprovider", "-o", "anyio_mode=auto"]
    command += ["-k", f"not ({LEFT_OUT})", "tests/test_raftmq.py"]
    with running_processes() as servers:
        environment = {**os.environ, "NAMESRV": servers.namesrv}
        environment["PYTHONPATH"] = os.pathsep.join([str(suite), str(ROOT)])
        ended = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert ended.returncode == 0, ended.stdout[-10_000:]
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed is not None
    assert int(passed[1]) >= PASSED_MIN, ended.stdout[-1000:]
